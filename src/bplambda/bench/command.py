"""`bplambda bench`: measure group by group, keep what was measured, show it, draw it."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..files import DAMAGE, json_by_line, write_whole
from ..processes import give, one_thread
from .effort import Effort
from .groups import GROUPS
from .measure import Row
from .plots import draw

FILE = "bench.json"


def bench(groups: Sequence[str], effort: Effort, out: Path) -> int:
    """Measures the groups and writes `bench.json`, after each of them, and the plots; prints a table.

    Rows of other groups that are in `bench.json` already stay as they are. A group's own go when all of it has been
    measured anew; until then, only those that have been.

    **Returns:** the exit code: 130 after Ctrl-C and 1 if a group failed. What was measured is kept in both cases.
    """
    console, failed, measured = Console(), [], []
    out.mkdir(parents=True, exist_ok=True)
    rows = load(out)
    try:
        for i, group in enumerate(groups, start=1):
            new, reason = [], "stopped"
            try:
                reason = _measure(group, effort, new, f"{i}/{len(groups)}", console)
            finally:
                rows[group] = _renewed(rows.get(group, []), new) if reason else new
                _save(out, rows)
            measured += new
            if reason:
                failed.append(group)
                console.print(f"[bold red]{group} failed:[/] {escape(reason)}")
    except KeyboardInterrupt:
        console.print(f"\nStopped. What was measured is in {out / FILE}.")
        return 130
    console.print(_table(measured))
    pictures = draw([row for found in rows.values() for row in found], out)
    console.print(f"In {out}: {', '.join([FILE, *(path.name for path in pictures)])}.")
    return 1 if failed else 0


def load(out: Path) -> dict[str, list[Row]]:
    """The rows in a folder's `bench.json`, by group; nothing if there is none."""
    path, rows = out / FILE, {}
    try:
        for row in _rows(path.read_text()):
            rows.setdefault(row.config["group"], []).append(row)
    except FileNotFoundError:
        return {}
    except (OSError, *DAMAGE) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        advice = "put it right or move it away, or name another folder with --out"
        raise ValueError(f"The measurements in {path} cannot be read ({reason}): {advice}.") from error
    return rows


def _rows(text: str) -> list[Row]:
    found = json.loads(text)
    if not isinstance(found, list) or not all(_is_row(row) for row in found):
        raise ValueError("it is not what a bench has written")
    return [Row(**row) for row in found]


def _is_row(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and found.keys() == set(Row._fields)
        and isinstance(found["name"], str)
        and isinstance(found["value"], float | int)
        and isinstance(found["ratio"], float | int | None)
        and isinstance(found["config"], dict)
        and isinstance(found["config"].get("group"), str)
    )


def _renewed(old: list[Row], new: list[Row]) -> list[Row]:
    """The old rows, with the new ones in place of those of the same names."""
    return list(({row.name: row for row in old} | {row.name: row for row in new}).values())


def _save(out: Path, rows: dict[str, list[Row]]) -> None:
    ordered = [row._asdict() for group in dict.fromkeys([*GROUPS, *rows]) for row in rows.get(group, [])]
    write_whole(out / FILE, lambda file: file.write(json_by_line(ordered).encode()))


def _measure(group: str, effort: Effort, rows: list[Row], count: str, console: Console) -> str:
    """Measures a group in a process of its own, into `rows`. **Returns:** what went wrong, or nothing."""
    env = one_thread() | {"OPENBLAS_NUM_THREADS": "1"} if GROUPS[group].one_thread else dict(os.environ)
    with console.status(f"{count} {group}: starting") as status:

        def hear(said: dict[str, dict]) -> None:
            ((kind, what),) = said.items()
            handle: dict[str, Callable[[], object]] = {
                "Row": lambda: rows.append(Row(**what | {"config": {"group": group} | what["config"]})),
                "Now": lambda: show(f"{count} measuring {what['what']}"),
                "LeftOut": lambda: console.print(
                    f"[yellow]Left out:[/] {escape(what['what'])}: {escape(what['why'])}."
                ),
            }
            handle[kind]()

        def show(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(text)

        return give("bplambda.bench", {"group": group, "effort": asdict(effort)}, hear, set(), env)


def _table(rows: list[Row]) -> Table:
    table = Table(title="Ours, and how many times faster than the baseline it is", title_justify="left")
    table.add_column("", overflow="fold")
    table.add_column("ours", justify="right", no_wrap=True)
    table.add_column("unit")
    table.add_column("times faster", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.name, f"{row.value:.4g}", row.unit, "" if row.ratio is None else f"{row.ratio:.3g}")
    return table
