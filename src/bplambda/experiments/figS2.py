"""Figure S2: the toy task with truncated BPTT, with n-step synthetic gradients, and the error left over by BP(λ)."""

import numpy as np

from ..runs import Finished
from ._base import Claim, Experiment, figure, mean_sem, panel, rounded, select, values
from .fig3 import learning_curves, shown
from .methods import BP, SG, TITLES, TRUNCATED, style
from .toy import lengths, plastic, seeds, wanted


def runs(preset, given):
    methods = [*TRUNCATED, *SG, *BP]
    return [run for method in methods for run in plastic(method, lengths(preset), seeds(preset, given))]


def final_errors(finished: list[Finished], method: str) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Lengths, and mean and SEM of the error at the end of training."""
    found = values(select(finished, **wanted(method)), "length")
    both = [mean_sem([f.result["error"] for f in select(finished, length=T, **wanted(method))]) for T in found]
    mean, sem = (np.array(column) for column in zip(*both, strict=True))
    return found, mean, sem


def draw(finished: list[Finished]):
    chosen = shown(finished)[:2]
    fig, axes = figure(3, rows=3)
    for row, methods, letter in ((0, TRUNCATED, "a"), (1, SG, "b")):
        for ax, length in zip(axes[row], chosen, strict=False):
            learning_curves(ax, finished, length, methods)
            panel(ax, letter, f"T = {length}")
        axes[row, 0].set_ylabel("task error")
        axes[row, 0].legend(frameon=False, fontsize=7)
    for row, methods, letter in ((0, TRUNCATED, "a"), (1, SG, "b"), (2, BP, "c")):
        ax = axes[row, 2] if row < 2 else axes[2, 0]
        for method in methods:
            found, mean, sem = final_errors(finished, method)
            ax.errorbar(found, mean, sem, marker="o", markersize=3, **style(method))
        ax.set_xlabel("sequence length T")
        ax.set_ylim(-0.05, 1.3)
        panel(ax, letter, "error at the end of training")
    axes[2, 0].set_ylabel("task error")
    axes[2, 0].legend(frameon=False, fontsize=8)
    for ax in axes[2, 1:]:
        ax.remove()
    return fig


def data(finished: list[Finished]):
    found = {}
    for method in [*TRUNCATED, *SG, *BP]:
        lengths_, mean, sem = final_errors(finished, method)
        found[method] = {"lengths": lengths_, "final_error": rounded(mean), "sem": rounded(sem)}
    return found


def claims(finished: list[Finished]) -> list[Claim]:
    mean = {m: float(final_errors(finished, m)[1].mean()) for m in [*TRUNCATED, *SG, *BP]}
    best = min((m for m in mean if m != "bp1"), key=lambda m: mean[m])
    ours = f"final error over all lengths: BP(1) {mean['bp1']:.3f}; next, {TITLES[best]}, {mean[best]:.3f}"
    return [Claim("BP(1) outperforms truncated BPTT and n-step SG", ours, mean["bp1"] < mean[best])]


EXPERIMENT = Experiment(
    "figS2",
    "Figure S2: learning the toy task with truncated BPTT and n-step SG",
    "Learning curves and error at the end of training for n-step truncated BPTT (a), with n-step synthetic gradients "
    "(b), and the error at the end of training for BP(λ) (c). Mean and SEM over seeds.",
    runs,
    draw,
    data,
    claims,
)
