"""The offline λ-SG algorithm: what BP(λ) does online, done at the end of a sequence."""

from typing import Any

from ..network import Network
from ..targets import lambda_weighted
from ._base import Carry, Gradients, LambdaRule, Window, finish, predict


class OfflineLambdaSG(LambdaRule):
    """Offline λ-SG (paper, section 3.2): regression on the λ-weighted synthetic gradient, v_t = G^λ_t in Eq. 7.

    It needs the whole sequence before it can learn. With the synthesiser held over the sequence, its gradient equals
    the sum of accumulate BP(λ)'s.

    **Arguments:** `lam`, `gamma`, `scale` as in `BPLambda`.
    """

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        unrolled = self._run(network, synthesiser, carry, window)
        g, ahead, pull_theta = predict(synthesiser, unrolled, window.last)
        lam, gamma, scale = self._numbers(g.dtype)

        errors = lambda_weighted(unrolled, ahead, lam, gamma) - g
        gradients = Gradients(
            unrolled.gradient(unrolled.received(scale * ahead)),
            pull_theta(-errors / g.shape[1]),
        )
        return gradients, *finish(unrolled, window.last, ahead, errors)
