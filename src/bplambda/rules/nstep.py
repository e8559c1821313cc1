"""n-step synthetic gradients, as Jaderberg et al. (2017) train them."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..checks import real, require_finite, require_int, require_unit
from ..network import Network
from ._base import Carry, Gradients, Rule, Window, finish, predict


class NStepSG(Rule):
    """Truncated BPTT in windows of `n` steps, with a synthetic gradient at each window's end (paper, section 2.3).

    The network backpropagates its losses and `scale` · g(s_K; θ) through the window. The synthesiser learns at the
    window's start, towards the n-step synthetic gradient (Eq. 9):

        G⁽ⁿ⁾_0 = Σ_{k=1..n} γ^{k−1} ∂L_k/∂s_0 + γⁿ g(s_n; θ)ᵀ ∂s_n/∂s_0
    """

    n: int = eqx.field(static=True)
    gamma: Float[Array, ""] = eqx.field(converter=real, default=0.9)
    scale: Float[Array, ""] = eqx.field(converter=real, default=0.1)

    def __check_init__(self):
        require_int("n", self.n, minimum=1)
        require_unit("gamma", self.gamma)
        require_finite("scale", self.scale)

    @property
    def window_size(self) -> int:
        return self.n

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        unrolled = self._run(network, synthesiser, carry, window)
        g, ahead, pull_theta = predict(synthesiser, unrolled, window.last)
        gamma, scale = self.gamma.astype(g.dtype), self.scale.astype(g.dtype)

        received = unrolled.loss_gradients.at[-1].add(scale * ahead[-1])
        future = unrolled.back(received, decay=1)
        cotangents = received.at[:-1].add(future[1:])

        target = unrolled.back(unrolled.loss_gradients.at[-1].add(gamma * ahead[-1]), gamma)[0]
        error = jnp.zeros_like(g).at[0].set((g[0] - target) / g.shape[1])
        return Gradients(unrolled.gradient(cotangents), pull_theta(error)), *finish(unrolled, window.last, ahead)
