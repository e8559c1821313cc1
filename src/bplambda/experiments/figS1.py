"""Figure S1: the same fixed RNN, its synthesiser learning by n-step synthetic gradients."""

from ..runs import Finished
from ._base import Claim, Experiment, band, figure, mean_sem, panel, rounded
from .fig2 import curves, final, over_epochs
from .methods import COLOURS, N_COLOURS
from .toy import fixed

NS = (2, 3, 4, 5)


def runs(preset, seeds):
    n_step = [run for n in NS for run in fixed(seeds or 5, rule="nstep", n=n)]
    return n_step + fixed(seeds or 5, rule="bplambda", lam=1.0)


def draw(finished: list[Finished]):
    fig, axes = figure(4)
    for ax, n in zip(axes[0], (2, 3), strict=False):
        over_epochs(ax, curves(finished, rule="nstep", n=n))
        panel(ax, "a", f"n = {n}")
    axes[0, 0].set_ylabel("cosine with the true gradient")
    axes[0, 0].legend(fontsize=6, ncols=3, frameon=False, loc="center right")
    for n in NS:
        alignment = curves(finished, rule="nstep", n=n)
        last, first_step = final(alignment), alignment[:, :, 0]
        style = {"color": N_COLOURS[n], "label": f"n = {n}"}
        band(axes[0, 2], range(1, last.shape[1] + 1), last, **style)
        band(axes[0, 3], range(1, first_step.shape[1] + 1), first_step, **style)
    reference = curves(finished, rule="bplambda", lam=1.0)[:, :, 0]
    epochs = range(1, reference.shape[1] + 1)
    axes[0, 3].plot(epochs, reference.mean(axis=0), ":", color=COLOURS[1.0], label="BP(1)")
    for ax, letter, title, label in (
        (axes[0, 2], "b", "last 10 % of epochs", "time-step"),
        (axes[0, 3], "c", "first time-step", "epoch"),
    ):
        panel(ax, letter, title)
        ax.set_xlabel(label)
        ax.set_ylim(-0.3, 1.05)
    axes[0, 3].legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def data(finished: list[Finished]):
    found = {f"sg{n}": mean_sem(final(curves(finished, rule="nstep", n=n))) for n in NS}
    return {name: {"alignment_by_time_step": rounded(m), "sem": rounded(s)} for name, (m, s) in found.items()}


def claims(finished: list[Finished]) -> list[Claim]:
    ours = {n: float(final(curves(finished, rule="nstep", n=n)).mean()) for n in NS}
    bp1 = float(final(curves(finished, rule="bplambda", lam=1.0)).mean())
    listed = ", ".join(f"n={n} {value:.2f}" for n, value in ours.items())
    return [
        Claim(
            "BP(λ) often outperforms n-step synthetic gradients", f"{listed}; BP(1) {bp1:.2f}", bp1 > max(ours.values())
        )
    ]


EXPERIMENT = Experiment(
    "figS1",
    "Figure S1: n-step synthetic gradients, fixed RNN",
    "Alignment with the true gradient when the synthesiser learns n-step synthetic gradients: by epoch and time-step "
    "for n = 2 and 3 (a), over the last 10 % of the epochs (b), and at the first time-step (c; BP(1) dotted).",
    runs,
    draw,
    data,
    claims,
)
