"""Trains what is missing and shows how far it is; and `bplambda train`, which shows what came of it.

Nothing here draws: what draws takes longer to import than all else.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .config import Run, TaskName
from .executors import Executor, Failure
from .runs import Finished, Store
from .training import groups, trainer
from .work import Progress as Made

T = TypeVar("T")
LOG_EVERY = 60.0  # seconds, between two lines in a log
COMPILING = 10.0  # seconds for each group, about, if none of its programs is in the cache

COLUMNS: dict[TaskName, dict[str, str]] = {
    "toy": {"error": "final error", "solved": "solved", "alignment": "alignment"},
    "seqmnist": {"best_epoch": "best epoch", "validation_accuracy": "validation, %", "test_accuracy": "test, %"},
    "copyrepeat": {"error": "bits", "level": "levels solved", "solved_length": "longest solved"},
}


CAPTIONS: dict[TaskName, str] = {
    "toy": "alignment: cosine between the synthetic and the true gradient, over the last tenth of the epochs",
}


def seconds_of(runs: list[Run], found: list[Finished]) -> float:
    """How long the runs take on one core, by the speed of those that have been found, task by task."""
    total = 0.0
    for run in runs:
        speeds = [f.result["us_per_run_and_step"] for f in found if f.run.task == run.task]
        known = [speed for speed in speeds if speed]
        total += run.steps * 1e-6 * (statistics.median(known) if known else trainer(run).microseconds)
    return total


def train(runs: list[Run], store: Store, executor: Executor, console: Console, workers: int = 1) -> list[Failure]:
    """Trains the runs that the store does not have yet, with a bar that shows how far it is.

    **Returns:** what failed. Ctrl-C leaves everything resumable.
    """
    store.prepare()
    runs = list(dict.fromkeys(runs))
    found = {run: store.find(run) for run in runs}
    missing = [run for run, f in found.items() if f is None]
    there = [f for f in found.values() if f]
    seconds = (seconds_of(missing, there) + COMPILING * len(groups(missing))) / workers
    console.print(f"{len(runs)} runs, {len(there)} of them done, the rest in about {_duration(seconds)}.")
    if not missing:
        return []
    for run in {run.task: run for run in missing}.values():
        trainer(run).data(run)  # if there is something wrong with it, then let it be said here
    # The longest first: no worker waits at the end.
    todo = sorted(_todo(runs, set(missing), store), key=lambda group: seconds_of(group, there), reverse=True)
    costs = [seconds_of(group, there) for group in todo]
    total = sum(costs)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    done, steps, began = [0.0] * len(todo), [0.0] * len(todo), time.perf_counter()
    said = [began]
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"training {len(missing)} runs", total=total, rate="compiling")

        def on_progress(i: int, made: Made) -> None:
            share = made.epochs / todo[i][0].epochs
            done[i] = share * costs[i]
            steps[i] = share * sum(run.steps for run in todo[i])
            rate = sum(steps) / (time.perf_counter() - began)
            latest = f"{todo[i][0].label}, epoch {made.epochs}: error {made.error:.3f}"
            progress.update(bar, completed=sum(done), rate=f"{rate / 1e3:.0f}k steps/s", description=latest)
            if not console.is_terminal and time.perf_counter() > said[0] + LOG_EVERY:  # where no bar can be drawn
                said[0] = time.perf_counter()
                console.print(f"{100 * sum(done) / total:.0f} % after {_duration(said[0] - began)}: {latest}")

        return executor(todo, store, on_progress)


def _todo(runs: list[Run], missing: set[Run], store: Store) -> list[list[Run]]:
    """The groups to train. One that was stopped goes on as it was, for the same numbers to the last bit; of the others
    only what is missing."""
    todo = []
    for group in groups(runs):
        rest = [run for run in group if run in missing]
        for begun in store.begun(group) if rest else []:
            if any(run in rest for run in begun):
                todo.append(begun)
                rest = [run for run in rest if run not in begun]
        if rest:
            todo.append(rest)
    return todo


def stoppable(work: Callable[[], T], console: Console, again: str) -> T | None:
    """Runs `work`; Ctrl-C stops it with a word on how to go on."""
    try:
        return work()
    except KeyboardInterrupt:
        console.print(f"\nStopped. All that was trained is kept; to go on from there: [bold]{again}[/]")
        return None


def train_seeds(runs: list[Run], folder: Path, executor: Executor, again: str) -> int:
    """Trains a few seeds at once and prints a table of them. **Returns:** the exit code."""
    console, store, task = Console(), Store(folder), runs[0].task
    if stoppable(lambda: train(runs, store, executor, console), console, again) is None:
        return 130
    rule = ", ".join([runs[0].rule, *(f"{name} = {getattr(runs[0], name):g}" for name in runs[0].hyperparameters)])
    caption = CAPTIONS.get(task) if runs[0].has_synthesiser else None
    table = Table(title=f"{runs[0].label}, {rule}", title_justify="left", caption=caption, caption_justify="left")
    for column in ("seed", "first error", *COLUMNS[task].values()):
        table.add_column(column, justify="right")
    for run in runs:
        found = store.find(run)
        if found is None:
            raise RuntimeError(f"{run.name} was trained, but is not in {folder}")
        table.add_row(str(run.seed), *cells(found))
    console.print(table)
    console.print(
        f"In {store.folder}, for each seed: curves (metrics.npz), numbers (result.json), parameters (checkpoint.npz)."
    )
    return 0


def cells(found: Finished) -> list[str]:
    """The figures of a run, as they are shown."""
    shown = [f"{found.metrics['error'][0]:.3f}"]
    for name in COLUMNS[found.run.task]:
        value = found.result[name]
        if name == "alignment" and not found.run.has_synthesiser:
            shown.append("")
        else:
            shown.append({True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:.4g}")
    return shown


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
