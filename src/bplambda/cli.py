"""The command line."""

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

Target = Literal["theorem", "fig2", "fig3", "figS1", "figS2", "table1-toy", "all"]
StoreFolder = Annotated[Path, arg(help="The run store.")]


@dataclass
class Verify:
    """Check the paper's identities on fresh random problems, and draw Theorem 3.1.

    Prints each identity, where the paper has it, and its error; writes theorem.png. Exits with 1 if one fails.

    Example: bplambda verify --seed 7
    """

    seed: Annotated[int, arg(help="Which random problems.")] = 0
    out: Annotated[Path, arg(help="Folder for theorem.png.")] = Path("verify")

    def run(self) -> int:
        from .verify.command import verify

        return verify(self.seed, self.out)


@dataclass
class TrainToy:
    """Train on the paper's toy task: an input at the first step, a place on the unit circle to name at the last.

    All seeds train at once. The same command again goes on where it stopped.

    Example: bplambda train toy --rule bplambda --lam 1.0 --gamma 0.9 --length 20 --seeds 5
    """

    rule: Annotated[
        Literal["bplambda", "nstep", "truncated", "none", "bptt"],
        arg(help="The learning rule; none is truncated, n = 1."),
    ] = "bplambda"
    variant: Annotated[
        Literal["plastic", "fixed"],
        arg(help="Train the RNN too (3 pairs, tanh), or its synthesiser alone (1 pair, linear)."),
    ] = "plastic"
    length: Annotated[int, arg(help="T, the length of a sequence.")] = 20
    seeds: Annotated[int, arg(help="How many seeds, from 0.")] = 5
    lam: Annotated[float, arg(help="λ, of bplambda.")] = 1.0
    n: Annotated[int, arg(help="n, of nstep and truncated.")] = 5
    gamma: Annotated[float, arg(help="γ, of bplambda and nstep.")] = 0.9
    scale: Annotated[
        float | None,
        arg(help="Of the synthetic gradient that the network receives; 1 for bplambda, 0.1 for nstep if left out."),
    ] = None
    epochs: Annotated[int, arg(help="Of 100 batches.")] = 250
    network_rate: Annotated[float, arg(help="Learning rate of the cell.")] = 1e-3
    readout_rate: Annotated[float, arg(help="Learning rate of the readout.")] = 1e-3
    synthesiser_rate: Annotated[float, arg(help="Learning rate of the synthesiser.")] = 1e-3
    units: Annotated[int, arg(help="Of the RNN.")] = 30
    batch_size: Annotated[int, arg(help="Sequences in a batch.")] = 10
    batches: Annotated[int, arg(help="Batches in an epoch.")] = 100
    store: StoreFolder = Path("runs")

    def run(self) -> int:
        from .cache import use_compilation_cache
        from .checks import require_int
        from .config import Run
        from .train import train_toy

        require_int("seeds", self.seeds, minimum=1)
        settings = {k: v for k, v in vars(self).items() if k not in ("seeds", "store")}
        if self.scale is None:
            settings["scale"] = 0.1 if self.rule == "nstep" else 1.0
        if self.rule == "none":
            settings |= {"rule": "truncated", "n": 1}
        runs = [Run(seed=seed, **settings) for seed in range(self.seeds)]
        use_compilation_cache()
        return train_toy(runs, self.store, again())


@dataclass
class Train:
    """Train a network on a task; `bplambda train toy --help` shows the settings.

    Example: bplambda train toy --rule bplambda --lam 1.0 --length 20
    """

    task: Positional[Literal["toy"]]


@dataclass
class Reproduce:
    """Train what the paper's figures and tables need, draw them, and write one page with all of it.

    Finished runs are not repeated, and runs that were stopped go on from their checkpoint: the same command again
    continues. Without targets: theorem, fig2 and fig3 for the quick preset, everything for the paper's.

    Example: bplambda reproduce fig2 fig3 --preset quick
    """

    targets: Positional[list[Target]] = field(default_factory=list)
    preset: Annotated[Literal["quick", "paper"], arg(help="A few minutes, or all lengths and seeds of the paper.")] = (
        "quick"
    )
    seeds: Annotated[int | None, arg(help="How many seeds; the preset's own number if left out.")] = None
    store: StoreFolder = Path("runs")
    out: Annotated[Path, arg(help="Folder for the page, the figures and their numbers.")] = Path("report")
    workers: Annotated[int, arg(help="Processes to train in; one for each core if left out.")] = os.cpu_count() or 1

    def run(self) -> int:
        from .cache import use_compilation_cache
        from .checks import require_int
        from .executors import LocalProcesses
        from .experiments import EXPERIMENTS
        from .reproduce import reproduce
        from .runs import Store

        require_int("workers", self.workers, minimum=1)
        if self.seeds is not None:
            require_int("seeds", self.seeds, minimum=1)
        use_compilation_cache()
        default = ["theorem", "fig2", "fig3"] if self.preset == "quick" else ["all"]
        targets = list(dict.fromkeys(self.targets or default))
        targets = list(EXPERIMENTS) if "all" in targets else targets
        executor = LocalProcesses(self.workers)
        return reproduce(targets, self.preset, self.seeds, Store(self.store), self.out, executor, self.workers, again())


@dataclass
class Report:
    """Draw the figures and write the page again from the run store; nothing is trained.

    Example: bplambda report --store runs --out report
    """

    store: StoreFolder = Path("runs")
    out: Annotated[Path, arg(help="Folder for the page, the figures and their numbers.")] = Path("report")

    def run(self) -> int:
        from rich.console import Console

        from .cache import use_compilation_cache
        from .report import build
        from .reproduce import compare
        from .runs import Store

        use_compilation_cache()
        page, sections = build(Store(self.store).finished(), self.out)
        compare(sections, Console())
        print(f"The page: {page.resolve()}")
        return 0


def again() -> str:
    """The command that was given, to be given again."""
    return shlex.join(["bplambda", *sys.argv[1:]])


COMMANDS: dict[str, Callable[..., Any]] = {"train": Train, "reproduce": Reproduce, "report": Report, "verify": Verify}
TASKS: dict[str, Callable[..., Any]] = {"toy": TrainToy}


def parse(args: list[str]) -> Any:
    """The command that the arguments name. Each task has settings of its own."""
    if len(args) > 1 and args[0] == "train" and args[1] in TASKS:
        return tyro.cli(TASKS[args[1]], prog=f"bplambda train {args[1]}", args=args[2:])
    return tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="bplambda", description=main.__doc__, args=args)


def main() -> None:
    """Train recurrent networks without backpropagation through time."""
    from .runs import StoreError

    try:
        sys.exit(parse(sys.argv[1:]).run())
    except (ValueError, StoreError) as error:
        sys.exit(f"bplambda: {error}")
