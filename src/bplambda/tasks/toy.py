"""The paper's toy task: see an input at the first step, say at the last where on the unit circle it belongs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .. import losses
from ..cells import RNNCell
from ..network import Network

INPUTS = 10
OUTPUTS = 2

# The binary inputs that the authors drew once for all of their runs, as numbers.
_DRAWN = (0b1101000001, 0b1111011110, 0b1100010101)


class Toy(eqx.Module):
    """Binary inputs, each with a target on the unit circle, the targets equally far apart: the same for all seeds."""

    inputs: Float[Array, "pairs 10"]
    targets: Float[Array, "pairs 2"]
    length: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    def __init__(self, pairs: int, length: int, batch_size: int):
        """**Arguments:** the number of `pairs`, at most 3; the `length` T of a sequence; the `batch_size`."""
        self.inputs = jnp.array([[float(bit) for bit in f"{number:0{INPUTS}b}"] for number in _DRAWN[:pairs]])
        angles = 2 * jnp.pi * jnp.arange(pairs) / pairs
        self.targets = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        self.length = length
        self.batch_size = batch_size

    def batch(self, key: PRNGKeyArray) -> tuple[Float[Array, "T B 10"], Float[Array, "T B 2"], np.ndarray]:
        """A random batch: inputs at the first step, targets and loss at the last."""
        pair = jax.random.randint(key, (self.batch_size,), 0, len(self.inputs))
        xs = jnp.zeros((self.length, self.batch_size, INPUTS)).at[0].set(self.inputs[pair])
        ys = jnp.zeros((self.length, self.batch_size, OUTPUTS)).at[-1].set(self.targets[pair])
        return xs, ys, np.eye(self.length)[-1]


def network(units: int, activation: str, *, key: PRNGKeyArray) -> Network:
    """A plain RNN with a linear readout in the plane; its loss is half the squared distance, of which
    the task's error is all."""
    cell, readout = jax.random.split(key)
    return Network(
        RNNCell(INPUTS, units, activation, key=cell),
        eqx.nn.Linear(units, OUTPUTS, key=readout),
        losses.mean_squared_error,
    )
