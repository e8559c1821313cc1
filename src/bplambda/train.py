"""`bplambda train`: train, and show what came of it."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from .config import Run
from .executors import in_this_process
from .reproduce import stoppable, train
from .runs import Store


def train_toy(runs: list[Run], folder: Path, again: str) -> int:
    """Trains a few seeds at once and prints a table of them. **Returns:** the exit code."""
    console, store = Console(), Store(folder)
    if stoppable(lambda: train(runs, store, in_this_process, console), console, again) is None:
        return 130
    table = Table(title=f"{runs[0].task}, T = {runs[0].length}, {runs[0].rule}", title_justify="left")
    for column in ("seed", "first error", "final error", "solved", "alignment"):
        table.add_column(column, justify="right")
    for run in runs:
        found = store.find(run)
        if found is None:
            raise RuntimeError(f"{run.name} was trained, but is not in {folder}")
        solved, numbers = "yes" if found.result["solved"] else "no", found.result
        cells = f"{found.metrics['error'][0]:.3f}", f"{numbers['error']:.4f}", solved, f"{numbers['alignment']:.3f}"
        table.add_row(str(run.seed), *cells)
    console.print(table)
    console.print(f"In {store.folder}: curves, figures and trained parameters of each seed.")
    return 0
