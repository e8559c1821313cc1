"""The settings of the toy task, shared by its figures and its row of Table 1."""

from typing import Any

from ..config import Run
from ._base import Preset

LAMBDAS = (0.0, 0.5, 1.0)
COLOURS = {0.0: "tab:orange", 0.5: "tab:purple", 1.0: "tab:green"}
N_COLOURS = {1: "tab:gray", 2: "tab:cyan", 3: "tab:blue", 4: "tab:olive", 5: "tab:red"}

# The paper states neither. With these, on seeds that no result uses, BP(1) solved T = 20 on 3 of 3, T = 50 on 6 of 6,
# and T = 100 on 1 of 6; larger rates reach T = 100 more often, but lose shorter tasks again after solving them.
RATE, SCALE = 1e-3, 1.0

# The columns of Table 1. The synthetic gradient of n-step SG is scaled by 0.1, as the paper says.
METHODS: dict[str, dict[str, Any]] = {
    **{f"bptt{n}": {"rule": "truncated", "n": n} for n in (2, 3, 4, 5)},
    **{f"sg{n}": {"rule": "nstep", "n": n, "scale": 0.1} for n in (2, 3, 4, 5)},
    "none": {"rule": "truncated", "n": 1},
    **{f"bp{lam:g}": {"rule": "bplambda", "lam": lam, "scale": SCALE} for lam in LAMBDAS},
}
TITLES = {
    **{f"bptt{n}": f"BPTT n={n}" for n in (2, 3, 4, 5)},
    **{f"sg{n}": f"SG n={n}" for n in (2, 3, 4, 5)},
    "none": "n=1",
    **{f"bp{lam:g}": f"BP({lam:g})" for lam in LAMBDAS},
}


def fixed(seeds: int, **settings: Any) -> list[Run]:
    """Runs whose linear RNN stays as it is: T = 10, γ = 1, 10 epochs."""
    return [
        Run(variant="fixed", length=10, gamma=1.0, synthesiser_rate=1e-4, epochs=10, seed=seed, **settings)
        for seed in range(seeds)
    ]


def plastic(method: str, lengths: tuple[int, ...], seeds: int) -> list[Run]:
    """Runs whose tanh RNN learns, by a column of Table 1."""
    rates = {"network_rate": RATE, "readout_rate": RATE, "synthesiser_rate": 1e-3}
    return [Run(length=T, seed=seed, **rates, **METHODS[method]) for T in lengths for seed in range(seeds)]


def wanted(method: str) -> dict[str, Any]:
    """What tells the runs of a column from the others in a store."""
    return {"variant": "plastic", "network_rate": RATE, "epochs": 250, **METHODS[method]}


def lengths(preset: Preset) -> tuple[int, ...]:
    return (10, 20) if preset == "quick" else tuple(range(10, 101, 10))


def seeds(preset: Preset, given: int | None) -> int:
    return given or (3 if preset == "quick" else 5)
