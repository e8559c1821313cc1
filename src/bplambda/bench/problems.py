"""The batches whose gradient is measured: sizes of the paper's tasks, random data."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import losses
from ..cells import RNNCell
from ..network import Network
from ..synthesiser import LinearSynthesiser


class Sizes(NamedTuple):
    """Of a task. `loss` is the name of one in `losses`; `last_only`: at the last step alone, or at every step."""

    cell: str
    inputs: int
    units: int
    outputs: int
    batch: int
    steps: int
    loss: str
    last_only: bool

    @property
    def gates(self) -> int:
        """How many numbers enter a unit."""
        return {"rnn": 1, "lstm": 4}[self.cell]

    @property
    def state(self) -> int:
        """S."""
        return {"rnn": 1, "lstm": 2}[self.cell] * self.units

    @property
    def seen(self) -> int:
        """Predictions that have a loss."""
        return self.batch if self.last_only else self.steps * self.batch

    def shrunk(self, by: int) -> "Sizes":
        """Units, batch and steps divided, for tests."""
        units, batch, steps = (max(1, size // by) for size in (self.units, self.batch, self.steps))
        return self._replace(units=units, batch=batch, steps=steps)


def _toy(steps: int) -> Sizes:
    return Sizes("rnn", 10, 30, 2, 10, steps, "squared_error", last_only=True)


TASKS = {
    "toy-T10": _toy(10),
    "toy-T50": _toy(50),
    "toy-T100": _toy(100),
    "seqmnist": Sizes("lstm", 28, 30, 10, 50, 28, "softmax_cross_entropy", last_only=True),
    "copyrepeat": Sizes("lstm", 10, 100, 9, 100, 28, "sigmoid_cross_entropy", last_only=False),
}


class Problem(NamedTuple):
    """A network, a synthesiser that is not zero, and one batch of sequences: time first, then batch.

    Where there is a loss is known while compiling, to all contenders alike.
    """

    network: Network
    synthesiser: LinearSynthesiser
    xs: Array
    ys: Array
    weights: np.ndarray


def problem(sizes: Sizes) -> Problem:
    """A random problem of these sizes."""
    keys = iter(jax.random.split(jax.random.key(0), 5))
    kind: Any = {"rnn": RNNCell, "lstm": eqx.nn.LSTMCell}[sizes.cell]
    cell = kind(sizes.inputs, sizes.units, key=next(keys))
    readout = eqx.nn.Linear(sizes.units, sizes.outputs, key=next(keys))
    network = Network(cell, readout, getattr(losses, sizes.loss))
    size = network.state_size
    weight = jax.random.normal(next(keys), (size, size)) / size
    synthesiser = eqx.tree_at(lambda g: g.weight, LinearSynthesiser(size), weight)
    lead = (sizes.steps, sizes.batch)
    if sizes.loss == "softmax_cross_entropy":
        ys = jax.random.randint(next(keys), lead, 0, sizes.outputs)
    else:
        ys = jax.random.bernoulli(next(keys), shape=(*lead, sizes.outputs)).astype(float)
    xs = jax.random.normal(next(keys), (*lead, sizes.inputs))
    weights = np.ones(sizes.steps, jnp.result_type(float))
    weights[:-1] = 0.0 if sizes.last_only else 1.0
    return Problem(network, synthesiser, xs, ys, weights)
