"""Synthesisers: g(s; θ), the prediction of ∂L_{>t}/∂s_t from the state s_t."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .checks import require_int


class LinearSynthesiser(eqx.Module):
    """g(s; θ) = W s + b, the paper's synthesiser. Starts at zero, as the paper's does."""

    weight: Float[Array, "S S"]
    bias: Float[Array, " S"]

    def __init__(self, size: int, dtype=None):
        """**Arguments:** `size`: S, the size of the flat state (`network.state_size`); `dtype`: JAX's default."""
        require_int("size", size, minimum=1)
        self.weight = jnp.zeros((size, size), dtype or float)
        self.bias = jnp.zeros((size,), dtype or float)

    def __call__(self, state: Float[Array, " S"]) -> Float[Array, " S"]:
        return self.weight @ state + self.bias


class ConditionalSynthesiser(eqx.Module):
    """g(s; θ) = W_j s + b_k, with a bias for each of some conditions k, and a matrix for each j = k mod `matrices`.

    k is the last number of the state, which the network must not depend on: the hint of a `Told` cell. The state at a
    sequence's start, before anything was told, is of k = 0: where no other should be, count from 1. Starts at zero.
    """

    weight: Float[Array, "S-1 matrices S-1"]
    bias: Float[Array, "conditions S-1"]

    def __init__(self, size: int, conditions: int, matrices: int = 1, dtype=None):
        """**Arguments:**

        - `size`: S, that of the flat state.
        - `conditions`, `matrices`: how many. Every k must be below `conditions`: compiled programs do not check it, and
          take the last one instead. With k = 10 time + label and 10 matrices, each label has its own.
        - `dtype`: JAX's default.
        """
        require_int("size", size, minimum=2)
        require_int("conditions", conditions, minimum=1)
        require_int("matrices", matrices, minimum=1)
        self.weight = jnp.zeros((size - 1, matrices, size - 1), dtype or float)
        self.bias = jnp.zeros((conditions, size - 1), dtype or float)

    def __call__(self, state: Float[Array, " S"]) -> Float[Array, " S"]:
        k, matrices = state[-1].astype(int), self.weight.shape[1]
        # Zeros in place of all matrices but one: for a batch, a single large product.
        chosen = jnp.outer(jax.nn.one_hot(k % matrices, matrices, dtype=state.dtype), state[:-1])
        g = jnp.tensordot(self.weight, chosen, axes=2) + self.bias[k]
        return jnp.append(g, jnp.zeros((), g.dtype))


class MLPSynthesiser(eqx.Module):
    """g(s; θ) with `depth` hidden tanh layers of `width` units. Its last layer starts at zero, so g does."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, size: int, width: int, depth: int, dtype=None, *, key: PRNGKeyArray):
        """**Arguments:**

        - `size`: S, the size of the flat state (`network.state_size`).
        - `width`, `depth`: the size and the number of the hidden layers.
        - `dtype`: of the weights; JAX's default float if left out.
        - `key`: a PRNG key for the hidden layers.
        """
        for name, value in {"size": size, "width": width, "depth": depth}.items():
            require_int(name, value, minimum=1)
        *hidden, last = eqx.nn.MLP(size, size, width, depth, dtype=dtype, key=key).layers
        zero = jnp.zeros_like(last.weight), jnp.zeros((size,), last.weight.dtype)
        self.layers = (*hidden, eqx.tree_at(lambda layer: (layer.weight, layer.bias), last, zero))

    def __call__(self, state: Float[Array, " S"]) -> Float[Array, " S"]:
        *hidden, last = self.layers
        for layer in hidden:
            state = jnp.tanh(layer(state))
        return last(state)


def is_linear(synthesiser: Any) -> bool:
    """Whether g is known to be linear in θ, so that ∇g(s; θ) is the same for every θ. A subclass may not be."""
    return type(synthesiser) in (LinearSynthesiser, ConditionalSynthesiser)
