"""`bplambda reproduce`: trains what the targets need, draws them, and compares the result with the paper."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from .executors import Executor
from .experiments import EXPERIMENTS
from .experiments._base import Preset
from .report import Section, build
from .runs import Store
from .train import stoppable, train


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


def compare(sections: list[Section], console: Console) -> None:
    """Prints what the paper says beside what was found."""
    table = Table(title="Against the paper", title_justify="left")
    for column in ("", "the paper", "here", ""):
        table.add_column(column)
    for s in sections:
        for claim in s.claims:
            table.add_row(s.experiment.name, claim.paper, claim.ours, "holds" if claim.holds else "[red]differs[/]")
    console.print(table)
