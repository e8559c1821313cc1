"""Table 1: every method on every task."""

import numpy as np

from ..runs import Finished
from . import fig4, fig5, figS2
from ._base import Claim, Experiment, figure, mean_sem, rounded, select
from .methods import METHODS, TITLES
from .toy import wanted

PAPER = {
    task: dict(zip(METHODS, row, strict=True))
    for task, row in {
        "toy": (16, 10, 20, 8, 36, 38, 24, 20, 4, 16, 32, 90),
        "seqmnist": (73.4, 78.4, 82.0, 87.1, 78.2, 83.0, 86.5, 90.4, 64.1, 69.6, 76.6, 90.6),
        "copyrepeat": (9.0, 9.0, 12.0, 15.0, 12.0, 9.0, 15.0, 23.0, 8.2, 9.0, 15.8, 29.0),
    }.items()
}
MEASURES = {
    "toy": "toy task: longest length solved",
    "seqmnist": "sequential MNIST: test accuracy, %",
    "copyrepeat": "copy-repeat: longest length solved",
}


def solved_length(finished: list[Finished]) -> int:
    """The longest length that one seed solves, together with all shorter ones."""
    longest = 0
    for f in sorted(finished, key=lambda f: f.run.length):
        if not f.result["solved"]:
            break
        longest = f.run.length
    return longest


def row(task: str, method: str, by_seed, budget: str) -> dict:
    """One method on one task: ours, over seeds, beside the paper's."""
    mean, sem = mean_sem(by_seed)
    numbers = {"mean": rounded(mean, 2), "sem": rounded(sem, 2), "seeds": len(by_seed), "paper": PAPER[task][method]}
    return {"task": task, "method": method, **numbers, "budget": budget}


def toy_rows(finished: list[Finished]) -> list[dict]:
    found = []
    for method in METHODS:
        mine = select(finished, **wanted(method))
        by_seed = [solved_length([f for f in mine if f.run.seed == s]) for s in sorted({f.run.seed for f in mine})]
        if by_seed:
            budget = f"{mine[0].run.epochs} epochs, T up to {max(f.run.length for f in mine)}"
            found.append(row("toy", method, by_seed, budget))
    return found


def seqmnist_rows(finished: list[Finished]) -> list[dict]:
    found = []
    for method in METHODS:
        mine = fig4.of(finished, method)
        if mine:
            accuracies = [f.result["test_accuracy"] for f in mine]
            found.append(row("seqmnist", method, accuracies, f"{mine[0].run.epochs} epochs"))
    return found


def copyrepeat_rows(finished: list[Finished]) -> list[dict]:
    """A row for each budget; the longer ones have fewer seeds and fewer methods."""
    return [
        row("copyrepeat", method, fig5.lengths(finished, method, epochs)[:, -1], f"{100 * epochs:,} batches")
        for method in METHODS
        for epochs in fig5.budgets(finished, method)
    ]


def rows(finished: list[Finished]) -> list[dict]:
    return toy_rows(finished) + seqmnist_rows(finished) + copyrepeat_rows(finished)


def toy_runs(preset, given):
    return figS2.runs(preset, given)


def runs(preset, given):
    seqmnist, copyrepeat = fig4.seqmnist(preset, given, METHODS), fig5.copyrepeat(preset, given, METHODS)
    return toy_runs(preset, given) + seqmnist + copyrepeat


def draw(finished: list[Finished]):
    table = rows(finished)
    tasks = [task for task in PAPER if any(r["task"] == task for r in table)]
    fig, axes = figure(1, len(tasks), width=8, height=3.2)
    for ax, task in zip(axes[:, 0], tasks, strict=True):
        mine = [r for r in table if r["task"] == task]
        x, labels = np.arange(len(mine)), [TITLES[r["method"]] for r in mine]
        seen = [r["method"] for r in mine]
        labels = [
            f"{label}\n{r['budget']}" if seen.count(r["method"]) > 1 else label
            for label, r in zip(labels, mine, strict=True)
        ]
        ax.bar(x - 0.2, [r["mean"] for r in mine], 0.4, yerr=[r["sem"] for r in mine], color="tab:green", label="ours")
        ax.bar(x + 0.2, [r["paper"] for r in mine], 0.4, color="lightgray", label="paper")
        ax.set_xticks(x, labels, rotation=35, ha="right", fontsize=8)
        ax.set_title(MEASURES[task], loc="left", fontsize=10)
        if task == "seqmnist":
            ax.set_ylim(40, 100)
    axes[0, 0].legend(frameon=False)
    return fig


def toy_claims(finished: list[Finished]) -> list[Claim]:
    mean = {r["method"]: r["mean"] for r in toy_rows(finished)}
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


def claims(finished: list[Finished]) -> list[Claim]:
    """For each task: BP(1) first of all. Copy-repeat at the budget that all methods have."""
    found = []
    for task in PAPER:
        first: dict[str, float] = {}
        for r in rows(finished):
            if r["task"] == task:
                first.setdefault(r["method"], r["mean"])
        best = max((m for m in first if m != "bp1"), key=lambda m: first[m])
        ours = f"BP(1) {first['bp1']:.1f}; next, {TITLES[best]}, {first[best]:.1f}"
        found.append(Claim(f"{MEASURES[task]}: BP(1) first, {PAPER[task]['bp1']}", ours, first["bp1"] > first[best]))
    return found


TOY = Experiment(
    "table1-toy",
    "Table 1, toy task: longest sequence solved",
    "The longest T (10, 20 … 100) that is solved together with all shorter ones: error below 0.025, averaged over the "
    "last 20 of 250 epochs. Mean and SEM over seeds, beside the paper's mean over 5 seeds.",
    toy_runs,
    lambda finished: draw([f for f in finished if f.run.task == "toy"]),
    toy_rows,
    toy_claims,
)
WHOLE = Experiment(
    "table1",
    "Table 1: every method on every task",
    "Toy task and copy-repeat: the longest sequence solved; sequential MNIST: test accuracy at the epoch of best "
    "validation. Mean and SEM over seeds, beside the paper's mean over 5 seeds; budgets as stated in the table.",
    runs,
    draw,
    rows,
    claims,
)
