"""The gradient of one training batch: BP(1) over the whole sequence, against BPTT and Algorithm 1."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..rules._base import Carry, Rule, Window
from ..rules.bplambda import BPLambda
from .baselines.jax_bptt import jax_bptt
from .effort import Effort
from .measure import LeftOut, Now, Row, cores, in_turn, once, ratio, surroundings
from .problems import TASKS, Problem, Sizes, problem
from .programs import program

Contenders = dict[str, Callable[[], Any]]
Times = dict[str, np.ndarray]  # seconds, for each round

NUMBERS = {"lam": 1.0, "gamma": 0.9, "scale": 0.1}
BASELINES = ("jax-bptt", "torch-lstm", "eager-algorithm1")
LONG = "copyrepeat"  # where a batch by Algorithm 1 takes minutes, and is timed once


def whole(network, synthesiser, rule: Rule, xs, ys, weights):
    """The gradients of a sequence in one window."""
    carry = Carry(network.zero_state(xs.shape[1]), None)
    return rule.window(network, synthesiser, carry, Window(xs, ys, weights, last=True))[0]


def one_core(effort: Effort) -> Iterator[Row | Now | LeftOut]:
    """The contest on one core, one thread each."""
    yield from _contest(effort, "gradient")


def all_cores(effort: Effort) -> Iterator[Row | Now | LeftOut]:
    """The contest on all cores, each contender with as many threads."""
    yield from _contest(effort, "gradient-2cores")


def ours(p: Problem) -> Contenders:
    """BP(1), and BPTT by `jax.grad`."""
    data = p.xs, p.ys, p.weights
    return {
        "ours": program(whole, p.network, p.synthesiser, BPLambda(**NUMBERS), *data),
        "jax-bptt": program(jax_bptt, p.network, *data),
    }


def settings(sizes: Sizes, effort: Effort) -> dict[str, Any]:
    """What a row's numbers depend on."""
    return sizes._asdict() | NUMBERS | {"window": sizes.steps, "rounds": effort.rounds} | surroundings(effort)


def compared(name: str, times: Times, contender: str, baseline: str, config: dict[str, Any]) -> Row:
    """A row for a contender, in milliseconds, and how many times faster than the baseline it is."""
    mine, theirs = times[contender], times[baseline]
    config = config | {"baseline_ms": 1e3 * float(np.median(theirs))}
    return Row(name, 1e3 * float(np.median(mine)), "ms", baseline, ratio(theirs, mine), config)


def _contest(effort: Effort, group: str) -> Iterator[Row | Now | LeftOut]:
    there = importlib.util.find_spec("torch") is not None
    if not there:
        what = f"{group}/*/vs-torch-lstm and {group}/*/vs-eager-algorithm1"
        yield LeftOut(what, "PyTorch is not installed; the extra `bench` brings it")
    for task, sizes in TASKS.items():
        yield Now(f"{group}/{task}")
        sizes = sizes.shrunk(effort.shrink)
        p = problem(sizes)
        steps = min(effort.eager_steps, sizes.steps) if task == LONG else sizes.steps
        contenders = ours(p) | (_torch(sizes, p, steps) if there else {})
        eager = contenders.pop("eager-algorithm1") if there and task == LONG else None
        times = in_turn(contenders, effort)
        if eager is not None:
            times["eager-algorithm1"] = np.array([once(eager) * sizes.steps / steps])
        more = {
            "jax-bptt": {},
            "torch-lstm": {"module": {"lstm": "nn.LSTM", "rnn": "nn.RNN"}[sizes.cell]},
            "eager-algorithm1": {"eager_steps": steps},
        }
        for baseline in BASELINES:
            if baseline in times:
                config = settings(sizes, effort) | more[baseline]
                yield compared(f"{group}/{task}/vs-{baseline}", times, "ours", baseline, config)


def _torch(sizes: Sizes, p: Problem, eager_steps: int) -> Contenders:
    """PyTorch's contenders, with as many threads as there are cores."""
    import torch

    from .baselines.torch_bptt import torch_bptt
    from .baselines.torch_eager import torch_eager

    torch.set_num_threads(len(cores()))
    short = p._replace(xs=p.xs[:eager_steps])
    return {
        "torch-lstm": torch_bptt(sizes, p),
        "eager-algorithm1": lambda: torch_eager(sizes, short, **NUMBERS),
    }
