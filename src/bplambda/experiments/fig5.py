"""Figure 5: copy-repeat."""

import numpy as np

from ..config import Run, run_of
from ..runs import Finished
from ..training.copyrepeat import solved_length
from ._base import Claim, Experiment, band, figure, mean_sem, panel, rounded, select
from .methods import BP, METHODS, SG, TITLES, style

SHORT, FULL = 300, 1500  # epochs of 100 batches; the second is the paper's budget
IN_FULL = ("bp1", "sg5")  # trained in full, by the first two seeds


def copyrepeat(preset, given, methods) -> list[Run]:
    """Three seeds of 30,000 batches; two of 150,000 for some. The quick preset: one seed, 500 batches."""
    if preset == "quick":
        return [run_of("copyrepeat", seed=s, epochs=5, **METHODS[m]) for m in methods for s in range(given or 1)]

    def epochs(method: str, seed: int) -> int:
        return FULL if method in IN_FULL and seed < 2 else SHORT

    return [
        run_of("copyrepeat", seed=seed, epochs=epochs(m, seed), **METHODS[m])
        for m in methods
        for seed in range(given or 3)
    ]


def runs(preset, given):
    return copyrepeat(preset, given, [*BP, "none", *SG])


def by_epoch(f: Finished) -> np.ndarray:
    """The longest length that a run has solved so far, at each epoch."""
    return np.array([solved_length(int(level)) for level in f.metrics["level"]])


def lengths(finished: list[Finished], method: str, epochs: int) -> np.ndarray:
    """The longest length solved so far, `[seeds, epochs]`, of runs that are at least so long."""
    found = select(finished, task="copyrepeat", **METHODS[method])
    return np.array([by_epoch(f)[:epochs] for f in found if f.run.epochs >= epochs])


def budgets(finished: list[Finished], method: str) -> list[int]:
    """The numbers of epochs that there are, and the one that all methods have: a longer run is a shorter one too."""
    mine = {f.run.epochs for f in select(finished, task="copyrepeat", **METHODS[method])}
    return sorted(mine | {shortest(finished)}) if mine else []


def shortest(finished: list[Finished]) -> int:
    return min((f.run.epochs for f in select(finished, task="copyrepeat")), default=0)


def draw(finished: list[Finished]):
    fig, axes = figure(2, width=4.2)
    for ax, letter, title, methods in ((axes[0, 0], "a", "BP(λ)", ["none", *BP]), (axes[0, 1], "b", "n-step SG", SG)):
        for method in methods:
            first, *longer = budgets(finished, method)
            band(ax, 0.1 * np.arange(1, first + 1), lengths(finished, method, first), **style(method))
            for epochs in longer:
                rest = lengths(finished, method, epochs)[:, first - 1 :]
                look = style(method) | {"label": f"{TITLES[method]}, {len(rest)} seeds", "linestyle": "-."}
                band(ax, 0.1 * np.arange(first, epochs + 1), rest, **look)
        panel(ax, letter, title)
        ax.set_xlabel("batches, in thousands")
    best = lengths(finished, "bp1", budgets(finished, "bp1")[-1]).max(axis=1).mean()
    axes[0, 1].axhline(best, color="tab:green", linestyle=":", label="BP(1), best")
    axes[0, 0].set_ylabel("longest sequence solved")
    for ax in axes[0]:
        ax.legend(frameon=False, fontsize=7)
    return fig


def data(finished: list[Finished]):
    found = {}
    for method in [*BP, "none", *SG]:
        for epochs in budgets(finished, method):
            mean, sem = mean_sem(lengths(finished, method, epochs))
            every = max(1, epochs // 50)
            numbers = {"every": 100 * every, "solved": rounded(mean[every - 1 :: every], 2)}
            found[f"{method}-{100 * epochs}"] = numbers | {"sem": rounded(sem[every - 1 :: every], 2)}
    return found


def claims(finished: list[Finished]) -> list[Claim]:
    """Against methods without BPTT at the budget that all have; against n-step SG at the longest that both have."""

    def solved(method: str, epochs: int) -> float:
        return float(lengths(finished, method, epochs)[:, -1].mean())

    def at(epochs: int, methods: list[str]) -> str:
        return f"{100 * epochs:,} batches: " + ", ".join(f"{TITLES[m]} {solved(m, epochs):.1f}" for m in methods)

    epochs, free = shortest(finished), ["none", *BP]
    best = max(SG, key=lambda m: solved(m, epochs))
    both = sorted(set(budgets(finished, "bp1")) & set(budgets(finished, best)))
    return [
        Claim(
            "BP(1) provides the best BPTT-free solution",
            at(epochs, free),
            solved("bp1", epochs) > max(solved(m, epochs) for m in free if m != "bp1"),
        ),
        Claim(
            "BP(1) outperforms n-step synthetic gradients",
            "; ".join(at(e, ["bp1", best]) for e in both),
            solved("bp1", both[-1]) > solved(best, both[-1]),
        ),
    ]


EXPERIMENT = Experiment(
    "fig5",
    "Figure 5: copy-repeat",
    "The longest sequence solved (below 0.15 bits) as training goes on: BP(λ) and no BPTT (a), n-step synthetic "
    "gradients (b; the best of BP(1) dotted). LSTM of 100 units. Mean and SEM over seeds.",
    runs,
    draw,
    data,
    claims,
)
