"""`bplambda train`: the settings of each task, and of the devices it is trained on."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, arg

from .checks import require, require_int
from .config import Run, TaskName, run_of
from .options import DataFolder, StoreFolder, again, use_data_folder

CellRate = Annotated[float, arg(help="Learning rate of the cell.")]
ReadoutRate = Annotated[float, arg(help="Learning rate of the readout.")]
SynthesiserRate = Annotated[float, arg(help="Learning rate of the synthesiser, as the paper counts it.")]
Units = Annotated[int, arg(help="Number of units in the cell.")]
BatchSize = Annotated[int, arg(help="Sequences in a batch.")]

# The defaults.
_TOY, _SEQMNIST, _COPYREPEAT = run_of("toy"), run_of("seqmnist"), run_of("copyrepeat")


@dataclass
class Devices:
    """One large run on several devices, of one host or of several."""

    devices: Annotated[
        int | None,
        arg(help="Share each batch out among so many; 1 if left out, or with --distributed all that there are."),
    ] = None
    distributed: Annotated[bool, arg(help="The devices of several processes: start one on each host.")] = False
    coordinator: Annotated[
        str | None, arg(help="HOST:PORT of process 0, with --distributed; a scheduler such as Slurm knows it.")
    ] = None
    processes: Annotated[int | None, arg(help="How many, with --distributed; a scheduler knows it.")] = None
    process: Annotated[int | None, arg(help="Which one this is, from 0; a scheduler knows it.")] = None

    def _check(self) -> None:
        for name, minimum in (("devices", 1), ("processes", 1), ("process", 0)):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), minimum)
        for name in ("coordinator", "processes", "process"):
            value = getattr(self, name)
            require(self.distributed or value is None, name, value, "left out, unless with --distributed")
        if self.devices is not None and self.processes is not None:
            allowed = f"a multiple of {self.processes}, the number of processes"
            require(self.devices % self.processes == 0, "devices", self.devices, allowed)

    def train(self, runs: Callable[[int], list[Run]], store: Path, again: str) -> int:
        """Trains `runs(devices)` and prints a table of them. **Returns:** the exit code."""
        import jax

        from .executors import in_this_process
        from .train import train_seeds

        self._check()
        here = (self.devices or 1) // (self.processes or 1)
        if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", "") and here > 1:
            jax.config.update("jax_num_cpu_devices", here)  # a CPU is as many devices as one likes
        if not self.distributed:
            return train_seeds(runs(self.devices or 1), store, in_this_process, again)
        from .hosts import connect, leading, together

        connect(self.coordinator, self.processes, self.process)
        devices = self.devices or jax.device_count()
        return together(lambda: train_seeds(runs(devices), store, leading, again))


@dataclass
class _Training:
    """What all tasks have."""

    rule: Annotated[
        Literal["bplambda", "nstep", "truncated", "none", "bptt"],
        arg(help="The learning rule; none is truncated, n = 1."),
    ] = "bplambda"
    seeds: Annotated[int, arg(help="How many seeds, from 0.")] = 5
    lam: Annotated[float, arg(help="Trace decay λ of bplambda, from 0 to 1.")] = 1.0
    n: Annotated[int, arg(help="Steps n between two edges, of nstep and truncated.")] = 5
    gamma: Annotated[float, arg(help="Discount γ of bplambda and nstep, from 0 to 1.")] = 0.9
    scale: Annotated[
        float | None,
        arg(help="Of the synthetic gradient that the network receives; the paper's for rule and task if left out."),
    ] = None
    network_rate: CellRate = _TOY.network_rate
    readout_rate: ReadoutRate = _TOY.readout_rate
    synthesiser_rate: SynthesiserRate = _TOY.synthesiser_rate
    units: Units = _TOY.units
    batch_size: BatchSize = _TOY.batch_size
    schedule: Annotated[Literal["constant", "cosine"], arg(help="Of all rates; cosine ends at zero.")] = "constant"
    store: StoreFolder = Path("runs")
    devices: Annotated[Devices, OmitArgPrefixes] = field(default_factory=Devices)

    def train(self, task: TaskName, **settings: Any) -> int:
        from .cache import use_compilation_cache

        require_int("seeds", self.seeds, minimum=1)
        names = {each.name for each in fields(_Training)} - {"seeds", "store", "devices"}
        settings |= {name: getattr(self, name) for name in names}
        if self.scale is None:
            del settings["scale"]
            settings |= {"scale": 0.1} if self.rule == "nstep" else {}
        if self.rule == "none":
            settings |= {"rule": "truncated", "n": 1}
        use_compilation_cache()

        def runs(devices: int) -> list[Run]:
            return [run_of(task, seed=seed, devices=devices, **settings) for seed in range(self.seeds)]

        return self.devices.train(runs, self.store, again())


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
    length: Annotated[int, arg(help="T, the length of a sequence.")] = _TOY.length
    epochs: Annotated[int, arg(help="Number of epochs, of --batches batches each.")] = _TOY.epochs
    batches: Annotated[int, arg(help="Batches in an epoch.")] = _TOY.batches

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
    epochs: Annotated[int, arg(help="Passes over the training images.")] = _SEQMNIST.epochs
    network_rate: CellRate = _SEQMNIST.network_rate
    readout_rate: ReadoutRate = _SEQMNIST.readout_rate
    synthesiser_rate: SynthesiserRate = _SEQMNIST.synthesiser_rate
    batch_size: BatchSize = _SEQMNIST.batch_size
    synthesiser: Annotated[
        Literal["linear", "conditional"],
        arg(help="What predicts gradients: linear, as in the paper, or one that is also told the label and the time."),
    ] = "linear"
    data_dir: DataFolder = None
    checksum: Annotated[bool, arg(help="Only the images of MNIST; without, any of the same shape.")] = True

    def run(self) -> int:
        from .data import data_folder, load_mnist
        from .training.seqmnist import batches

        use_data_folder(self.data_dir)
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
    batches: Annotated[int, arg(help="Total batches, in hundreds; the paper's authors ran 150,000.")] = 30_000
    network_rate: CellRate = _COPYREPEAT.network_rate
    readout_rate: ReadoutRate = _COPYREPEAT.readout_rate
    synthesiser_rate: SynthesiserRate = _COPYREPEAT.synthesiser_rate
    units: Units = _COPYREPEAT.units
    batch_size: BatchSize = _COPYREPEAT.batch_size

    def run(self) -> int:
        require(self.batches >= 100 and self.batches % 100 == 0, "batches", self.batches, "a multiple of 100")
        return self.train("copyrepeat", epochs=self.batches // 100)


TASKS: dict[str, Callable[..., Any]] = {"toy": TrainToy, "seqmnist": TrainSeqMnist, "copyrepeat": TrainCopyRepeat}
