"""A million steps of a stream: memory flat, nothing compiled again, the loss still falling.

python benchmarks/soak.py [steps]
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import time

import equinox as eqx
import jax
import numpy as np
import optax
import tyro

import bplambda as bp
from bplambda.bench.measure import resident

UNITS, CHUNK, DELAY = 32, 10_000, 6


def main(steps: int = 1_000_000, /) -> None:
    first, second = jax.random.split(jax.random.key(0))
    network = bp.Network(
        eqx.nn.GRUCell(1, UNITS, key=first), eqx.nn.Linear(UNITS, 1, key=second), bp.losses.squared_error
    )
    learner = bp.Learner(network, bp.BPLambda(lam=1.0, gamma=0.95), optax.adam(1e-4), optax.adam(1e-3))
    state = learner.init(jax.random.key(1))
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *args, **kwargs: compiled.append(event) if "backend_compile" in event else None
    )
    rng = np.random.default_rng(0)
    before = np.zeros((DELAY, 1), np.float32)
    began, first_memory, first_compiled = time.perf_counter(), 0.0, 0
    print(f"echo the input of {DELAY} steps ago; GRU {UNITS}, batch 1, an update at every step")
    print("steps, loss, memory in MB, compilations, skipped, microseconds per step")
    for done in range(CHUNK, steps + 1, CHUNK):
        xs = rng.uniform(-1, 1, size=(CHUNK, 1)).astype(np.float32) * np.float32(3**0.5)
        stream = np.concatenate([before, xs])
        before = stream[-DELAY:]
        state, infos = learner.run(state, xs, stream[:CHUNK])
        loss = float(np.mean(infos.loss))
        if done == 2 * CHUNK:
            first_memory, first_compiled = resident(), len(compiled)
        if done % (10 * CHUNK) == 0 or done == CHUNK:
            each = 1e6 * (time.perf_counter() - began) / done
            numbers = f"{loss:.4f}, {resident():.0f}, {len(compiled)}, {int(state.skipped)}, {each:.0f}"
            print(f"{done:,}, {numbers}", flush=True)
    grown, again = resident() - first_memory, len(compiled) - first_compiled
    print(f"since the second chunk: memory {grown:+.1f} MB, compilations {again}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
