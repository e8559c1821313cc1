"""Sequence training, task by task."""

from ..config import SHARED, Run
from . import copyrepeat, seqmnist, toy
from ._base import Learned, Trainer, varied

_TRAINERS = {"toy": toy.TRAINER, "seqmnist": seqmnist.TRAINER, "copyrepeat": copyrepeat.TRAINER}


def trainer(run: Run) -> Trainer:
    """How a run's task is trained."""
    return _TRAINERS[run.task]


def groups(runs: list[Run]) -> list[list[Run]]:
    """The runs as groups that one program can train, no larger than is fast."""
    together: dict[tuple, list[Run]] = {}
    for run in dict.fromkeys(runs):
        together.setdefault(tuple(getattr(run, name) for name in SHARED), []).append(run)
    cuts = ((group, trainer(group[0]).together) for group in together.values())
    return [group[i : i + most] for group, most in cuts for i in range(0, len(group), most)]


__all__ = ["Learned", "Trainer", "groups", "trainer", "varied"]
