"""Groups of runs on a Ray cluster. Workers need no disk in common: all that they find comes back to the driver's store.

A group is an actor rather than a task that streams, since Ray cannot stream to its client (`ray://`). The driver pulls
one event after the other: no worker is ever ahead of what has been stored.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from ..cache import use_compilation_cache
from ..config import Run
from ..processes import one_thread
from ..runs import Checkpoint, Store, StoreError
from ..training import trainer
from ..work import Event, Progress, keep, training
from ._base import Failure, OnProgress, in_threads

CRASHES = 2  # of a group, by an exception: it would happen again and again
LOSSES = 5  # of a group's workers, with no new checkpoint in between
CHECKPOINT_EVERY = 30.0  # seconds, between two checkpoints that travel


class RayWorkers(NamedTuple):
    """A process for each group, anywhere on the cluster that Ray is connected to, with one CPU and `gpus` GPUs.

    A group that loses its worker (killed, out of memory, its node gone) goes on from its last checkpoint with another.
    One that crashes is tried once more; the others go on.
    """

    gpus: float = 0.0
    checkpoint_every: float = CHECKPOINT_EVERY

    def __call__(self, groups: list[list[Run]], store: Store, on_progress: OnProgress) -> list[Failure]:
        driver = _Driver(store, self._start, _data(groups))

        def train(i: int) -> str:
            return driver.train(groups[i], lambda progress: on_progress(i, progress))

        try:
            return in_threads(groups, len(groups), train)  # Ray knows how many of them can run at a time
        finally:
            driver.stop()

    def _start(self, *job: Any) -> Any:
        env = {name: value for name, value in one_thread().items() if name in _NUMERIC}
        if self.gpus == 0:
            env["JAX_PLATFORMS"] = "cpu"
        elif self.gpus < 1:
            env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # there are others on the same one
        actor = ray.remote(num_cpus=1, num_gpus=self.gpus, max_restarts=0, runtime_env={"env_vars": env})(_Worker)
        return actor.remote(*job, self.checkpoint_every)


# What a driver's environment says about numbers is true of its workers too.
_NUMERIC = (
    "XLA_FLAGS",
    "JAX_ENABLE_X64",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DEFAULT_PRNG_IMPL",
    "JAX_THREEFRY_PARTITIONABLE",
)


class _Worker:
    """A group in a process of its own, anywhere: its events, one for each call."""

    def __init__(self, group: list[Run], data: Any, checkpoint: Checkpoint | None, checkpoint_every: float):
        use_compilation_cache()
        events = training(group, jax.tree.map(jnp.asarray, data), checkpoint)
        self.events = sparing(events, checkpoint_every)

    def next(self) -> Event | None:
        return next(self.events, None)


def sparing(events: Iterable[Event], seconds: float) -> Iterator[Event]:
    """The events, with checkpoints left out that come sooner than so many seconds after the last."""
    last = time.monotonic()
    for event in events:
        if isinstance(event, Checkpoint):
            if time.monotonic() < last + seconds:
                continue
            last = time.monotonic()
        yield event


def _data(groups: list[list[Run]]) -> dict[tuple[str, str], Any]:
    """What the groups of a task all need, once, in Ray's object store: workers do not read it from their disks."""
    runs = {(run.task, run.data): run for run, *_ in groups}
    return {key: ray.put(jax.tree.map(np.asarray, trainer(run).data(run))) for key, run in runs.items()}


@dataclass
class _Driver:
    """Starts workers, and alone writes to the store. Each group has a thread, which holds its lock."""

    store: Store
    start: Callable[..., Any]
    data: dict[tuple[str, str], Any]
    workers: set[Any] = field(default_factory=set)
    stopping: threading.Event = field(default_factory=threading.Event)

    def train(self, group: list[Run], report: Callable[[Progress], None]) -> str:
        """Trains a group to its end. **Returns:** what went wrong, or nothing."""
        crashes = losses = 0
        try:
            with self.store.lock(group):
                while not all(self.store.find(run) for run in group):
                    checkpoint = self.store.load_checkpoint(group)
                    try:
                        keep(self._events(group, checkpoint), group, self.store, report)
                    except RayTaskError as error:
                        crashes, reason = crashes + 1, f"{type(error.cause).__name__}: {error.cause}"
                    except RayError as error:
                        went_on = _epochs(self.store.load_checkpoint(group)) > _epochs(checkpoint)
                        losses, reason = 1 if went_on else losses + 1, f"its worker was lost: {_first_line(error)}"
                    else:
                        continue
                    if self.stopping.is_set():
                        return ""
                    if crashes == CRASHES or losses == LOSSES:
                        return reason
            return ""
        except StoreError as error:
            return str(error)

    def _events(self, group: list[Run], checkpoint: Checkpoint | None) -> Iterator[Event]:
        worker = self.start(group, self.data[group[0].task, group[0].data], checkpoint)
        self.workers.add(worker)
        try:
            while (event := ray.get(worker.next.remote())) is not None:
                yield event
        finally:
            self.workers.discard(worker)
            ray.kill(worker)

    def stop(self) -> None:
        """Ends all workers, at once."""
        self.stopping.set()
        for worker in list(self.workers):
            ray.kill(worker)


def _epochs(checkpoint: Checkpoint | None) -> int:
    return checkpoint.header["epochs"] if checkpoint else 0


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
