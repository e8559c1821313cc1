"""What a stream shows: words and progress on standard error, predictions on standard output, a picture."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .session import WINDOW, Session, Settings

LOG_EVERY = 30.0  # seconds, between two lines in a log
LOOKS = ({"color": "tab:green"}, {"color": "tab:gray", "linestyle": "--"}, {"color": "tab:red", "linestyle": "--"})
BASELINE = {"color": "black", "linestyle": ":", "linewidth": 1}


def write(line: str) -> None:
    """At once, for whoever waits for it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def shown(total: int | None) -> Iterator[tuple[Callable[[str], None], Callable[[int, str], None]]]:
    """Two functions, both on standard error: one says something, the other tells how far it is."""
    console = Console(stderr=True)
    # Where no line can be redrawn, or predictions go to the same terminal, there is a line now and then.
    live = console.is_terminal and (total is not None or not sys.stdout.isatty())
    ends = (BarColumn(), TaskProgressColumn()), (TimeElapsedColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}")
    columns = (text,) if total is None else (*ends[0], text, *ends[1])
    progress = Progress(*columns, console=console, disable=not live, redirect_stdout=False, redirect_stderr=False)
    bar = progress.add_task("compiling" if total else "waiting for the first line", total=total)
    told = time.monotonic()

    def say(words: str) -> None:
        console.print(words, markup=False, highlight=False, soft_wrap=True)

    def tell(done: int, words: str) -> None:
        nonlocal told
        progress.update(bar, completed=done, description=words)
        if not live and time.monotonic() > told + LOG_EVERY:
            told = time.monotonic()
            say(words if total is None else f"{100 * done / total:.0f} %: {words}")

    with progress:
        yield say, tell


def means(session: Session, names: list[str]) -> str:
    return ", ".join(f"{name} {_mean(session, name)}" for name in names)


def _mean(session: Session, name: str) -> str:
    mean = float(session.meters[name].mean)
    return f"{mean:.4f}" if mean < 1e6 else f"{mean:.1e}"


def table(title: str, session: Session, names: list[str]) -> Table:
    found = Table(title=title, title_justify="left")
    found.add_column("")
    found.add_column(f"squared error, mean of about the last {WINDOW}", justify="right")
    for name in names:
        found.add_row(name, _mean(session, name))
    return found


def finish(
    session: Session, names: list[str], title: str, unit: str, stopped: bool, say: Callable[[str], None], s: Settings
) -> None:
    """Draws the errors, and says what there is to say."""
    for name, state in session.states.items():
        if skipped := int(state.skipped):
            say(f"{name}: {skipped:,} steps were not learned from, because a loss or a gradient was not finite.")
    if s.plot is not None:
        draw(session, names, title, unit, s.plot)
        say(f"The errors are drawn in {s.plot}.")
    if stopped:
        say("Stopped. Nothing was kept: that takes --checkpoint FILE." if s.checkpoint is None else "Stopped.")
    if s.checkpoint is not None:
        say(f"All is kept in {s.checkpoint}; to go on from there: {s.again}")


def draw(session: Session, names: list[str], title: str, unit: str, path: Path) -> None:
    """The running errors of all, the baseline's dotted."""
    from ..experiments._base import figure

    fig, axes = figure(1, width=6, height=3.6)
    ax = axes[0, 0]
    for name, look in zip(names, (*LOOKS[: len(names) - 1], BASELINE), strict=True):
        ax.plot(*session.meters[name].course(), label=name, **look)
    drawn = np.concatenate([session.meters[name].course()[1] for name in names])
    if np.max(drawn, initial=0) > 10 * np.min(drawn[drawn > 0], initial=np.inf):
        ax.set_yscale("log")
    else:
        ax.set_ylim(bottom=0)
    ax.set_xlabel(unit)
    ax.set_ylabel("squared error, running mean")
    ax.set_title(title, loc="left", fontsize=10)
    ax.legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=150)
