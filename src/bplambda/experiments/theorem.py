"""Theorem 3.1, measured: nothing is trained."""

from functools import cache

import jax

from ..verify import theorem as measured
from ._base import Claim, Experiment, rounded


@cache
def _measured() -> measured.Theorem:
    with jax.enable_x64(True):
        return measured.theorem(seed=0)


def claims(finished) -> list[Claim]:
    found = _measured()
    return [
        Claim(
            "accumulate BP(λ) tends to online λ-SG as α tends to 0",
            f"the ratio goes as α^{found.slope:.2f}; it is {found.accumulate[-1]:.1e} at α = {found.alphas[-1]:g}",
            abs(found.slope - 1) < 0.1,
        )
    ]


def data(finished):
    return {name: rounded(curve, 20) for name, curve in _measured()._asdict().items()}


EXPERIMENT = Experiment(
    "theorem",
    "Theorem 3.1: accumulate BP(λ) approaches online λ-SG",
    "Distance between the synthesiser that accumulate BP(λ) arrives at and that of online λ-SG, relative to the way it "
    "has come, against the step size α. True-online BP(λ) equals online λ-SG; with the restart as the paper writes it, "
    "the distance does not fall.",
    lambda preset, seeds: [],
    lambda finished: measured.plot(_measured()),
    data,
    claims,
)
