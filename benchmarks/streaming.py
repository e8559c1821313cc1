"""What a step of a stream costs: called from Python, and inside `run`.

    python benchmarks/streaming.py

A GRU of 64 units, batch 1, the exact λ-trace, Adam; beside it, if installed, braintrace's D_RTRL, which keeps the
diagonal of RTRL alone. Ratios are of medians taken in one run, in turn, on one thread.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import importlib
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax

import bplambda as bp

UNITS, INPUTS, CHUNK, ROUNDS = 64, 4, 512, 15


def learner(rule, **kwargs):
    first, second = jax.random.split(jax.random.key(0))
    network = bp.Network(
        eqx.nn.GRUCell(INPUTS, UNITS, key=first), eqx.nn.Linear(UNITS, 1, key=second), bp.losses.squared_error
    )
    return bp.Learner(network, rule, optax.adam(1e-3), optax.adam(1e-4), **kwargs)


class Timed(NamedTuple):
    """A way to learn: from a chunk in one call, and from one step, whose loss is wanted at once."""

    run: Callable[[np.ndarray, np.ndarray], Any]
    step: Callable[[np.ndarray, np.ndarray], float]


def ours(it: bp.Learner) -> Timed:
    state = it.init(jax.random.key(1))

    def run(xs, ys):
        nonlocal state
        state, _ = jax.block_until_ready(it.run(state, xs, ys))

    def step(x, y):
        nonlocal state
        state, info = it.step(state, x, y)
        return float(info.loss)

    return Timed(run, step)


def braintrace() -> Timed:
    """The same network, Adam, and D_RTRL."""
    names = ("braintrace", "brainstate", "braintools")
    trace, brain, tools = (importlib.import_module(name) for name in names)

    class Net(brain.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = trace.nn.GRUCell(INPUTS, UNITS)
            self.out = trace.nn.Linear(UNITS, 1)

        def update(self, x):
            return self.out(self.rnn(x))

    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the readout has no trace, nor has the reset gate
        online = trace.compile(net, trace.D_RTRL, np.zeros((1, INPUTS), np.float32), batch_size=1)
    weights = net.states(brain.ParamState)
    optimiser = tools.optim.Adam(lr=1e-3)
    optimiser.register_trainable_weights(weights)

    def loss(x, y):
        return ((online(x[None]) - y[None]) ** 2).mean()

    def learn(x, y):
        gradients, value = brain.transform.grad(loss, weights, return_value=True)(x, y)
        optimiser.update(gradients)
        return value

    one = brain.transform.jit(learn)
    many = brain.transform.jit(lambda xs, ys: brain.transform.for_loop(learn, xs, ys))
    return Timed(lambda xs, ys: jax.block_until_ready(many(xs, ys)), lambda x, y: float(one(x, y)))


def main() -> None:
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(CHUNK, INPUTS)).astype(np.float32)
    ys = rng.normal(size=(CHUNK, 1)).astype(np.float32)
    exact = bp.BPLambda(lam=1.0, gamma=0.9)
    learners = {
        "BP(1), an update at every step": ours(learner(exact)),
        "BP(1), an update every 64 steps": ours(learner(exact, update_every=64)),
        "no BPTT": ours(learner(bp.NoBPTT())),
        "truncated BPTT, n = 5, rolling": ours(learner(bp.TruncatedBPTT(5), rolling=True)),
    }
    try:
        learners["braintrace, D_RTRL"] = braintrace()
    except ImportError as error:
        print(f"braintrace is left out: {error}\n")
    inside: dict[str, list[float]] = {name: [] for name in learners}
    called: dict[str, list[float]] = {name: [] for name in learners}
    for turn in range(ROUNDS + 2):
        for name, it in learners.items():
            began = time.perf_counter()
            it.run(xs, ys)
            ran = time.perf_counter() - began
            began = time.perf_counter()
            for x, y in zip(xs[:64], ys[:64], strict=True):
                it.step(x, y)
            stepped = time.perf_counter() - began
            if turn > 1:  # the first two compile
                inside[name].append(1e6 * ran / CHUNK)
                called[name].append(1e6 * stepped / 64)
    print(f"GRU {UNITS}, batch 1, float32, one thread; microseconds per step, medians of {ROUNDS}\n")
    print("| learner | inside run | step from Python | difference |")
    print("|---|---|---|---|")
    for name in learners:
        a, b = statistics.median(inside[name]), statistics.median(called[name])
        print(f"| {name} | {a:.0f} | {b:.0f} | {b - a:.0f} |")
    every, seldom = (inside[name] for name in list(learners)[:2])
    ratio = statistics.median(a / b for a, b in zip(every, seldom, strict=True))
    print(f"\nAn update every 64 steps is {ratio:.0f} times faster per step than one at every step.")


if __name__ == "__main__":
    main()
