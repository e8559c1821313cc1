"""The gradient of one training batch: BP(1) over the whole sequence against full BPTT by `jax.grad`.

    python benchmarks/gradient.py

Prints ratios from one run, the rounds of all contenders interleaved, on one thread. "any cell" is the LSTM as the
library treats a cell that it has never seen.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import bplambda as bp


class AnyCell(eqx.Module):
    """A cell that the library knows nothing about."""

    cell: eqx.nn.LSTMCell
    input_size: int = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)

    def __call__(self, x, state):
        return self.cell(x, state)


def jax_grad(network: bp.Network, xs, ys, weights):
    """BPTT as a JAX user writes it: a scan, and `jax.grad` of the loss."""

    def loss(network):
        def step(state, x):
            state = jax.vmap(network.cell)(x, state)
            return state, jax.vmap(network.readout)(network.output(state))

        _, predictions = jax.lax.scan(step, network.zero_state(xs.shape[1]), xs)
        losses = jax.vmap(jax.vmap(network.loss))(predictions, ys)
        return jnp.sum(weights @ losses) / xs.shape[1]

    return eqx.filter_value_and_grad(loss)(network)


def toy():
    """RNN 30, batch 10, T = 50"""
    ys = jax.random.normal(jax.random.key(3), (50, 10, 2))
    return problem(bp.RNNCell(10, 30, key=jax.random.key(0)), bp.losses.squared_error, 2, ys, last_only=True)


def seqmnist():
    """LSTM 30, batch 50, T = 28"""
    ys = jax.random.randint(jax.random.key(3), (28, 50), 0, 10)
    cell = eqx.nn.LSTMCell(28, 30, key=jax.random.key(0))
    return problem(cell, bp.losses.softmax_cross_entropy, 10, ys, last_only=True)


def copyrepeat():
    """LSTM 100, batch 100, T = 28"""
    ys = jax.random.bernoulli(jax.random.key(3), shape=(28, 100, 9)).astype(float)
    cell = eqx.nn.LSTMCell(10, 100, key=jax.random.key(0))
    return problem(cell, bp.losses.sigmoid_cross_entropy, 9, ys, last_only=False)


def problem(cell, loss, outputs: int, ys, last_only: bool):
    network = bp.Network(cell, eqx.nn.Linear(cell.hidden_size, outputs, key=jax.random.key(1)), loss)
    steps, batch = ys.shape[:2]
    xs = jax.random.normal(jax.random.key(2), (steps, batch, cell.input_size))
    weights = jnp.zeros(steps).at[-1].set(1.0) if last_only else jnp.ones(steps)
    return network, bp.LinearSynthesiser(network.state_size), xs, ys, weights


def measure(contenders: dict[str, Callable], seconds: float = 6.0) -> dict[str, list[float]]:
    """Times of each, in milliseconds, round after round so that noise meets all of them alike."""
    for run in contenders.values():
        jax.block_until_ready(run())
    times: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in contenders.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def contenders(network, synthesiser, xs, ys, weights) -> dict[str, Callable]:
    bptt = eqx.filter_jit(jax_grad)
    wrapped = AnyCell(network.cell, network.cell.input_size, network.cell.hidden_size)
    unknown = eqx.tree_at(lambda n: n.cell, network, wrapped)

    @eqx.filter_jit
    def whole(network, synthesiser, rule, xs, ys, weights):
        carry = bp.Carry(network.zero_state(xs.shape[1]), None)
        return rule.window(network, synthesiser, carry, bp.Window(xs, ys, weights, last=True))[0]

    rule = bp.BPLambda(lam=1.0, gamma=0.9, scale=0.1)
    return {
        "jax.grad BPTT": lambda: bptt(network, xs, ys, weights),
        "BPTT()": lambda: whole(network, None, bp.BPTT(), xs, ys, weights),
        "BP(1)": lambda: whole(network, synthesiser, rule, xs, ys, weights),
        "BP(1), any cell": lambda: whole(unknown, synthesiser, rule, xs, ys, weights),
    }


def main():
    for make in (toy, seqmnist, copyrepeat):
        times = measure(contenders(*make()))
        base = np.array(times["jax.grad BPTT"])
        print(f"{make.__name__}: {make.__doc__}")
        for contender, found in times.items():
            ratio = np.median(np.array(found) / base)
            print(f"  {contender:16} {np.median(found):8.2f} ms   {ratio:5.2f} x jax.grad BPTT")


if __name__ == "__main__":
    main()
