"""The options of `bplambda train` for one run on several devices, of one host or of several."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from .checks import require, require_int
from .config import Run


@dataclass
class Devices:
    """Where a run's batch goes."""

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

    def train_on_devices(self, runs: Callable[[int], list[Run]], store: Path, again: str) -> int:
        """Trains `runs(devices)` and prints a table of them. **Returns:** the exit code."""
        import jax

        from .executors import in_this_process
        from .train import train_seeds

        here = self._on_this_host()
        if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", "") and here > 1:
            jax.config.update("jax_num_cpu_devices", here)  # a CPU is as many devices as one likes
        if not self.distributed:
            return train_seeds(runs(self.devices or 1), store, in_this_process, again)
        from .hosts import connect, leading, together

        connect(self.coordinator, self.processes, self.process)
        devices = self.devices or jax.device_count()
        return together(lambda: train_seeds(runs(devices), store, leading, again))

    def _on_this_host(self) -> int:
        """How many of the devices, if they are CPUs."""
        for name, minimum in (("devices", 1), ("processes", 1), ("process", 0)):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), minimum)
        for name in ("coordinator", "processes", "process"):
            value = getattr(self, name)
            require(self.distributed or value is None, name, value, "left out, unless with --distributed")
        devices, processes = self.devices or 1, self.processes or 1
        allowed = f"a multiple of {processes}, the number of processes"
        require(self.devices is None or devices % processes == 0, "devices", devices, allowed)
        return devices // processes
