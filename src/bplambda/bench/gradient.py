"""The gradient of one training batch: BP(1) over the whole sequence, against BPTT, Algorithm 1 and the floor."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import numpy as np

from ..rules._base import Carry, Rule, Window
from ..rules.bplambda import BPLambda
from ..rules.bptt import BPTT
from .baselines.floor import floor, flops
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


class AnyCell(eqx.Module):
    """A cell that the library knows nothing about."""

    cell: Any
    input_size: int = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)

    def __call__(self, x, state):
        return self.cell(x, state)


def whole(network, synthesiser, rule: Rule, xs, ys, weights):
    """The gradients of a sequence in one window."""
    carry = Carry(network.zero_state(xs.shape[1]), None)
    return rule.window(network, synthesiser, carry, Window(xs, ys, weights, last=True))[0]


def one_core(effort: Effort) -> Iterator[Row | Now | LeftOut]:
    """The contest on one core, and beside it: the floor, a cell that is not known, BPTT as a rule of ours."""
    yield from _contest(effort, "gradient", beside=_beside)


def all_cores(effort: Effort) -> Iterator[Row | Now | LeftOut]:
    """The contest on all cores, each contender with as many threads."""
    yield from _contest(effort, "gradient-2cores", beside=lambda sizes, p: {})


def _contest(effort: Effort, group: str, beside: Callable[[Sizes, Problem], Contenders]):
    there = importlib.util.find_spec("torch") is not None
    if not there:
        what = f"{group}/*/vs-torch-lstm and {group}/*/vs-eager-algorithm1"
        yield LeftOut(what, "PyTorch is not installed; the extra `bench` brings it")
    for task, sizes in TASKS.items():
        yield Now(f"{group}/{task}")
        sizes = sizes.shrunk(effort.shrink)
        p = problem(sizes)
        steps = min(effort.eager_steps, sizes.steps) if task == LONG else sizes.steps
        contenders = _ours(p) | beside(sizes, p) | (_torch(sizes, p, steps) if there else {})
        eager = contenders.pop("eager-algorithm1") if there and task == LONG else None
        times = in_turn(contenders, effort)
        if eager is not None:
            times["eager-algorithm1"] = np.array([once(eager) * sizes.steps / steps])
        config = sizes._asdict() | NUMBERS | {"window": sizes.steps, "dtype": str(p.xs.dtype), "eager_steps": steps}
        yield from _rows(group, task, sizes, times, config | surroundings(effort) | {"rounds": effort.rounds})


def _ours(p: Problem) -> Contenders:
    rule, data = BPLambda(**NUMBERS), (p.xs, p.ys, p.weights)
    return {
        "ours": program(whole, p.network, p.synthesiser, rule, *data),
        "jax-bptt": program(jax_bptt, p.network, *data),
    }


def _beside(sizes: Sizes, p: Problem) -> Contenders:
    rule, data = BPLambda(**NUMBERS), (p.xs, p.ys, p.weights)
    unknown = eqx.tree_at(lambda n: n.cell, p.network, AnyCell(p.network.cell, sizes.inputs, sizes.units))
    return {
        "any-cell": program(whole, unknown, p.synthesiser, rule, *data),
        "bptt": program(whole, p.network, None, BPTT(), *data),
        "floor": floor(sizes),
    }


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


def _rows(group: str, task: str, sizes: Sizes, times: Times, config: dict[str, Any]) -> Iterator[Row]:
    def row(name: str, contender: str, baseline: str, **more: Any) -> Row:
        ours, theirs = times[contender], times[baseline]
        more |= {"baseline_ms": 1e3 * float(np.median(theirs))}
        return Row(name, 1e3 * float(np.median(ours)), "ms", baseline, ratio(theirs, ours), config | more)

    module = {"lstm": "nn.LSTM", "rnn": "nn.RNN"}[sizes.cell]
    for baseline in BASELINES:
        if baseline in times:
            more = {"module": module} if baseline == "torch-lstm" else {}
            yield row(f"{group}/{task}/vs-{baseline}", "ours", baseline, **more)
    for contender in ("any-cell", "bptt"):
        if contender in times:
            yield row(f"{group}-{contender}/{task}/vs-jax-bptt", contender, "jax-bptt")
    if "floor" in times:
        whole = row(f"floor/{task}", "ours", "floor", mflop=flops(sizes) / 1e6)
        yield whole._replace(value=100 * (whole.ratio or 0.0), unit="percent of floor")
