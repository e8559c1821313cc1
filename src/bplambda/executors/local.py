"""Groups of runs on this machine: in this process, or in several."""

import subprocess
import threading
from dataclasses import asdict
from typing import NamedTuple

from ..config import Run
from ..processes import give, one_thread
from ..runs import Store
from ..work import Progress, train_group
from ._base import Failure, OnProgress, in_threads


def in_this_process(groups: list[list[Run]], store: Store, on_progress: OnProgress) -> list[Failure]:
    """One group after the other, here."""
    for i, group in enumerate(groups):
        train_group(group, store, lambda progress, i=i: on_progress(i, progress))
    return []


class LocalProcesses(NamedTuple):
    """`workers` processes on this machine, each with one XLA thread.

    A group whose process crashes is tried once more; the others go on.
    """

    workers: int

    def __call__(self, groups: list[list[Run]], store: Store, on_progress: OnProgress) -> list[Failure]:
        running: set[subprocess.Popen] = set()
        stopping = threading.Event()

        def train(i: int) -> str:
            reason = ""
            for _ in range(2):
                if stopping.is_set():
                    return ""
                job = {"store": str(store.folder), "runs": [asdict(run) for run in groups[i]]}
                reason = give("bplambda.work", job, lambda p: on_progress(i, Progress(**p)), running, one_thread())
                if not reason:
                    break
            return reason

        try:
            return in_threads(groups, self.workers, train)
        finally:
            stopping.set()
            for process in list(running):
                process.kill()
