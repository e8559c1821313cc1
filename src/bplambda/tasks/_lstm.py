"""The LSTM of the paper's harder tasks."""

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray


def lstm(inputs: int, units: int, *, key: PRNGKeyArray) -> eqx.nn.LSTMCell:
    """An LSTM cell as PyTorch starts it: its bias is the sum of two draws."""
    weights, bias = jax.random.split(key)
    cell = eqx.nn.LSTMCell(inputs, units, key=weights)
    assert cell.bias is not None
    second = jax.random.uniform(bias, cell.bias.shape, minval=-(units**-0.5), maxval=units**-0.5)
    return eqx.tree_at(lambda c: c.bias, cell, cell.bias + second)
