"""What a step of a stream costs: called from Python, and inside `run`."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax

from ..learner import Learner
from ..rules._base import Rule
from ..rules.bplambda import BPLambda
from ..rules.bptt import NoBPTT, TruncatedBPTT
from ..traces import Deferred
from .baselines.braintrace import d_rtrl
from .effort import Effort
from .measure import LeftOut, Now, Row, in_turn, ratio, surroundings
from .scaling import INPUTS, network

UNITS, CHUNK, CALLS = 64, 512, 32
RATE = 1e-3
BRAINTRACE = "braintrace-d-rtrl"
LEARNERS = ("bp1", "bp1-moved-at-every-step", "bp1-every-64", "no-bptt", "truncated-5-rolling", BRAINTRACE)


class Timed(NamedTuple):
    """A way to learn: from a chunk in one call, and from one step, whose loss is wanted at once."""

    run: Callable[[Any, Any], Any]
    step: Callable[[Any, Any], float]


def ours(units: int, rule: Rule, moved_at_every_step: bool = False, **settings: Any) -> Timed:
    """A learner of ours; or one whose trace moves at every step, as Algorithm 1 is written, also if it is large."""
    learner = Learner(network(eqx.nn.GRUCell, units), rule, optax.adam(RATE), optax.adam(RATE), **settings)
    state = learner.init(jax.random.key(1))
    if moved_at_every_step and isinstance(state.carry.memory, Deferred):
        state = state._replace(carry=state.carry._replace(memory=state.carry.memory.trace))

    def run(xs, ys):
        nonlocal state
        state, _ = jax.block_until_ready(learner.run(state, xs, ys))

    def step(x, y):
        nonlocal state
        state, info = learner.step(state, x, y)
        return float(info.loss)

    return Timed(run, step)


def learners(units: int) -> dict[str, Timed]:
    exact = BPLambda(lam=1.0, gamma=0.9)
    found = [
        ours(units, exact),
        ours(units, exact, moved_at_every_step=True),
        ours(units, exact, update_every=64),
        ours(units, NoBPTT()),
        ours(units, TruncatedBPTT(5), rolling=True),
    ]
    if importlib.util.find_spec("braintrace"):
        found.append(Timed(*d_rtrl(INPUTS, units, RATE)))
    return dict(zip(LEARNERS, found, strict=False))


def streaming(effort: Effort) -> Iterator[Row | Now | LeftOut]:
    """A GRU of 64 units, batch 1, Adam, the exact trace; and what a user would compare it with."""
    yield Now("streaming")
    units, chunk = UNITS // effort.shrink, max(64, CHUNK // effort.shrink)
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(chunk, INPUTS)).astype(np.float32)
    ys = rng.normal(size=(chunk, 1)).astype(np.float32)
    found = learners(units)
    if BRAINTRACE not in found:
        yield LeftOut(f"streaming/*/vs-{BRAINTRACE}", "braintrace is not installed")
    contenders: dict[str, Callable[[], Any]] = {}
    for name, it in found.items():
        contenders[f"{name}/run"] = lambda it=it: it.run(xs, ys)
        contenders[f"{name}/step"] = lambda it=it: [it.step(x, y) for x, y in zip(xs[:CALLS], ys[:CALLS], strict=True)]
    times = in_turn(contenders, effort)
    each = {name: 1e6 * t / (chunk if name.endswith("/run") else CALLS) for name, t in times.items()}
    config = surroundings(effort) | {"cell": "gru", "units": units, "batch": 1, "chunk": chunk, "rounds": effort.rounds}

    def row(name: str, values: np.ndarray, baseline: str | None = None) -> Row:
        theirs = None if baseline is None else each[baseline]
        more = {} if theirs is None else {"baseline_us": float(np.median(theirs))}
        faster = None if theirs is None else ratio(theirs, values)
        return Row(f"streaming/{name}", float(np.median(values)), "us/step", baseline, faster, config | more)

    for name in found:
        inside, called = each[f"{name}/run"], each[f"{name}/step"]
        yield row(f"{name}/run", inside)
        yield row(f"{name}/step", called)
        yield row(f"{name}/dispatch", called - inside)
    yield row("update-every-64/vs-update-every-1", each["bp1-every-64/run"], "bp1/run")
    for name, it in (("update-every-1", "bp1"), ("update-every-64", "bp1-every-64")):
        yield row(f"{name}/vs-moved-at-every-step", each[f"{it}/run"], "bp1-moved-at-every-step/run")
    if BRAINTRACE in found:
        for how in ("run", "step"):
            yield row(f"{how}/vs-{BRAINTRACE}", each[f"bp1/{how}"], f"{BRAINTRACE}/{how}")
