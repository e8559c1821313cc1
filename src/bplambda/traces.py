"""Eligibility traces: how a synthesiser remembers which of its past predictions a TD error now concerns.

A trace e_t has, for each example, a row for each of the S numbers of the state and a column for each parameter of the
synthesiser. What crosses a window's edge is the *transported* trace γλ J_{t+1} e_t, at the state that begins the next.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .unroll import parameters


def zero_trace(synthesiser: Any, batch_size: int, size: int) -> PyTree[Float[Array, "B S ..."]]:
    """The trace at the start of a sequence."""
    theta, _ = parameters(synthesiser)
    return jax.tree.map(lambda p: jnp.zeros((batch_size, size, *p.shape), p.dtype), theta)


def accumulate(
    trace: PyTree[Float[Array, "B S ..."]] | None,
    synthesiser: Any,
    states: Float[Array, "K B S"],
    transport: Float[Array, "K B S S"],
) -> PyTree[Float[Array, "B S ..."]]:
    """The exact accumulating trace (Eq. 16) at a window's end: Σ_t P_t ∇g(s_t; θ) + P_0 e.

    **Arguments:** `trace`, the transported trace that enters (`None`: zero); `states` s_0 … s_{K-1};
    `transport`, the P_t = (γλ)^{K−t} ∂s_K/∂s_t of the same steps.
    """
    theta, rebuild = parameters(synthesiser)

    def one_example(s, P):
        _, pull = jax.vjp(lambda p: jax.vmap(rebuild(p))(s), theta)
        (rows,) = jax.vmap(pull, in_axes=1)(P)
        return rows

    new = jax.vmap(one_example, in_axes=1)(states, transport)
    if trace is None:
        return new
    return jax.tree.map(lambda n, e: n + jnp.einsum("bij,bj...->bi...", transport[0], e), new, trace)


def eligible(q: Float[Array, "B S"], trace: PyTree[Float[Array, "B S ..."]]) -> PyTree[Array]:
    """Σ_b q_bᵀ e_b, summed over the batch: a pytree like the synthesiser's parameters."""
    return jax.tree.map(lambda e: jnp.einsum("bi,bi...->...", q, e), trace)
