"""Sequence training, task by task."""

from dataclasses import fields

from ..config import Run
from . import copyrepeat, seqmnist, toy
from ._base import Learned, Trainer, Varied, varied

_TRAINERS = {"toy": toy.TRAINER, "seqmnist": seqmnist.TRAINER, "copyrepeat": copyrepeat.TRAINER}
_SHARED = tuple(field.name for field in fields(Run) if field.name not in Varied._fields)


def trainer(run: Run) -> Trainer:
    """How a run's task is trained."""
    return _TRAINERS[run.task]


def groups(runs: list[Run]) -> list[list[Run]]:
    """The runs as groups that one program can train, no larger than is fast."""
    together: dict[tuple, list[Run]] = {}
    for run in dict.fromkeys(runs):
        together.setdefault(tuple(getattr(run, name) for name in _SHARED), []).append(run)
    cuts = ((group, trainer(group[0]).together) for group in together.values())
    return [group[i : i + most] for group, most in cuts for i in range(0, len(group), most)]


__all__ = ["Learned", "Trainer", "groups", "trainer", "varied"]
