"""Backpropagation through time, whole and truncated: what the rest of the library does without."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from ..network import Network
from ._base import Carry, Gradients, Rule, TruncatingRule, Window, edges, finish


class BPTT(Rule):
    """Full backpropagation through time: the true gradient (Eq. 3). Any synthesiser is left as it is.

    A window must be a whole sequence: losses after its end are not seen.
    """

    needs_synthesiser: ClassVar[bool] = False

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        return _window(self, network, synthesiser, carry, window, n=None)


class TruncatedBPTT(TruncatingRule):
    """BPTT within `n` steps: no gradient crosses an edge. n = 1 is the paper's "no BPTT".

    Edges are counted from a window's end, every n steps: a window of a whole sequence is cut as the paper cuts it
    (appendix C), the remainder first.
    """

    needs_synthesiser: ClassVar[bool] = False

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        return _window(self, network, synthesiser, carry, window, self.n)


def NoBPTT() -> TruncatedBPTT:
    """The paper's "no BPTT": every step learns from its own loss alone. The same as `TruncatedBPTT(1)`."""
    return TruncatedBPTT(1)


def _window(rule: Rule, network, synthesiser, carry: Carry, window: Window, n: Int[Array, ""] | None):
    unrolled = rule._run(network, synthesiser, carry, window)
    # ∂L_{≥t}/∂s_t = ℓ_t + ∂L_{>t}/∂s_t, the losses beyond the next edge being unseen.
    steps = unrolled.sizes[0]
    inside = (~edges(steps, steps if n is None else n)).astype(network.dtype)
    future = unrolled.future(unrolled.loss_gradients, inside)
    unlearned = jax.tree.map(jnp.zeros_like, eqx.filter(synthesiser, eqx.is_inexact_array))
    none = jnp.zeros_like(future)
    gradients = Gradients(unrolled.gradient(unrolled.received(future)), unlearned)
    return gradients, *finish(unrolled, window.last, none, none)
