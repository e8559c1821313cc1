"""The copy-repeat task: see N patterns of 8 bits and a number R, say them R times, then stop."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .. import losses
from ..network import Network
from ._lstm import lstm

BITS = 8
INPUTS, OUTPUTS = BITS + 2, BITS + 1


class Level(NamedTuple):
    """A step of the curriculum: `patterns` N, `repeats` R."""

    patterns: int
    repeats: int

    @property
    def length(self) -> int:
        """T, the length of a sequence."""
        return self.patterns * (self.repeats + 1) + 3

    @property
    def targets(self) -> int:
        """The number of steps that have a target: the patterns, and the stop bit."""
        return self.patterns * self.repeats + 1


def level(number: int) -> Level:
    """The curriculum: N = R = 1 at level 0, then N and R grow in turn."""
    return Level(1 + (number + 1) // 2, 1 + number // 2)


def batch(
    level: Level, size: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "T B 10"], Float[Array, "T B 9"], np.ndarray]:
    """A random batch. Inputs: 8 bits, the start, R/10. Targets, from t = N + 2 on: 8 bits, the stop."""
    n, r = level
    bits = jax.random.bernoulli(key, shape=(n, size, BITS)).astype(float)
    xs = jnp.zeros((level.length, size, INPUTS)).at[1 : n + 1, :, :BITS].set(bits)
    xs = xs.at[0, :, BITS].set(1.0).at[n + 1, :, BITS + 1].set(r / 10)
    ys = jnp.zeros((level.length, size, OUTPUTS)).at[n + 2 : -1, :, :BITS].set(jnp.tile(bits, (r, 1, 1)))
    return xs, ys.at[-1, :, BITS].set(1.0), (np.arange(level.length) >= n + 2).astype(float)


def network(units: int, *, key: PRNGKeyArray) -> Network:
    """An LSTM with a linear readout of logits."""
    cell, readout = jax.random.split(key)
    return Network(
        lstm(INPUTS, units, key=cell), eqx.nn.Linear(units, OUTPUTS, key=readout), losses.sigmoid_cross_entropy
    )
