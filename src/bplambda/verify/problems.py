"""Small random problems on which every rule has something to do."""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import losses
from ..cells import RNNCell
from ..network import Network
from ..rules._base import Gradients, Info, Rule
from ..sequence import sequence_gradients
from ..synthesiser import LinearSynthesiser, MLPSynthesiser

CellName = Literal["rnn", "linear", "relu", "lstm", "gru"]
CELLS: tuple[CellName, ...] = ("rnn", "linear", "relu", "lstm", "gru")


class Problem(NamedTuple):
    """A network, a synthesiser that is not zero, and one batch of sequences."""

    network: Network
    synthesiser: Any
    xs: Float[Array, "T B in"]
    ys: Float[Array, "T B out"]
    weights: Float[Array, "T B"]

    def gradients(self, rule: Rule, window: int | None = None) -> tuple[Gradients, Info]:
        """`sequence_gradients` of the problem."""
        return sequence_gradients(self.network, self.synthesiser, rule, self.xs, self.ys, self.weights, window)


def _drawn(rng: np.random.Generator, make, *args, **kwargs):
    """A module of the shape that `make` gives, its arrays drawn from `rng`: no compilation, no dead zeros."""
    shapes = eqx.filter_eval_shape(make, *args, **kwargs)

    def draw(leaf):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(max(leaf.shape[-1], 1)), leaf.dtype)

    return jax.tree.map(draw, shapes)


def cell(rng: np.random.Generator, name: CellName, input_size: int, hidden_size: int):
    """A cell with random weights."""
    key = jax.random.key(0)
    if name == "lstm":
        return _drawn(rng, eqx.nn.LSTMCell, input_size, hidden_size, key=key)
    if name == "gru":
        return _drawn(rng, eqx.nn.GRUCell, input_size, hidden_size, key=key)
    activation = "tanh" if name == "rnn" else name
    return _drawn(rng, RNNCell, input_size, hidden_size, activation, key=key)


def problem(
    seed: int,
    name: CellName = "rnn",
    *,
    hidden: int = 3,
    steps: int = 7,
    batch: int = 2,
    inputs: int = 2,
    outputs: int = 2,
    losses_at: Literal["every", "last", "random"] = "random",
    synthesiser: Literal["linear", "mlp"] = "linear",
) -> Problem:
    """A random problem: squared error of a linear readout, with losses at every step, the last, or some at random."""
    rng = np.random.default_rng(seed)
    readout = _drawn(rng, eqx.nn.Linear, hidden, outputs, key=jax.random.key(0))
    network = Network(cell(rng, name, inputs, hidden), readout, losses.squared_error)
    size = network.state_size
    if synthesiser == "linear":
        g = _drawn(rng, LinearSynthesiser, size)
    else:
        g = _drawn(rng, MLPSynthesiser, size, 4, 2, key=jax.random.key(0))
    weights = np.ones((steps, batch))
    if losses_at == "last":
        weights[:-1] = 0
    elif losses_at == "random":
        weights = rng.uniform(size=(steps, batch)) * (rng.uniform(size=(steps, batch)) < 0.6)
    xs, ys = rng.normal(size=(steps, batch, inputs)), rng.normal(size=(steps, batch, outputs))
    return Problem(network, g, *(jnp.asarray(a) for a in (xs, ys, weights)))
