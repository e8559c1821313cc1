"""What an experiment is: the runs it needs, how it is drawn, what the paper reports."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.signal import savgol_filter

from ..config import Run
from ..runs import Finished

Preset = Literal["quick", "paper"]


class Claim(NamedTuple):
    """Something the paper says, and what we found."""

    paper: str
    ours: str
    holds: bool


class Experiment(NamedTuple):
    """A figure or a table.

    - `runs(preset, seeds)`: the runs it needs; `seeds` is `None` for as many as the preset has.
    - `draw(finished)`: the figure, from the runs that are there.
    - `data(finished)`: the numbers in the figure, for a small JSON file.
    - `claims(finished)`: what the paper says of it, against ours.
    """

    name: str
    title: str
    caption: str
    runs: Callable[[Preset, int | None], list[Run]]
    draw: Callable[[list[Finished]], Figure]
    data: Callable[[list[Finished]], Any]
    claims: Callable[[list[Finished]], list[Claim]]


def select(finished: list[Finished], **wanted: Any) -> list[Finished]:
    """The runs with these values in their configuration, by seed."""
    found = [f for f in finished if all(getattr(f.run, name) == value for name, value in wanted.items())]
    return sorted(found, key=lambda f: f.run.seed)


def values(finished: list[Finished], name: str) -> list:
    """The different values of a setting, in order."""
    return sorted({getattr(f.run, name) for f in finished})


def mean_sem(samples: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error of the mean over the first axis."""
    samples = np.asarray(samples, float)
    sem = samples.std(axis=0, ddof=1) / np.sqrt(len(samples)) if len(samples) > 1 else np.zeros(samples.shape[1:])
    return samples.mean(axis=0), sem


def rounded(array: Any, digits: int = 4) -> Any:
    return np.round(np.asarray(array, float), digits).tolist()


def smooth(curve: np.ndarray) -> np.ndarray:
    """The paper's Savitzky-Golay filter: window 25, order 3; not beyond the curve's own range."""
    return np.asarray(savgol_filter(curve, 25, 3)).clip(curve.min(), curve.max()) if len(curve) >= 25 else curve


def figure(columns: int, rows: int = 1, width: float = 3.1, height: float = 2.7) -> tuple[Figure, np.ndarray]:
    """A figure in the house style, and its axes as `[rows, columns]`."""
    fig = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    return fig, axes


def band(ax: Axes, x: Any, samples: Any, smoothing: bool = False, **style: Any) -> None:
    """A line for the mean over seeds, shaded by its standard error."""
    mean, sem = mean_sem([smooth(np.asarray(s)) for s in samples] if smoothing else samples)
    (line,) = ax.plot(x, mean, **style)
    ax.fill_between(x, mean - sem, mean + sem, color=line.get_color(), alpha=0.2, linewidth=0)


def panel(ax: Axes, letter: str, title: str = "") -> None:
    """Names a panel as the paper does."""
    ax.set_title(f"$\\bf{{{letter}}}$  {title}", loc="left", fontsize=10)
