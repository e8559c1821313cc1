"""What a synthesiser should learn: the paper's G⁽ⁿ⁾, G^λ and interim G^{λ|H}."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .checks import require
from .network import Network
from .rules._base import Rule, predict
from .rules.parallel import DataParallel
from .shapes import time_and_batch
from .unroll import Unrolled, unroll


def lambda_weighted(
    unrolled: Unrolled, ahead: Float[Array, "K B S"], lam, gamma, horizon: int | Int[Array, ""] | None = None
) -> Float[Array, "K B S"]:
    """The λ-weighted synthetic gradients of a window by the recursion of appendix B (Eq. 24), in one reverse pass.

        G_t = Jᵀ_{t+1} [ℓ_{t+1} + γλ G_{t+1} + γ(1−λ) g_{t+1}],    G_{H−1} = Jᵀ_H [ℓ_H + γ g_H]

    **Arguments:** `ahead`, the bootstraps g_1 … g_K; `horizon`, H: nothing beyond s_H is looked at; K if left out.

    **Returns:** G^{λ|H} at s_0 … s_{K-1}, zero from H on. With H = K = T and g_T = 0 it is G^λ.
    """
    steps = len(ahead)
    t = jnp.arange(1, steps + 1)[:, None, None]
    last = steps if horizon is None else horizon
    received = unrolled.received(jnp.where(t == last, gamma, gamma * (1 - lam)) * ahead)
    if horizon is not None:
        flat = unrolled.network.flatten(received)
        received = unrolled.network.unflatten(jnp.where(t <= horizon, flat, 0))
    return unrolled.back(received, gamma * lam)


class Targets(NamedTuple):
    """The paper's targets at the states s_0 … s_{T−1}.

    - `n_step`: G⁽ⁿ⁾_t (Eq. 9) at `[n − 1, t]`, n = 1 … T; beyond the sequence's end there is nothing more to add.
    - `lam`: G^λ_t (Eq. 11) at `[t]`.
    - `interim`: G^{λ|H}_t (Eq. 12) at `[H − 1, t]`, H = 1 … T; zero for t ≥ H.
    """

    n_step: Float[Array, "T T B S"]
    lam: Float[Array, "T B S"]
    interim: Float[Array, "T T B S"]


def synthetic_gradient_targets(network: Network, synthesiser: Any, rule: Rule, xs, ys, weights=None) -> Targets:
    """All targets of a sequence, from their definitions as sums: for analysis and tests, O(T³) in memory.

    **Arguments:** as for `sequence_gradients`; λ and γ are the rule's (1 where it has none).

    **Returns:** a `Targets` of arrays, time first, then batch.
    """
    while isinstance(rule, DataParallel):
        rule = rule.rule
    rule._check(network, synthesiser)
    require(synthesiser is not None, "synthesiser", synthesiser, "a synthesiser: the targets bootstrap on it")
    return _targets(network, synthesiser, getattr(rule, "lam", 1.0), getattr(rule, "gamma", 1.0), xs, ys, weights)


@eqx.filter_jit
def _targets(network, synthesiser, lam, gamma, xs, ys, weights) -> Targets:
    _, batch = time_and_batch("xs", xs)
    unrolled = unroll(network, network.zero_state(batch), xs, ys, weights)
    _, g, _ = predict(synthesiser, unrolled, last=True)
    lam, gamma, steps = jnp.asarray(lam, g.dtype), jnp.asarray(gamma, g.dtype), len(g)

    @jax.vmap
    @jax.vmap
    def jacobian(x, s):
        return jax.jacrev(lambda s: network.flatten(network.cell(x, network.unflatten(s))))(s)

    def products(D, at):
        """D[t] = ∂s_τ/∂s_t, one τ after the other; and what L_τ and g_τ are worth at each s_t before it."""
        tau, J, l_tau, g_tau = at
        D = jnp.where((t < tau)[:, None, None, None], jnp.einsum("bij,tbjk->tbik", J, D), D)
        worth = jnp.einsum("nbi,tbij->ntbj", jnp.stack([l_tau, g_tau]), D)
        return D, jnp.where((t < tau)[None, :, None, None], worth, 0)

    def powers(number):
        """From the zeroth on, as products: the power of a zero has no derivative."""
        return jnp.cumprod(jnp.concatenate([jnp.ones(1, g.dtype), jnp.broadcast_to(number, steps)]))

    t = jnp.arange(steps)
    identity = jnp.broadcast_to(jnp.eye(g.shape[-1], dtype=g.dtype), (steps, batch, g.shape[-1], g.shape[-1]))
    J = jacobian(xs, unrolled.states[:-1])
    losses = network.flatten(unrolled.loss_gradients)
    _, worth = jax.lax.scan(products, identity, (t + 1, J, losses, g))

    # From (τ, t) to (n, t), τ = t + n; there is nothing beyond the sequence's end.
    n = jnp.arange(1, steps + 1)[:, None]
    tau = n + t[None]
    inside, tau = (tau <= steps)[..., None, None], jnp.minimum(tau, steps)
    dL, dg = (jnp.where(inside, worth[tau - 1, i, t[None]], 0) for i in (0, 1))

    # G⁽ⁿ⁾_t = Σ_{k=1..n} γ^{k−1} ∂L_{t+k}/∂s_t + γⁿ g_{t+n}ᵀ ∂s_{t+n}/∂s_t
    discount = powers(gamma)[:, None, None, None]
    n_step = jnp.cumsum(discount[:-1] * dL, axis=0) + discount[1:] * dg

    # G^{λ|H}_t = (1−λ) Σ_{n=1..H−t−1} λ^{n−1} G⁽ⁿ⁾_t + λ^{H−t−1} G⁽ᴴ⁻ᵗ⁾_t, and G^λ is the one with H = T.
    n, longest = n[None], jnp.arange(1, steps + 1)[:, None, None] - t[None, None]
    weight = powers(lam)[n - 1] * jnp.where(n < longest, 1 - lam, jnp.where(n == longest, 1.0, 0.0))
    interim = jnp.einsum("hnt,ntbi->htbi", weight, n_step)
    return Targets(n_step, interim[-1], interim)
