"""Backpropagation through time, whole and truncated: what the rest of the library does without."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..checks import require_int
from ..network import Network
from ._base import Carry, Gradients, Rule, Window, finish


class BPTT(Rule):
    """Full backpropagation through time: the true gradient (Eq. 3). Any synthesiser is left as it is.

    A window must be a whole sequence: losses after its end are not seen.
    """

    needs_synthesiser: ClassVar[bool] = False

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        return _window(self, network, synthesiser, carry, window)


class TruncatedBPTT(Rule):
    """BPTT within windows of `n` steps: no gradient crosses a window's edge. n = 1 is the paper's "no BPTT"."""

    n: int = eqx.field(static=True)
    needs_synthesiser: ClassVar[bool] = False

    def __check_init__(self):
        require_int("n", self.n, minimum=1)

    @property
    def window_size(self) -> int:
        return self.n

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        return _window(self, network, synthesiser, carry, window)


def NoBPTT() -> TruncatedBPTT:
    """The paper's "no BPTT": every step learns from its own loss alone. The same as `TruncatedBPTT(1)`."""
    return TruncatedBPTT(1)


def _window(rule: Rule, network: Network, synthesiser: Any, carry: Carry, window: Window):
    unrolled = rule._run(network, synthesiser, carry, window)
    # ∂L_{≥t}/∂s_t = ℓ_t + ∂L_{>t}/∂s_t, the losses beyond the window's end being unseen.
    future = unrolled.back(unrolled.loss_gradients, decay=1)
    cotangents = unrolled.loss_gradients.at[:-1].add(future[1:])
    unlearned = jax.tree.map(jnp.zeros_like, eqx.filter(synthesiser, eqx.is_inexact_array))
    synthetic = jnp.zeros_like(cotangents)
    return Gradients(unrolled.gradient(cotangents), unlearned), *finish(unrolled, window.last, synthetic)
