"""True-online BP(λ): online λ-SG exactly, for every step size, at the cost of accumulate BP(λ)."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..checks import require
from ..network import Network
from ..synthesiser import LinearSynthesiser
from ..unroll import ended
from ._base import Carry, Gradients, SteppingRule, Window, finish


class Dutch(NamedTuple):
    """The transported Dutch trace, the synthesiser one step ago, and whether there was a step."""

    trace: Float[Array, "B S S S+1"]
    previous: Float[Array, "S S+1"]
    started: Bool[Array, ""]


class TrueOnlineBPLambda(SteppingRule):
    """True-online BP(λ), for a linear synthesiser g(s; θ) = θ h with h = (s, 1).

    Accumulate BP(λ) only approximates online λ-SG, to first order in the step size α (Theorem 3.1). With a Dutch trace,
    as in true-online TD(λ) (van Seijen et al., 2016), the two are equal for every α:

        E_t     = γλ J_t E_{t−1} (I − α ⟨h_t h_tᵀ⟩) + I ⊗ h_t
        δ′_t    = Jᵀ_{t+1} (ℓ_{t+1} + γ θ_t h_{t+1}) − θ_{t−1} h_t
        θ_{t+1} = θ_t + α ⟨δ′_tᵀ E_t − (θ_t h_t − θ_{t−1} h_t) h_tᵀ⟩

    ⟨·⟩ is the batch average, with which it holds for batches too. A window is one step. The gradient it returns is
    (θ_t − θ_{t+1})/α: apply it with plain gradient descent of rate `alpha` before the next step. (`sequence_gradients`
    does so within a sequence.)

    **Arguments:** `lam`, `gamma`, `scale` as in `BPLambda`; `alpha`: α, the synthesiser's step size.
    """

    streams: ClassVar[bool] = True

    def window_size(self, steps: int) -> int:
        return 1

    def _check(self, network: Network, synthesiser: Any) -> None:
        super()._check(network, synthesiser)
        allowed = "a LinearSynthesiser: the Dutch trace is exact only for a linear one"
        require(type(synthesiser) is LinearSynthesiser, "synthesiser", type(synthesiser).__name__, allowed)

    def _memory(self, network: Network, synthesiser: Any, batch_size: int) -> Dutch:
        S = network.state_size
        zeros = jnp.zeros((batch_size, S, S, S + 1), network.dtype)
        return Dutch(zeros, jnp.zeros((S, S + 1), network.dtype), jnp.array(False))

    def advance(self, synthesiser: LinearSynthesiser, gradient: LinearSynthesiser) -> LinearSynthesiser:
        return jax.tree.map(lambda p, d: p - self.alpha.astype(p.dtype) * d, synthesiser, gradient)

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        unrolled = self._run(network, synthesiser, carry, window)
        steps, batch, S = unrolled.sizes
        require(steps == 1, "window", f"one of {steps} steps", "of one step: TrueOnlineBPLambda learns at every one")
        before, after = unrolled.states
        dtype = before.dtype
        (lam, gamma, scale), alpha = self._numbers(dtype), self.alpha.astype(dtype)
        memory = self._memory(network, synthesiser, batch) if carry.memory is None else carry.memory

        theta = jnp.concatenate([synthesiser.weight, synthesiser.bias[:, None]], axis=1)
        theta_before = jnp.where(memory.started, memory.previous, theta)
        h = jnp.concatenate([before, jnp.ones((batch, 1), theta.dtype)], axis=1)
        ahead = ended(window.last, jax.vmap(synthesiser)(after))[None]

        # (I − α⟨h hᵀ⟩) has rank at most B beside the identity: two thin products instead of one square one.
        faded = jnp.einsum("bijk,ck->bijc", memory.trace, h)
        E = memory.trace - alpha / batch * jnp.einsum("bijc,ck->bijk", faded, h)
        E = E + jnp.eye(S, dtype=h.dtype)[None, :, :, None] * h[:, None, None, :]

        g_before = h @ theta_before.T
        # One step back: there is no later one for a decay to act on.
        delta = unrolled.back(unrolled.received(gamma * ahead), gamma)[0] - g_before
        # E is large, and read once: δ′ is one more row of the matrix that moves it.
        rows = jnp.concatenate([unrolled.transport(gamma * lam)[0], delta[:, None]], axis=1)
        moved = jnp.einsum("bij,bjkl->bikl", rows, E)
        step = jnp.sum(moved[:, -1], axis=0) - (h @ theta.T - g_before).T @ h

        memory = ended(window.last, Dutch(moved[:, :-1], theta, jnp.array(True)))
        learned = eqx.tree_at(lambda g: (g.weight, g.bias), synthesiser, (-step[:, :S] / batch, -step[:, S] / batch))
        gradients = Gradients(unrolled.gradient(unrolled.received(scale * ahead)), learned)
        return gradients, *finish(unrolled, window.last, ahead, delta[None], memory)
