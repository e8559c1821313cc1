"""Figures, numbers and one self-contained page, from the run store alone."""

import base64
import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from ..experiments import EXPERIMENTS, Experiment
from ..experiments._base import Claim, Preset
from ..experiments.methods import TITLES
from ..experiments.table1 import MEASURES
from ..files import json_by_line
from ..runs import Finished
from ..train import COLUMNS, cells


class Section(NamedTuple):
    """One experiment on the page."""

    experiment: Experiment
    svg: bytes
    png: bytes
    data: Any
    claims: list[Claim]
    seeds: str
    runs: int
    options: str


class Available(NamedTuple):
    """The runs of an experiment, and the options of `bplambda reproduce` that make them."""

    runs: list[Finished]
    options: str


def available(experiment: Experiment, finished: list[Finished]) -> Available | None:
    """What the store has of an experiment, if it is all of it: the fuller preset and the more runs first."""
    there = {f.run.name: f for f in finished}
    presets: tuple[Preset, ...] = ("paper", "quick")
    numbers = range(1, 1 + len({f.run.seed for f in finished}))
    for preset in presets:
        choices = [(experiment.runs(preset, seeds), seeds) for seeds in (None, *numbers)]
        for runs, seeds in sorted(choices, key=lambda choice: len(choice[0]), reverse=True):
            if all(run.name in there for run in runs):
                options = f"--preset {preset}" + (f" --seeds {seeds}" if seeds else "")
                return Available([there[run.name] for run in dict.fromkeys(runs)], options)
    return None


def _seeds(finished: list[Finished]) -> str:
    """How many seeds each configuration has."""
    counts = Counter(replace(f.run, seed=0) for f in finished).values()
    fewest, most = min(counts, default=0), max(counts, default=0)
    return f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"


def section(experiment: Experiment, found: Available) -> Section:
    """Draws an experiment from its runs."""
    finished = found.runs
    figure, svg, png = experiment.draw(finished), io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png", dpi=110)
    data, claims = experiment.data(finished), experiment.claims(finished)
    drawn = svg.getvalue(), png.getvalue()
    return Section(experiment, *drawn, data, claims, _seeds(finished), len(finished), found.options)


def build(finished: list[Finished], out: Path, names: list[str] | None = None) -> tuple[Path, list[Section]]:
    """Writes `index.html` and, for each experiment whose runs are there, its figure and its numbers.

    **Returns:** the path of the page, and what is on it.
    """
    out.mkdir(parents=True, exist_ok=True)
    sections, shown = [], set()
    for name in names or EXPERIMENTS:
        found = available(EXPERIMENTS[name], finished)
        if found is not None:
            sections.append(section(EXPERIMENTS[name], found))
            shown |= {f.run.name for f in found.runs}
    for s in sections:
        (out / f"{s.experiment.name}.svg").write_bytes(s.svg)
        (out / f"{s.experiment.name}.png").write_bytes(s.png)
        (out / f"{s.experiment.name}.json").write_text(json_by_line(s.data))
    tables: list[list[dict]] = [s.data for s in sections if s.experiment.name.startswith("table1")]
    table = max(tables, key=len, default=[])
    if table:
        (out / "table1.json").write_text(json_by_line(table))
    page = out / "index.html"
    page.write_text(_render(sections, table, finished, [f for f in finished if f.run.name not in shown]))
    return page, sections


def _inline(svg: bytes) -> str:
    """An address that is the picture itself: the page needs nothing beside it."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def _render(sections: list[Section], table: list[dict], finished: list[Finished], others: list[Finished]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bplambda", "report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["inline"] = _inline
    toy = [f.result["us_per_run_and_step"] for f in finished if f.run.task == "toy"]
    speeds = [speed for speed in toy if speed]
    summary = {
        "runs": len(finished),
        "hours": sum(f.result["seconds"] / f.result["runs_together"] for f in finished) / 3600,
        "speed": float(np.median(speeds)) if speeds else None,
        "versions": finished[-1].result["versions"] if finished else {},
    }
    template = environment.get_template("page.html.jinja")
    rows = {MEASURES[task]: [r for r in table if r["task"] == task] for task in MEASURES}
    tables = {measure: mine for measure, mine in rows.items() if mine}
    rest = {
        task: (
            ["run", "first error", *columns.values()],
            [[f.run.name, *cells(f)] for f in others if f.run.task == task],
        )
        for task, columns in COLUMNS.items()
    }
    return template.render(sections=sections, tables=tables, rest=rest, titles=TITLES, summary=summary)
