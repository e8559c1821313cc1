"""Figure 4: sequential MNIST."""

from itertools import pairwise

from ..config import Run, run_of
from ..runs import Finished
from ._base import Claim, Experiment, band, figure, mean_sem, panel, rounded, select
from .methods import BP, METHODS, SG, TITLES, style


def seqmnist(preset, given, methods) -> list[Run]:
    """The quick preset: one seed, two short epochs."""
    seeds = given or (1 if preset == "quick" else 5)
    short = {"epochs": 2, "batches": 200} if preset == "quick" else {}
    return [run_of("seqmnist", seed=seed, **METHODS[m], **short) for m in methods for seed in range(seeds)]


def runs(preset, given):
    return seqmnist(preset, given, [*BP, "none", *SG])


def of(finished: list[Finished], method: str) -> list[Finished]:
    return select(finished, task="seqmnist", **METHODS[method])


def curves(finished: list[Finished], method: str) -> list:
    """Validation accuracy in percent by epoch, for each seed."""
    return [100 * (1 - f.metrics["error"]) for f in of(finished, method)]


def test_accuracy(finished: list[Finished], method: str):
    """Mean and SEM over seeds, in percent."""
    return mean_sem([f.result["test_accuracy"] for f in of(finished, method)])


def draw(finished: list[Finished]):
    fig, axes = figure(2, width=4.2)
    for ax, letter, title, methods in ((axes[0, 0], "b", "BP(λ)", ["none", *BP]), (axes[0, 1], "c", "n-step SG", SG)):
        for method in methods:
            found = curves(finished, method)
            band(ax, range(1, len(found[0]) + 1), found, **style(method))
        panel(ax, letter, title)
        ax.set_xlabel("epoch")
        ax.set_ylim(30, 100)
    final = mean_sem([c[-1] for c in curves(finished, "bp1")])[0]
    axes[0, 1].axhline(float(final), color="tab:green", linestyle=":", label="BP(1), final")
    axes[0, 0].set_ylabel("validation accuracy, %")
    for ax in axes[0]:
        ax.legend(frameon=False, fontsize=8, loc="lower right")
    return fig


def data(finished: list[Finished]):
    found = {}
    for method in [*BP, "none", *SG]:
        mean, sem = mean_sem(curves(finished, method))
        test, test_sem = test_accuracy(finished, method)
        numbers = {"validation": mean, "validation_sem": sem, "test": test, "test_sem": test_sem}
        found[method] = {name: rounded(value, 2) for name, value in numbers.items()}
    return found


def claims(finished: list[Finished]) -> list[Claim]:
    test = {m: float(test_accuracy(finished, m)[0]) for m in ["none", *BP, *SG]}
    by_lambda = ["none", *BP]
    best = max(SG, key=lambda m: test[m])
    return [
        Claim(
            "a high λ produces higher performance, and all improve on no BPTT",
            "test: " + ", ".join(f"{TITLES[m]} {test[m]:.1f}" for m in by_lambda),
            all(test[a] < test[b] for a, b in pairwise(by_lambda)),
        ),
        Claim(
            "BP(1) outperforms n-step synthetic gradients",
            f"test: BP(1) {test['bp1']:.1f}; {TITLES[best]} {test[best]:.1f}",
            test["bp1"] > test[best],
        ),
    ]


EXPERIMENT = Experiment(
    "fig4",
    "Figure 4: sequential MNIST",
    "Validation accuracy during training: BP(λ) and no BPTT (b), n-step synthetic gradients (c; the final performance "
    "of BP(1) dotted). LSTM of 30 units, 28 rows. Mean and SEM over seeds.",
    runs,
    draw,
    data,
    claims,
)
