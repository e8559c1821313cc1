"""The runs of the toy task, shared by its figures and its row of Table 1."""

from typing import Any

from ..config import Run, run_of
from ._base import Preset
from .methods import METHODS


def fixed(seeds: int, **settings: Any) -> list[Run]:
    """Runs whose linear RNN stays as it is: T = 10, γ = 1, 10 epochs."""
    return [
        Run(variant="fixed", length=10, gamma=1.0, synthesiser_rate=1e-4, epochs=10, seed=seed, **settings)
        for seed in range(seeds)
    ]


def wanted(method: str) -> dict[str, Any]:
    """What tells the runs of a column from the others."""
    return {"task": "toy", "variant": "plastic", **METHODS[method]}


def plastic(method: str, lengths: tuple[int, ...], seeds: int) -> list[Run]:
    """Runs whose tanh RNN learns, by a column of Table 1."""
    return [run_of("toy", length=T, seed=seed, **METHODS[method]) for T in lengths for seed in range(seeds)]


def lengths(preset: Preset) -> tuple[int, ...]:
    return (10, 20) if preset == "quick" else tuple(range(10, 101, 10))


def seeds(preset: Preset, given: int | None) -> int:
    return given or (3 if preset == "quick" else 5)
