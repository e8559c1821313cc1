"""The pictures of a bench, from its rows alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..experiments._base import figure
from .gradient import BASELINES
from .measure import Row
from .problems import TASKS
from .scaling import WINDOWS
from .streaming import LEARNERS

COLOURS = ("tab:blue", "tab:orange", "tab:green")


def draw(rows: list[Row], out: Path) -> list[Path]:
    """Draws what the rows allow into PNG files. **Returns:** their paths."""
    found = {row.name: row for row in rows}
    paths = []
    for name, plot in PLOTS.items():
        picture = plot(found)
        if picture is not None:
            paths.append(out / f"{name}.png")
            picture.savefig(paths[-1], dpi=110)
    return paths


def gradient(found: dict[str, Row]) -> Figure | None:
    """How many times faster than each baseline, task by task, on one core: bars rise, or fall, from 1."""
    tasks = [task for task in TASKS if f"gradient/{task}/vs-jax-bptt" in found]
    if not tasks:
        return None
    fig, axes = figure(1, width=7.2, height=3.8)
    ax: Axes = axes[0, 0]
    width = 0.8 / len(BASELINES)
    for i, (baseline, colour) in enumerate(zip(BASELINES, COLOURS, strict=True)):
        ratios = {t: row.ratio for t, task in enumerate(tasks) if (row := found.get(f"gradient/{task}/vs-{baseline}"))}
        heights = [(ratio or 1) - 1 for ratio in ratios.values()]
        bars = ax.bar([t + (i - 1) * width for t in ratios], heights, width, bottom=1, color=colour, label=baseline)
        ax.bar_label(bars, [f"{1 + h:.2g}" if h < 9 else f"{1 + h:,.0f}" for h in heights], fontsize=7, padding=2)
    ax.axhline(1, color="black", linewidth=0.8)
    ax.set_yscale("log")
    ax.margins(y=0.12)
    ax.set_xticks(range(len(tasks)), tasks)
    ax.set_ylabel("times faster than the baseline")
    ax.set_title("The gradient of one batch by BP(1), one core", loc="left")
    ax.legend(frameon=False, fontsize=8, loc="upper left", ncols=3)
    return fig


def scaling(found: dict[str, Row]) -> Figure | None:
    """The time of a step against |h| and against the batch, with fitted lines."""
    panels = {"size": ("h", "units |h| (GRU, batch 1)"), "batch": ("B", "batch (GRU of 32 units)")}
    panels = {name: v for name, v in panels.items() if f"{name}/exponent/K=1" in found}
    if not panels:
        return None
    fig, axes = figure(len(panels), width=4.2, height=3.6)
    for ax, (name, (letter, label)) in zip(axes[0], panels.items(), strict=True):
        for kind, colour in zip(WINDOWS, COLOURS, strict=True):
            points = _points(found, f"{name}/{letter}", f"/{kind}")
            at, times = np.array(list(points)), np.array(list(points.values()))
            slope = found[f"{name}/exponent/{kind}"]
            fitted = np.array(slope.config["fitted_to"])
            there = np.array([points[a] for a in slope.config["fitted_to"]])
            ax.loglog(at, times, "o", color=colour, markersize=4)
            middle = np.exp(np.mean(np.log(there)) - slope.value * np.mean(np.log(fitted)))
            ax.loglog(fitted, middle * fitted**slope.value, color=colour, label=f"{kind}: exponent {slope.value:.2f}")
        ax.set_xlabel(label)
        ax.set_xticks(at, [str(a) for a in at])
        ax.minorticks_off()
        ax.legend(frameon=False, fontsize=8)
    axes[0, 0].set_ylabel("µs per step")
    return fig


def length(found: dict[str, Row]) -> Figure | None:
    """The time of a step and the memory, as a stream goes on."""
    points = _points(found, "length/T")
    if not points:
        return None
    fig, axes = figure(2, width=3.8, height=3.0)
    memory = [found[f"length/T{at}"].config["resident_mb"] for at in points]
    for ax, values, label in zip(axes[0], (list(points.values()), memory), ("µs per step", "memory, MB"), strict=True):
        ax.semilogx(list(points), values, "o-")
        ax.set_ylim(0, 1.3 * max(values))
        ax.set_xlabel("steps so far")
        ax.set_ylabel(label)
    return fig


def grid(found: dict[str, Row]) -> Figure | None:
    """Runs × time-steps a second, as the runs in one program grow."""
    kinds = {name.split("/")[1] for name in found if name.startswith("grid/")}
    if not kinds:
        return None
    fig, axes = figure(1, width=4.6, height=3.4)
    ax: Axes = axes[0, 0]
    for kind in sorted(kinds):
        points = _points(found, f"grid/{kind}/", "-runs")
        label = kind.replace("-", " ") if kind != "1-processes" else "1 process"
        ax.semilogx(list(points), [rate / 1e3 for rate in points.values()], "o-", base=2, label=label)
        ax.set_xticks(list(points), [str(at) for at in points])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("runs in each process")
    ax.set_ylabel("thousand runs × steps a second")
    ax.legend(frameon=False, fontsize=8)
    return fig


def streaming(found: dict[str, Row]) -> Figure | None:
    """A step inside `run`, and what a call from Python adds."""
    names = [name for name in LEARNERS if f"streaming/{name}/run" in found]
    if not names:
        return None
    fig, axes = figure(1, width=6.4, height=3.0)
    ax: Axes = axes[0, 0]
    inside = [found[f"streaming/{name}/run"].value for name in names]
    called = [found[f"streaming/{name}/step"].value for name in names]
    bars = ax.barh(names, called, color="tab:blue", alpha=0.35, label="`step`, called from Python")
    ax.barh(names, inside, color="tab:blue", label="inside `run`")
    labels = [f"{i:,.0f} inside, {c:,.0f} called" for i, c in zip(inside, called, strict=True)]
    ax.bar_label(bars, labels, fontsize=8, padding=3)
    ax.set_xlim(0, 1.5 * max(called))
    ax.invert_yaxis()
    ax.set_xlabel("µs per step (GRU of 64 units, batch 1)")
    ax.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return fig


def _points(found: dict[str, Row], before: str, after: str = "") -> dict[int, float]:
    """Values by the number that stands in the rows' names between `before` and `after`."""
    middles = {n[len(before) : len(n) - len(after)]: n for n in found if n.startswith(before) and n.endswith(after)}
    return {int(at): found[name].value for at, name in middles.items() if at.isdigit()}


PLOTS: dict[str, Callable[[dict[str, Row]], Figure | None]] = {
    "gradient": gradient,
    "scaling": scaling,
    "length": length,
    "grid": grid,
    "streaming": streaming,
}
