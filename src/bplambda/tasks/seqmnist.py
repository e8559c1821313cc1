"""Sequential MNIST: see a digit row by row, name it at the end."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from .. import losses
from ..cells import Told
from ..network import Network
from ._lstm import lstm

PIXELS, CLASSES = 784, 10


def batch(
    images: UInt8[Array, "B 28 28"], labels: UInt8[Array, " B"], length: int
) -> tuple[Float[Array, "T B row"], Int[Array, "T B"], np.ndarray]:
    """Images as sequences of `length` pieces, the label and the loss at the last."""
    ys = jnp.broadcast_to(labels.astype(int), (length, len(labels)))
    return pieces(images, length), ys, np.eye(length)[-1]


def pieces(images: UInt8[Array, "B 28 28"], length: int) -> Float[Array, "T B row"]:
    """Images as sequences of pieces, from 0 to 1."""
    return jnp.swapaxes(images.reshape(len(images), length, -1), 0, 1).astype(float) / 255


def network(units: int, length: int, *, key: PRNGKeyArray) -> Network:
    """An LSTM with a linear readout of logits."""
    cell, readout = jax.random.split(key)
    return Network(
        lstm(PIXELS // length, units, key=cell),
        eqx.nn.Linear(units, CLASSES, key=readout),
        losses.softmax_cross_entropy,
    )


def told(network: Network) -> Network:
    """The same network, for a synthesiser that is told the label and the time: `hints`."""
    state = network.zero_state(), jnp.zeros(1)
    return Network(Told(network.cell), network.readout, network.loss, _output, state=state)


def _output(state):
    (h, _), _ = state
    return h


def hints(labels: UInt8[Array, " B"], length: int) -> Float[Array, "T B 1"]:
    """One number for each label and time, below `CLASSES` times `length`; modulo `CLASSES`, the label."""
    return (jnp.arange(length)[:, None] * CLASSES + labels.astype(int)[None])[..., None].astype(float)
