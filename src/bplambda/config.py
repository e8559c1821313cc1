"""What a run is: one type for the command line, the run store and the tests."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from .checks import require, require_int

RuleName = Literal["bplambda", "nstep", "truncated", "bptt"]

# Which hyper-parameters a rule has; the others do not tell two runs apart.
HYPERPARAMETERS: dict[RuleName, tuple[str, ...]] = {
    "bplambda": ("lam", "gamma", "scale"),
    "nstep": ("n", "gamma", "scale"),
    "truncated": ("n",),
    "bptt": (),
}


@dataclass(frozen=True)
class Run:
    """One training run on the toy task, whole: the same `Run` gives the same numbers.

    `variant` is "plastic" (three pairs, a tanh RNN that learns) or "fixed" (one pair, a linear RNN that stays as it is
    while its synthesiser learns).
    """

    task: Literal["toy"] = "toy"
    variant: Literal["plastic", "fixed"] = "plastic"
    rule: RuleName = "bplambda"
    length: int = 20
    seed: int = 0
    lam: float = 1.0
    n: int = 5
    gamma: float = 0.9
    scale: float = 1.0
    epochs: int = 250
    network_rate: float = 1e-3
    readout_rate: float = 1e-3
    synthesiser_rate: float = 1e-3
    units: int = 30
    batch_size: int = 10
    batches: int = 100

    def __post_init__(self):
        for name in ("length", "n", "epochs", "units", "batch_size", "batches"):
            require_int(name, getattr(self, name), minimum=1)
        require_int("seed", self.seed, minimum=0)
        for name in ("lam", "gamma"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        for name in ("network_rate", "readout_rate", "synthesiser_rate"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Those that this run's rule has; a network that stays as it is receives nothing for `scale` to scale."""
        names = HYPERPARAMETERS[self.rule]
        return tuple(name for name in names if self.variant == "plastic" or name != "scale")

    def to_json(self) -> dict[str, Any]:
        """All that matters to the run's numbers."""
        unused = {"lam", "n", "gamma", "scale"} - set(self.hyperparameters)
        unused |= {"synthesiser_rate"} if self.rule in ("truncated", "bptt") else set()
        unused |= {"network_rate", "readout_rate"} if self.variant == "fixed" else set()
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in unused}

    @property
    def name(self) -> str:
        """A readable prefix and a hash of the whole configuration: the name of the run's folder."""
        numbers = [f"{name}{getattr(self, name):g}" for name in self.hyperparameters]
        prefix = [self.task, self.variant, f"T{self.length}", self.rule, *numbers, f"seed{self.seed}"]
        return "-".join([*prefix, digest(self.to_json())])


def digest(value: Any) -> str:
    """A short, stable hash of anything JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


# What one compiled program shares; all else may vary under its vmap.
SHARED = ("task", "variant", "rule", "length", "epochs", "units", "batch_size", "batches")


def groups(runs: list[Run], largest: int = 32) -> list[list[Run]]:
    """The runs as groups that one program can train under one `vmap`, at most `largest` together."""
    together: dict[tuple, list[Run]] = {}
    for run in dict.fromkeys(runs):
        together.setdefault(tuple(getattr(run, name) for name in SHARED), []).append(run)
    return [group[i : i + largest] for group in together.values() for i in range(0, len(group), largest)]
