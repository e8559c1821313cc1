"""Table 1, toy row: the longest sequence that each method solves, with all shorter ones."""

import numpy as np

from ..runs import Finished
from ._base import Claim, Experiment, figure, mean_sem, rounded, select
from .figS2 import runs
from .toy import METHODS, TITLES, wanted

PAPER = dict(zip(METHODS, (16, 10, 20, 8, 36, 38, 24, 20, 4, 16, 32, 90), strict=True))


def solved_length(finished: list[Finished]) -> int:
    """The longest length that one seed solves, together with all shorter ones."""
    longest = 0
    for f in sorted(finished, key=lambda f: f.run.length):
        if not f.result["solved"]:
            break
        longest = f.run.length
    return longest


def rows(finished: list[Finished]) -> list[dict]:
    """A row for each method: ours, over seeds, beside the paper's."""
    found = []
    for method, paper in PAPER.items():
        mine = select(finished, **wanted(method))
        by_seed = [solved_length([f for f in mine if f.run.seed == s]) for s in sorted({f.run.seed for f in mine})]
        if by_seed:
            mean, sem = mean_sem(by_seed)
            longest = max(f.run.length for f in mine)
            budget = f"{mine[0].run.epochs} epochs, T up to {longest}"
            numbers = {"mean": rounded(mean, 2), "sem": rounded(sem, 2), "seeds": len(by_seed), "paper": paper}
            found.append({"task": "toy", "method": method, **numbers, "budget": budget})
    return found


def draw(finished: list[Finished]):
    fig, axes = figure(1, width=8, height=3.2)
    ax, table = axes[0, 0], rows(finished)
    x = np.arange(len(table))
    ax.bar(x - 0.2, [r["mean"] for r in table], 0.4, yerr=[r["sem"] for r in table], color="tab:green", label="ours")
    ax.bar(x + 0.2, [r["paper"] for r in table], 0.4, color="lightgray", label="paper")
    ax.set_xticks(x, [TITLES[r["method"]] for r in table], rotation=35, ha="right")
    ax.set_ylabel("longest length solved")
    ax.legend(frameon=False)
    return fig


def claims(finished: list[Finished]) -> list[Claim]:
    mean = {r["method"]: r["mean"] for r in rows(finished)}
    others = {m: v for m, v in mean.items() if m != "bp1"}
    listed = ", ".join(f"{TITLES[m]} {mean[m]:g}" for m in ("bp0", "bp0.5", "bp1"))
    best = max(others, key=lambda m: others[m])
    return [
        Claim("BP(0) 16, BP(0.5) 32, BP(1) 90", listed, mean["bp0"] <= mean["bp0.5"] <= mean["bp1"]),
        Claim(
            "BP(1) solves tasks more than double the length of the next best model",
            f"BP(1) {mean['bp1']:g}; next, {TITLES[best]}, {others[best]:g}",
            mean["bp1"] > 2 * others[best],
        ),
    ]


EXPERIMENT = Experiment(
    "table1-toy",
    "Table 1, toy task: longest sequence solved",
    "The longest T (10, 20 … 100) that is solved together with all shorter ones: error below 0.025, averaged over the "
    "last 20 of 250 epochs. Mean and SEM over seeds, beside the paper's mean over 5 seeds.",
    runs,
    draw,
    rows,
    claims,
)
