"""Where groups of runs are trained. An executor is one function: groups in, failures out."""

import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import NamedTuple, Protocol

from .config import Run
from .processes import give, one_thread
from .runs import Store
from .work import Progress, train_group

OnProgress = Callable[[int, Progress], None]


class Failure(NamedTuple):
    """A group that could not be trained, and what it said."""

    group: list[Run]
    reason: str


class Executor(Protocol):
    """Trains `groups` into `store`; calls `on_progress(i, progress)` for the i-th; returns what failed."""

    def __call__(self, groups: list[list[Run]], store: Store, on_progress: OnProgress) -> list[Failure]: ...


def in_this_process(groups: list[list[Run]], store: Store, on_progress: OnProgress) -> list[Failure]:
    """One group after the other, here."""
    for i, group in enumerate(groups):
        train_group(group, store, lambda progress, i=i: on_progress(i, progress))
    return []


class LocalProcesses(NamedTuple):
    """`workers` processes on this machine, each with one XLA thread: for many small runs faster than many threads.

    A group whose process crashes is tried once more; the others go on.
    """

    workers: int

    def __call__(self, groups: list[list[Run]], store: Store, on_progress: OnProgress) -> list[Failure]:
        running: set[subprocess.Popen] = set()
        stopping = threading.Event()

        def train(i: int) -> Failure | None:
            reason = ""
            for _ in range(2):
                if stopping.is_set():
                    return None
                job = {"store": str(store.folder), "runs": [asdict(run) for run in groups[i]]}
                reason = give("bplambda.work", job, lambda p: on_progress(i, Progress(**p)), running, one_thread())
                if not reason or "StoreError" in reason:
                    break
            return Failure(groups[i], reason) if reason and not stopping.is_set() else None

        with ThreadPoolExecutor(self.workers) as pool:
            futures = [pool.submit(train, i) for i in range(len(groups))]
            try:
                return [failure for future in futures if (failure := future.result())]
            except BaseException:
                stopping.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(running):
                    process.kill()
                raise
