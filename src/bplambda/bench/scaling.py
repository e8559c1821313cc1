"""What a step costs: by the size of the state, by the batch, and by how many steps there have been."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from .. import losses
from ..learner import Learner
from ..network import Network
from ..rules.bplambda import BPLambda
from ..sequence import sequence_gradients
from ..synthesiser import LinearSynthesiser
from .effort import Effort
from .measure import Now, Row, exponent, in_turn, resident, surroundings
from .programs import program

INPUTS = 4
BATCH_UNITS = 32  # where the batch varies
STREAM_UNITS = 16  # where the length does
CHUNK = 100  # steps of a stream in one call
GEMM = 2048
# Of K steps, so many windows are timed: K = T is the whole sequence in one. At K = 1 as many as a deferred trace needs
# to catch up four times: every S/4 steps, for the first time after S/4.
WINDOWS: dict[str, Callable[[int], tuple[int, int]]] = {
    "K=1": lambda size: (1, size + 1),
    "K=S": lambda size: (size, 2),
    "K=T": lambda size: (256, 1),
}


def network(kind: Any, units: int) -> Network:
    """One cell and one output."""
    cell, readout = jax.random.split(jax.random.key(0))
    return Network(kind(INPUTS, units, key=cell), eqx.nn.Linear(units, 1, key=readout), losses.squared_error)


def windows(net: Network, batch: int, size: int, count: int) -> Callable[[], Any]:
    """A sequence of `count` windows of `size` steps, in one program; the trace crosses from one to the next."""
    rule, synthesiser = BPLambda(), LinearSynthesiser(net.state_size)
    xs = jax.random.normal(jax.random.key(1), (size * count, batch, INPUTS))
    ys = jnp.zeros((size * count, batch, 1))
    return program(partial(sequence_gradients, window=size), net, synthesiser, rule, xs, ys)


def by_size(effort: Effort) -> Iterator[Row | Now]:
    """A GRU, batch 1, K = 1, S and T; exponents of |h| from the larger half of the sizes."""
    yield from _steps(effort, "size/h{}", [(units, units, 1) for units in effort.units])


def by_batch(effort: Effort) -> Iterator[Row | Now]:
    """The same GRU with a growing batch; exponents of the batch from the larger half."""
    yield from _steps(effort, "batch/B{}", [(batch, BATCH_UNITS // effort.shrink, batch) for batch in effort.batches])


def _steps(effort: Effort, name: str, points: list[tuple[int, int, int]]) -> Iterator[Row | Now]:
    """The time of a step at each point, (what varies, units, batch), and the exponent of what varies."""
    here = surroundings(effort) | {"cell": "gru", "rounds": effort.rounds}
    found: dict[str, list[float]] = {kind: [] for kind in WINDOWS}
    for at, units, batch in points:
        yield Now(name.format(at))
        net = network(eqx.nn.GRUCell, units)
        counts = {kind: shape(net.state_size) for kind, shape in WINDOWS.items()}
        times = in_turn({kind: windows(net, batch, *counts[kind]) for kind in counts}, effort)
        for kind, (size, count) in counts.items():
            each = 1e6 * float(np.median(times[kind])) / (size * count)
            found[kind].append(each)
            config = here | {"units": units, "batch": batch, "window": size, "steps": size * count}
            yield Row(f"{name.format(at)}/{kind}", each, "us/step", None, None, config)
    large = [at for at, _, _ in points][-max(2, (len(points) + 1) // 2) :]
    for kind, values in found.items():
        slope = exponent(large, values[-len(large) :])
        yield Row(f"{name.split('/')[0]}/exponent/{kind}", slope, "exponent", None, None, here | {"fitted_to": large})


def against_gemm(effort: Effort) -> Iterator[Row | Now]:
    """The rate of the exact trace, step by step, by the machine's own rate of large products: that of the operations of
    Algorithm 1, which moves the trace at every step. A trace that is deferred needs fewer, and may be above 100 %."""
    name = "trace/lstm100-batch16"
    yield Now(name)
    units, batch, edge = 100 // effort.shrink, 16, GEMM // effort.shrink
    net = network(eqx.nn.LSTMCell, units)
    steps = net.state_size // 2 + 1  # it catches up twice
    a, b = np.random.default_rng(0).normal(size=(2, edge, edge)).astype(np.float32)
    on_device, product = (jnp.asarray(a), jnp.asarray(b)), jax.jit(jnp.matmul)
    contenders = {
        "trace": windows(net, batch, 1, steps),
        "xla": lambda: product(*on_device).block_until_ready(),
        "numpy": lambda: a @ b,
    }
    times = in_turn(contenders, replace(effort, rounds=min(effort.rounds, 3)))
    seconds = {name: float(np.median(found)) for name, found in times.items()}
    size = net.state_size
    rate = 2 * batch * size**3 * (size + 1) * steps / seconds["trace"] / 1e9
    gemm = {name: 2 * edge**3 / seconds[name] / 1e9 for name in ("xla", "numpy")}
    best = max(gemm, key=lambda name: gemm[name])
    config = surroundings(effort) | {"units": units, "batch": batch, "gemm": f"{best}, {edge} × {edge}"}
    config |= {"gflop_per_s": rate, "gemm_gflop_per_s": gemm[best], "s_per_step": seconds["trace"] / steps}
    yield Row(f"{name}/vs-gemm", 100 * rate / gemm[best], "percent of GEMM", "gemm", rate / gemm[best], config)


def by_length(effort: Effort) -> Iterator[Row | Now]:
    """One stream, K = 1, an update at every step: the time of a step and the memory, up to each length."""
    yield Now("length")
    learner = Learner(network(eqx.nn.GRUCell, STREAM_UNITS), BPLambda(), optax.adam(1e-3), optax.adam(1e-3))
    state = learner.init(jax.random.key(1))
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(CHUNK, INPUTS)).astype(np.float32)
    ys = rng.normal(size=(CHUNK, 1)).astype(np.float32)
    for _ in range(3):  # the first compiles
        state, _ = jax.block_until_ready(learner.run(state, xs, ys))
    config = surroundings(effort) | {"cell": "gru", "units": STREAM_UNITS, "batch": 1, "chunk": CHUNK}
    done, rows = 0, []
    for length in effort.lengths:
        yield Now(f"length/T{length}")
        began, before = time.perf_counter(), done
        while done < length:
            state, _ = jax.block_until_ready(learner.run(state, xs, ys))
            done += CHUNK
        each = 1e6 * (time.perf_counter() - began) / (done - before)
        rows.append(Row(f"length/T{length}", each, "us/step", None, None, config | {"resident_mb": resident()}))
        yield rows[-1]
    grown = rows[-1].config["resident_mb"] - rows[0].config["resident_mb"]
    yield Row("length/memory-growth", grown, "MB", None, None, config | {"from": effort.lengths[0], "to": done})
    slower = rows[-1].value / rows[0].value
    yield Row("length/time-growth", slower, "times", None, None, config | {"from": effort.lengths[0], "to": done})
