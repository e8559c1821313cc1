"""Accumulate BP(λ): the paper's algorithm, exact for every window size."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ..network import Network
from ..targets import lambda_weighted
from ..traces import accumulate, zero_trace
from ._base import Carry, Gradients, LambdaRule, Window, finish, predict


class BPLambda(LambdaRule):
    """Accumulate BP(λ) (paper, section 3.4 and Algorithm 1).

    With the TD error and the trace (Eqs. 15 and 16)

        δ_t = [ℓ_{t+1} + γ g(s_{t+1}; θ)]ᵀ J_{t+1} − g(s_t; θ),      e_t = γλ J_t e_{t−1} + ∇g(s_t; θ)

    the synthesiser's gradient is −Σ_t δ_tᵀ e_t, and the network's is Σ_t [ℓ_t + scale · g(s_t; θ)]ᵀ ∂s_t/∂Ψ.

    One implementation serves every window of K steps. With q_t = δ_t + γλ Jᵀ_{t+1} q_{t+1}, zero at the window's end,
    the sum of Algorithm 1's updates within the window is exactly

        Σ_t q_tᵀ ∇g(s_t; θ) + q_0ᵀ e,

    where e is the trace that enters. K = 1 is Algorithm 1: an update at every step, memory constant in time. A whole
    sequence in one window never forms a trace: O(S²) per step.

    Algorithm 1 as it is written moves e at every step, O(S⁴) for a linear synthesiser. Where e is large, it is left
    where it is for S/4 steps, and qᵀe is taken from the other side: qᵀ through the Jacobians of those steps, as they
    were, and then e. The same products in another order, hence the same numbers to rounding: O(S³) per step, for any
    window. (A synthesiser that is not linear in its parameters has its trace moved once a window.) `jax.grad` does not
    go through this: whoever differentiates a rule takes windows of at least S/4 steps.

    **Arguments:**

    - `lam`: λ, the trace decay: 0 bootstraps alone (biased), 1 regresses on the true future gradient.
    - `gamma`: γ, the discount of future gradients.
    - `scale`: of the synthetic gradient that the network receives; it does not touch the synthesiser's targets.
    """

    streams: ClassVar[bool] = True

    def fits(self, window: int, steps: int) -> bool:
        return True

    def _memory(self, network: Network, synthesiser: Any, batch_size: int):
        return zero_trace(synthesiser, batch_size, network.state_size)

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        unrolled = self._run(network, synthesiser, carry, window)
        g, ahead, pull_theta = predict(synthesiser, unrolled, window.last)
        lam, gamma, scale = self._numbers(g.dtype)

        q = lambda_weighted(unrolled, ahead, lam, gamma) - g
        learned, trace = pull_theta(q), carry.memory
        if trace is None and window.last is not True:
            trace = self._memory(network, synthesiser, g.shape[1])
        if trace is not None:
            before, trace = accumulate(trace, q[0], synthesiser, unrolled, gamma * lam, window.last)
            learned = jax.tree.map(jnp.add, learned, before)
        gradients = Gradients(
            unrolled.gradient(unrolled.received(scale * ahead)),
            jax.tree.map(lambda d: -d / g.shape[1], learned),
        )
        return gradients, *finish(unrolled, window.last, ahead, q, trace)
