"""`bplambda train`: train, and show what came of it."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from .config import Run, TaskName
from .executors import Executor
from .reproduce import stoppable, train
from .runs import Finished, Store

COLUMNS: dict[TaskName, dict[str, str]] = {
    "toy": {"error": "final error", "solved": "solved", "alignment": "alignment"},
    "seqmnist": {"best_epoch": "best epoch", "validation_accuracy": "validation, %", "test_accuracy": "test, %"},
    "copyrepeat": {"error": "bits", "level": "levels solved", "solved_length": "longest solved"},
}


def train_seeds(runs: list[Run], folder: Path, executor: Executor, again: str) -> int:
    """Trains a few seeds at once and prints a table of them. **Returns:** the exit code."""
    console, store, task = Console(), Store(folder), runs[0].task
    if stoppable(lambda: train(runs, store, executor, console), console, again) is None:
        return 130
    table = Table(title=f"{runs[0].label}, {runs[0].rule}", title_justify="left")
    for column in ("seed", "first error", *COLUMNS[task].values()):
        table.add_column(column, justify="right")
    for run in runs:
        found = store.find(run)
        if found is None:
            raise RuntimeError(f"{run.name} was trained, but is not in {folder}")
        table.add_row(str(run.seed), *cells(found))
    console.print(table)
    console.print(f"In {store.folder}: curves, figures and trained parameters of each seed.")
    return 0


def cells(found: Finished) -> list[str]:
    """The figures of a run, as they are shown."""
    shown = [f"{found.metrics['error'][0]:.3f}"]
    for name in COLUMNS[found.run.task]:
        value = found.result[name]
        shown.append({True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:.4g}")
    return shown
