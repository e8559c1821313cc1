"""n-step synthetic gradients, as Jaderberg et al. (2017) train them."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..checks import real, require_finite, require_unit
from ..network import Network
from ._base import Carry, Gradients, TruncatingRule, Window, edges, finish, predict


class NStepSG(TruncatingRule):
    """Truncated BPTT, with a synthetic gradient at each edge (paper, section 2.3).

    The network backpropagates its losses and `scale` · g(s_n; θ) through the n steps between two edges. The
    synthesiser learns at the first of them, s_0, towards the n-step synthetic gradient (Eq. 9):

        G⁽ⁿ⁾_0 = Σ_{k=1..n} γ^{k−1} ∂L_k/∂s_0 + γⁿ g(s_n; θ)ᵀ ∂s_n/∂s_0

    Edges are counted from a window's end, every n steps: a window of a whole sequence is cut as the paper cuts it
    (appendix C), the remainder first.
    """

    gamma: Float[Array, ""] = eqx.field(converter=real, default=0.9)
    scale: Float[Array, ""] = eqx.field(converter=real, default=0.1)

    def __check_init__(self):
        require_unit("gamma", self.gamma)
        require_finite("scale", self.scale)

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        unrolled = self._run(network, synthesiser, carry, window)
        g, ahead, pull_theta = predict(synthesiser, unrolled, window.last)
        gamma, scale = self.gamma.astype(g.dtype), self.scale.astype(g.dtype)
        edge = edges(len(g), self.n)
        inside, at_edge = (~edge).astype(g.dtype), edge.astype(g.dtype)[:, None, None]

        synthetic = at_edge * scale * ahead
        cotangents = unrolled.received(synthetic + unrolled.future(unrolled.received(synthetic), inside))

        targets = unrolled.back(unrolled.received(at_edge * gamma * ahead), gamma * inside)
        at_start = jnp.concatenate([jnp.ones_like(at_edge[:1]), at_edge[:-1]])
        errors = at_start * (targets - g)
        learned = pull_theta(-errors / g.shape[1])
        return Gradients(unrolled.gradient(cotangents), learned), *finish(unrolled, window.last, ahead, errors)
