"""The online λ-SG algorithm: the T² definition that Theorem 3.1 compares BP(λ) with. For reading and for proofs."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..network import Network
from ..targets import lambda_weighted
from ..timeloop import over_time_and_batch, parameters
from ..unroll import ended
from ._base import Carry, Gradients, SteppingRule, Window, finish


class OnlineLambdaSG(SteppingRule):
    """Online λ-SG (paper, section 3.3): at every horizon H, learn anew from all the states so far (Eq. 13).

        θ^H_k = θ^H_{k−1} + α (G^{λ|H}_k − g(s_k; θ^H_{k−1}))ᵀ ∇g(s_k; θ^H_{k−1}),      k = 0 … H−1

    Each horizon starts again from θ_init, as in van Seijen et al. (2016). (The paper writes θ^t_0 = θ^{t−1}_{t−1},
    which would count every state many times over; Theorem 3.1 does not hold for it.) The targets bootstrap on
    g(s_t; θ_{t−1}), θ_t being the result at horizon t.

    The synthesiser moves within the sequence, by its own step size: its gradient is (θ_init − θ_T)/α, so that plain
    gradient descent with rate α arrives at θ_T. Costs O(T²) steps.

    **Arguments:** `lam`, `gamma`, `scale` as in `BPLambda`; `alpha`: α, the synthesiser's step size.
    """

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        unrolled = self._run(network, synthesiser, carry, window)
        s, dtype = unrolled.states, unrolled.states.dtype
        (lam, gamma, scale), alpha = self._numbers(dtype), self.alpha.astype(dtype)
        theta_init, rebuild = parameters(synthesiser)
        steps = len(s) - 1

        def horizon(carry, H):
            theta, ahead = carry
            g_H = jax.vmap(rebuild(theta))(s[H])
            ahead = ahead.at[H - 1].set(jnp.where(steps == H, ended(window.last, g_H), g_H))
            targets = lambda_weighted(unrolled, ahead, lam, gamma, H)

            def learn(theta, k):
                g, pull = jax.vjp(lambda p: jax.vmap(rebuild(p))(s[k]), theta)
                (step,) = pull((targets[k] - g) / len(g))
                return jax.tree.map(lambda p, d: jnp.where(k < H, p + alpha * d, p), theta, step), None

            theta, _ = lax.scan(learn, theta_init, jnp.arange(steps))
            return (theta, ahead), None

        start = theta_init, jnp.zeros_like(s[1:])
        (theta, ahead), _ = lax.scan(horizon, start, jnp.arange(1, steps + 1))
        gradients = Gradients(
            unrolled.gradient(unrolled.received(scale * ahead)),
            jax.tree.map(lambda p, q: (p - q) / alpha, theta_init, theta),
        )
        errors = lambda_weighted(unrolled, ahead, lam, gamma) - over_time_and_batch(synthesiser)(s[:-1])
        return gradients, *finish(unrolled, window.last, ahead, errors)
