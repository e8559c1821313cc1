"""Trains what is missing, shows how far it is, and compares the result with the paper."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .config import Run
from .executors import Executor, Failure
from .experiments import EXPERIMENTS
from .experiments._base import Preset
from .report import Section, build
from .runs import Finished, Store
from .training import groups, trainer
from .work import Progress as Made

T = TypeVar("T")
LOG_EVERY = 60.0  # seconds, between two lines in a log


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
    seconds = seconds_of(missing, there) / workers
    console.print(f"{len(runs)} runs, {len(there)} of them done, the rest in about {_duration(seconds)}.")
    if not missing:
        return []
    for run in {run.task: run for run in missing}.values():
        trainer(run).data(run)  # if there is something wrong with it, then let it be said here
    # A group that was stopped goes on as it was, for the same numbers to the last bit; else only what is missing.
    todo = []
    for group in groups(runs):
        rest = [run for run in group if found[run] is None]
        if rest:
            todo.append(group if store.under_way(group) else rest)
    costs = {id(group): seconds_of(group, there) for group in todo}
    todo.sort(key=lambda group: costs[id(group)], reverse=True)  # the longest first: no worker waits at the end
    total = sum(costs.values())
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
            done[i] = share * costs[id(todo[i])]
            steps[i] = share * sum(run.steps for run in todo[i])
            rate = sum(steps) / (time.perf_counter() - began)
            latest = f"{todo[i][0].label}, epoch {made.epochs}: error {made.error:.3f}"
            progress.update(bar, completed=sum(done), rate=f"{rate / 1e3:.0f}k steps/s", description=latest)
            if not console.is_terminal and time.perf_counter() > said[0] + LOG_EVERY:  # where no bar can be drawn
                said[0] = time.perf_counter()
                console.print(f"{100 * sum(done) / total:.0f} % after {_duration(said[0] - began)}: {latest}")

        return executor(todo, store, on_progress)


def reproduce(
    targets: list[str],
    preset: Preset,
    seeds: int | None,
    store: Store,
    out: Path,
    executor: Executor,
    workers: int,
    again: str,
) -> int:
    """Trains and draws the targets. **Returns:** the exit code."""
    console = Console()
    runs = [run for name in targets for run in EXPERIMENTS[name].runs(preset, seeds)]
    failures = stoppable(lambda: train(runs, store, executor, console, workers), console, again)
    if failures is None:
        return 130
    wanted = {run.name for run in runs}
    finished = [f for f in store.finished() if f.run.name in wanted] if runs else []
    page, sections = build(finished, out, targets)
    compare(sections, console)
    console.print(f"The page: {page.resolve()}")
    for failure in failures:
        names = ", ".join(run.name for run in failure.group[:3]) + (" …" if len(failure.group) > 3 else "")
        console.print(f"[bold red]Not trained:[/] {names}: {failure.reason}")
    if failures:
        console.print(f"The rest is safe. To try again: {again}")
    return 1 if failures else 0


def stoppable(work: Callable[[], T], console: Console, again: str) -> T | None:
    """Runs `work`; Ctrl-C stops it with a word on how to go on."""
    try:
        return work()
    except KeyboardInterrupt:
        console.print(f"\nStopped. All that was trained is kept; to go on from there: [bold]{again}[/]")
        return None


def compare(sections: list[Section], console: Console) -> None:
    """Prints what the paper says beside what was found."""
    table = Table(title="Against the paper", title_justify="left")
    for column in ("", "the paper", "here", ""):
        table.add_column(column)
    for s in sections:
        for claim in s.claims:
            table.add_row(s.experiment.name, claim.paper, claim.ours, "holds" if claim.holds else "[red]differs[/]")
    console.print(table)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
