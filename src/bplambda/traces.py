"""Eligibility traces: how a synthesiser remembers which of its past predictions a TD error now concerns.

A trace e_t has, for each example, a row for each of the S numbers of the state and a column for each parameter of the
synthesiser. What crosses a window's edge is the *transported* trace γλ J_{t+1} e_t, at the state that begins the next.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree

from .unroll import ended, parameters

# If each has at least so many numbers, the traces of a batch are moved one by one, while each is in a CPU's cache: with
# 16 times as many that is 1.6 times as fast, with half as many the loop costs more than it saves.
LARGE = 2**15


def zero_trace(synthesiser: Any, batch_size: int, size: int) -> PyTree[Float[Array, "B S ..."]]:
    """The trace at the start of a sequence."""
    theta, _ = parameters(synthesiser)
    return jax.tree.map(lambda p: jnp.zeros((batch_size, size, *p.shape), p.dtype), theta)


def eligible(q: Float[Array, "B S"], trace: PyTree[Float[Array, "B S ..."]]) -> PyTree[Array]:
    """Σ_b q_bᵀ e_b, summed over the batch: a pytree like the synthesiser's parameters."""
    return jax.tree.map(lambda e: jnp.einsum("bi,bi...->...", q, e), trace)


def accumulate(
    trace: PyTree[Float[Array, "B S ..."]],
    q: Float[Array, "B S"],
    synthesiser: Any,
    states: Float[Array, "K B S"],
    transport: Float[Array, "K B S S"],
    last: bool | Bool[Array, ""],
) -> tuple[PyTree[Array], PyTree[Float[Array, "B S ..."]]]:
    """The exact accumulating trace (Eq. 16) at a window's end, and what the one at its start was eligible for.

    **Arguments:** `trace`, the transported trace e that enters; `q`, what it is wanted for; `states` s_0 … s_{K-1};
    `transport`, the P_t = (γλ)^{K−t} ∂s_K/∂s_t of the same steps; `last`: whether the sequence ends here.

    **Returns:** Σ_b q_bᵀ e_b, a pytree like the synthesiser's parameters; and P_0 e + Σ_t P_t ∇g(s_t; θ), or zeros.
    """
    theta, rebuild = parameters(synthesiser)

    def one_example(e, q, s, P):
        _, pull = jax.vjp(lambda p: jax.vmap(rebuild(p))(s), theta)
        (rows,) = jax.vmap(pull, in_axes=1)(P)
        # A trace is large, and read once: q is one more row of the matrix that moves it.
        moved = jax.tree.map(lambda e: jnp.tensordot(jnp.concatenate([P[0], q[None]]), e, axes=1), e)
        new = ended(last, jax.tree.map(lambda m, row: m[:-1] + row, moved, rows))
        return jax.tree.map(lambda m: m[-1], moved), new

    def at_once(trace):
        eligible, trace = jax.vmap(one_example, in_axes=(0, 0, 1, 1))(trace, q, states, transport)
        return jax.tree.map(lambda a: jnp.sum(a, axis=0), eligible), trace

    def one_by_one(trace):
        def update(b, carry):
            total, trace = carry
            e, q_b = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, b, 0, keepdims=False), (trace, q))
            s, P = (lax.dynamic_index_in_dim(a, b, 1, keepdims=False) for a in (states, transport))
            eligible, e = one_example(e, q_b, s, P)
            trace = jax.tree.map(lambda all_, one: lax.dynamic_update_index_in_dim(all_, one, b, 0), trace, e)
            return jax.tree.map(jnp.add, total, eligible), trace

        return lax.fori_loop(0, len(q), update, (jax.tree.map(jnp.zeros_like, theta), trace))

    numbers = sum(e[0].size for e in jax.tree.leaves(trace))
    return lax.platform_dependent(trace, cpu=one_by_one if numbers >= LARGE else at_once, default=at_once)
