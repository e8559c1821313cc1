"""Groups of runs on this machine: in this process, or in several."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import NamedTuple

from ..config import Run
from ..runs import Store
from ..work import Progress, train_group
from ._base import Failure, OnProgress, in_threads, xla_flags


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
                reason = self._once(groups[i], store, lambda progress: on_progress(i, progress), running)
                if not reason or "StoreError" in reason:
                    break
            return reason

        try:
            return in_threads(groups, self.workers, train)
        finally:
            stopping.set()
            for process in list(running):
                process.kill()

    def _once(self, group: list[Run], store: Store, report: Callable[[Progress], None], running: set) -> str:
        """Trains a group in a process of its own. **Returns:** what went wrong, or nothing."""
        process = subprocess.Popen(
            [sys.executable, "-m", "bplambda.work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"XLA_FLAGS": xla_flags()},
            start_new_session=True,  # Ctrl-C is for the parent, which decides
        )
        running.add(process)
        errors: list[str] = []
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            listener = threading.Thread(target=lambda: errors.extend(process.stderr or []), daemon=True)
            listener.start()
            job = {"store": str(store.folder), "runs": [asdict(run) for run in group]}
            with contextlib.suppress(BrokenPipeError):  # it died before it could be told
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
            for line in process.stdout:
                if line.startswith("{"):
                    report(Progress(**json.loads(line)))
                else:
                    print(line, end="")
            code = process.wait()
            listener.join()
        running.discard(process)
        if code == 0:
            return ""
        last = [line.strip() for line in errors if line.strip()][-1:] or ["it said nothing"]
        return f"{last[0]} (exit code {code})"
