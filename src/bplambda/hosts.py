"""One run on several hosts: all processes train, the first decides what, and alone writes and prints."""

import io
import threading
from collections.abc import Callable
from dataclasses import asdict

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all

from .config import Run
from .executors import Failure, OnProgress
from .files import pack, unpack
from .runs import Checkpoint, Store
from .training import trainer
from .work import keep, training

_all_at_work = threading.Event()


def connect(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Joins the processes of a run; what is `None` is asked of the scheduler that started us.

    **Arguments:** `coordinator`, HOST:PORT, where process 0 listens, and on no other of its addresses; how many
    `processes` there are; which `process` this is, from 0.
    """
    try:
        jax.distributed.initialize(coordinator, processes, process, coordinator_bind_address=coordinator)
    except ValueError as error:
        advice = "give --coordinator HOST:PORT, --processes N and --process K"
        raise ValueError(f"No scheduler says which processes belong together ({error}): {advice}.") from error


def together(work: Callable[[], int]) -> int:
    """Does `work`, with `leading` as its executor, in process 0; the others follow until it is done.

    **Returns:** the exit code.
    """
    if jax.process_index() > 0:
        _follow()
        return 0
    try:
        return work()
    finally:
        if not _all_at_work.is_set():  # else the others wait for a share of this process, and not for a word
            _broadcast(b"")


def leading(groups: list[list[Run]], store: Store, on_progress: OnProgress) -> list[Failure]:
    """An executor: one group after the other, in all processes."""
    for i, group in enumerate(groups):
        with store.lock(group):
            if all(store.find(run) for run in group):
                continue
            checkpoint, data = store.load_checkpoint(group), trainer(group[0]).data(group[0])
            _all_at_work.set()
            _broadcast(_packed(group, checkpoint))
            keep(training(group, data, checkpoint), group, store, lambda progress, i=i: on_progress(i, progress))
            _all_at_work.clear()
    return []


def _follow() -> None:
    while job := _broadcast(b""):
        group, checkpoint = _unpacked(job)
        for _ in training(group, trainer(group[0]).data(group[0]), checkpoint):
            pass


def _broadcast(message: bytes) -> bytes:
    """The message of process 0, in all of them."""
    size = int(broadcast_one_to_all(np.array(len(message), np.int32)))
    if size == 0:
        return b""
    mine = np.frombuffer(message or bytes(size), np.uint8)
    return np.asarray(broadcast_one_to_all(mine)).tobytes()


def _packed(group: list[Run], checkpoint: Checkpoint | None) -> bytes:
    arrays, header = checkpoint or Checkpoint({}, {})
    file = io.BytesIO()
    pack(file, {"runs": [asdict(run) for run in group], "checkpoint": header}, arrays)
    return file.getvalue()


def _unpacked(message: bytes) -> tuple[list[Run], Checkpoint | None]:
    job, arrays = unpack(io.BytesIO(message))
    header = job["checkpoint"]
    return [Run(**run) for run in job["runs"]], Checkpoint(arrays, header) if header else None
