"""Figure 3: BP(λ) drives better RNN learning in the toy task."""

import math

import numpy as np

from ..runs import Finished
from ._base import Claim, Experiment, band, figure, mean_sem, panel, rounded, select, values
from .fig2 import curves as fixed_curves
from .fig2 import final
from .fig2 import runs as fixed_runs
from .methods import BP, COLOURS, LAMBDAS, TITLES, style
from .toy import lengths, plastic, seeds, wanted

FIRST_EPOCHS = 5


def runs(preset, given):
    methods = [*BP, "bptt5", "sg5"] if preset == "quick" else BP
    found = [run for method in methods for run in plastic(method, lengths(preset), seeds(preset, given))]
    return fixed_runs(preset, given) + found


def early_alignment(finished: list[Finished], method: str, length: int) -> np.ndarray:
    """The average over the first epochs and all time-steps, by seed."""
    found = select(finished, length=length, **wanted(method))
    return np.array([f.metrics["alignment"][:FIRST_EPOCHS].mean() for f in found])


def learning_curves(ax, finished: list[Finished], length: int, methods) -> None:
    for method in methods:
        found = select(finished, length=length, **wanted(method))
        if found:
            curves = [f.metrics["error"] for f in found]
            epochs = range(1, len(curves[0]) + 1)
            band(ax, epochs, curves, smoothing=True, **style(method))
    ax.set_xlabel("epoch")
    ax.set_ylim(-0.05, 1.3)


def shown(finished: list[Finished]) -> list[int]:
    """Up to four of the lengths there are: the longest, and others spread evenly."""
    found = values(select(finished, **wanted("bp1")), "length")
    return found if len(found) <= 4 else [found[i] for i in np.linspace(1, len(found) - 1, 4).astype(int)]


def draw(finished: list[Finished]):
    chosen = shown(finished)
    panels = 2 + len(chosen)
    columns = 3 if panels > 4 else panels
    fig, grid = figure(columns, rows=math.ceil(panels / columns))
    axes = grid.flat
    for i, lam in enumerate(LAMBDAS):
        mean, sem = mean_sem(final(fixed_curves(finished, rule="bplambda", lam=lam)).mean(axis=1))
        axes[0].bar(i, mean, yerr=sem, color=COLOURS[lam], width=0.7)
    axes[0].set_xticks(range(3), [f"BP({lam:g})" for lam in LAMBDAS])
    axes[0].set_ylabel("cosine with the true gradient")
    panel(axes[0], "a", "fixed RNN")
    for method in BP:
        found = values(select(finished, **wanted(method)), "length")
        both = [mean_sem(early_alignment(finished, method, T)) for T in found]
        mean, sem = (np.array(column) for column in zip(*both, strict=True))
        axes[1].errorbar(found, mean, sem, marker="o", markersize=3, **style(method))
    axes[1].set_xlabel("sequence length T")
    axes[1].axhline(0, color="black", linewidth=0.5)
    panel(axes[1], "a", f"plastic RNN, first {FIRST_EPOCHS} epochs")
    extra = [m for m in ("bptt5", "sg5") if len(chosen) <= 2 and select(finished, **wanted(m))]
    for ax, length in zip(axes[2:panels], chosen, strict=True):
        learning_curves(ax, finished, length, BP + extra)
        panel(ax, "b", f"T = {length}")
    axes[2].set_ylabel("task error")
    axes[2].legend(frameon=False, fontsize=8)
    return fig


def data(finished: list[Finished]):
    found = {}
    for method in BP:
        for length in values(select(finished, **wanted(method)), "length"):
            alignment, sem = mean_sem(early_alignment(finished, method, length))
            error, error_sem = mean_sem([f.result["error"] for f in select(finished, length=length, **wanted(method))])
            numbers = {"early_alignment": alignment, "sem": sem, "final_error": error, "final_error_sem": error_sem}
            found[f"{method}-T{length}"] = {k: rounded(v) for k, v in numbers.items()}
    return found


def claims(finished: list[Finished]) -> list[Claim]:
    common = set.intersection(*(set(values(select(finished, **wanted(m)), "length")) for m in BP))
    early = {m: float(np.mean([early_alignment(finished, m, T).mean() for T in common])) for m in BP}
    error = {
        m: float(np.mean([f.result["error"] for T in common for f in select(finished, length=T, **wanted(m))]))
        for m in BP
    }

    fixed = float(final(fixed_curves(finished, rule="bplambda", lam=1.0)).mean())

    def listed(numbers, digits):
        return ", ".join(f"{TITLES[m]} {numbers[m]:z.{digits}f}" for m in BP)

    return [
        Claim(
            "plastic RNNs: better predictions for high λ, weaker than for fixed ones",
            f"first {FIRST_EPOCHS} epochs: {listed(early, 3)}; fixed, BP(1) {fixed:.2f}",
            early["bp0"] < early["bp0.5"] < early["bp1"] < fixed,
        ),
        Claim(
            "a high λ improves learning",
            f"final error: {listed(error, 3)}",
            error["bp1"] < error["bp0.5"] < error["bp0"],
        ),
    ]


EXPERIMENT = Experiment(
    "fig3",
    "Figure 3: learning the toy task with BP(λ)",
    "Average alignment for fixed RNNs (left) and for plastic ones over their first 5 epochs, by sequence length (a). "
    "Learning curves by sequence length, smoothed as in the paper (b). Mean and SEM over seeds.",
    runs,
    draw,
    data,
    claims,
)
