"""How good the synthetic gradients are, state by state: the paper's measure in its figures 2, 3 and S1."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from .network import Network
from .rules._base import check_synthesiser
from .shapes import time_and_batch
from .unroll import unroll


@eqx.filter_jit
def alignment(network: Network, synthesiser: Any, xs, ys, weights=None) -> Float[Array, " T-1"]:
    """The cosine between the synthetic gradient and the true one, at each state of a sequence.

    **Arguments:** `network`, `synthesiser`; `xs`, `ys`, `weights` as for `sequence_gradients`.

    **Returns:** at the states s_1 … s_{T−1}, after each step but the last, the cosine between g(s_t; θ) and the
    gradient by s_t of all losses after t, averaged over the batch: 1 is perfect, 0 is chance, and 0 where one of them
    is zero. It costs one pass of BPTT.

    !!! example

        ```python
        print(bp.alignment(network, synthesiser, xs, ys))
        ```
    """
    check_synthesiser(network, synthesiser)
    return cosines(network, synthesiser, xs, ys, weights)


def cosines(network: Network, synthesiser: Any, xs, ys, weights) -> Float[Array, " T-1"]:
    """`alignment`, within a compiled program."""
    _, batch = time_and_batch("xs", xs)
    unrolled = unroll(network, network.zero_state(batch), xs, ys, weights)
    true = unrolled.back(unrolled.loss_gradients, jnp.ones((), network.dtype))[1:]
    synthetic = jax.vmap(jax.vmap(synthesiser))(unrolled.states[1:-1])
    return jnp.mean(optax.cosine_similarity(_moderate(synthetic), _moderate(true), epsilon=1e-30), axis=1)


def _moderate(vectors: Float[Array, "... S"]) -> Float[Array, "... S"]:
    """Each as it points, its largest number ±1: the square of a gradient through a hundred steps may be too small for a
    float. Zero stays zero."""
    largest = jnp.max(jnp.abs(vectors), axis=-1, keepdims=True)
    return vectors / jnp.where(largest == 0, jnp.ones_like(largest), largest)
