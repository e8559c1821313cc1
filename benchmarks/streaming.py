"""What a step of a stream costs: called from Python, and inside `run`.

    python benchmarks/streaming.py

A GRU of 64 units, batch 1, the exact λ-trace, Adam. Ratios are of medians taken in one run, in turn, on one thread.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import statistics
import time

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


def main() -> None:
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(CHUNK, INPUTS)).astype(np.float32)
    ys = rng.normal(size=(CHUNK, 1)).astype(np.float32)
    exact = bp.BPLambda(lam=1.0, gamma=0.9)
    learners = {
        "BP(1), an update at every step": learner(exact),
        "BP(1), an update every 64 steps": learner(exact, update_every=64),
        "no BPTT": learner(bp.NoBPTT()),
        "truncated BPTT, n = 5, rolling": learner(bp.TruncatedBPTT(5), rolling=True),
    }
    states = {name: it.init(jax.random.key(1)) for name, it in learners.items()}
    inside: dict[str, list[float]] = {name: [] for name in learners}
    called: dict[str, list[float]] = {name: [] for name in learners}
    for turn in range(ROUNDS + 1):
        for name, it in learners.items():
            began = time.perf_counter()
            states[name], _ = jax.block_until_ready(it.run(states[name], xs, ys))
            ran = time.perf_counter() - began
            began = time.perf_counter()
            for x, y in zip(xs[:64], ys[:64], strict=True):
                states[name], info = it.step(states[name], x, y)
                float(info.loss)  # the answer is wanted at once
            stepped = time.perf_counter() - began
            if turn:  # the first compiles
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
