"""Figure 2: BP(λ) derives true BPTT gradients over many time-steps (a fixed linear RNN, T = 10)."""

import numpy as np
from matplotlib import colormaps

from ..runs import Finished
from ._base import Claim, Experiment, band, figure, mean_sem, panel, rounded, select
from .methods import COLOURS, LAMBDAS
from .toy import fixed


def runs(preset, seeds):
    return [run for lam in LAMBDAS for run in fixed(seeds or 5, rule="bplambda", lam=lam)]


def curves(finished: list[Finished], **wanted) -> np.ndarray:
    """Alignments `[seeds, epochs, T − 1]` of the fixed runs."""
    found = select(finished, variant="fixed", length=10, epochs=10, **wanted)
    return np.array([f.metrics["alignment"] for f in found])


def final(alignment: np.ndarray) -> np.ndarray:
    """The average over the last tenth of the epochs, `[seeds, T − 1]`."""
    return alignment[:, -max(1, alignment.shape[1] // 10) :].mean(axis=1)


def over_epochs(ax, alignment: np.ndarray) -> None:
    """A line for each time-step of the task, from the first (dark) to the last (light)."""
    mean, _ = mean_sem(alignment)
    for t in range(mean.shape[1]):
        ax.plot(range(1, len(mean) + 1), mean[:, t], color=colormaps["viridis"](t / mean.shape[1]), label=f"t={t + 1}")
    ax.set_xlabel("epoch")
    ax.set_ylim(-0.1, 1.05)


def draw(finished: list[Finished]):
    fig, axes = figure(len(LAMBDAS) + 1)
    for ax, lam in zip(axes[0], LAMBDAS, strict=False):
        over_epochs(ax, curves(finished, rule="bplambda", lam=lam))
        panel(ax, "a", f"BP({lam:g})")
    axes[0, 0].set_ylabel("cosine with the true gradient")
    axes[0, 2].legend(fontsize=6, ncols=3, frameon=False, loc="lower right")
    ax = axes[0, -1]
    for lam in LAMBDAS:
        found = final(curves(finished, rule="bplambda", lam=lam))
        band(ax, range(1, found.shape[1] + 1), found, color=COLOURS[lam], label=f"BP({lam:g})")
    ax.set_xlabel("time-step")
    ax.set_ylim(-0.1, 1.3)
    ax.legend(frameon=False, fontsize=7, ncols=3, loc="upper center", columnspacing=1)
    panel(ax, "b", "last 10 % of epochs")
    return fig


def data(finished: list[Finished]):
    found = {f"bp{lam:g}": mean_sem(final(curves(finished, rule="bplambda", lam=lam))) for lam in LAMBDAS}
    return {name: {"alignment_by_time_step": rounded(m), "sem": rounded(s)} for name, (m, s) in found.items()}


def claims(finished: list[Finished]) -> list[Claim]:
    mean = {lam: final(curves(finished, rule="bplambda", lam=lam)) for lam in LAMBDAS}
    overall = {lam: float(a.mean()) for lam, a in mean.items()}
    first = {lam: float(a[:, 0].mean()) for lam, a in mean.items()}
    return [
        Claim(
            "a high λ improves the alignment with the true gradient",
            ", ".join(f"BP({lam:g}) {overall[lam]:.2f}" for lam in LAMBDAS),
            overall[0.0] < overall[0.5] < overall[1.0],
        ),
        Claim(
            "BP(0) deteriorates at early time-steps, BP(1) does not",
            f"first time-step: BP(0) {first[0.0]:.2f}, BP(1) {first[1.0]:.2f}",
            first[1.0] > 2 * first[0.0],
        ),
    ]


EXPERIMENT = Experiment(
    "fig2",
    "Figure 2: synthetic against true gradients, fixed RNN",
    "Alignment of the synthetic with the true gradient of a fixed linear RNN (T = 10; input at the first step, loss at "
    "the last), by epoch and time-step (a), and over the last 10 % of the epochs (b; mean and SEM over seeds).",
    runs,
    draw,
    data,
    claims,
)
