"""The contract of an executor, and what those with many workers share."""

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ..config import Run
from ..runs import Store
from ..work import Progress

OnProgress = Callable[[int, Progress], None]


class Failure(NamedTuple):
    """A group that could not be trained, and what it said."""

    group: list[Run]
    reason: str


class Executor(Protocol):
    """Trains `groups` into `store`; calls `on_progress(i, progress)` for the i-th; returns what failed."""

    def __call__(self, groups: list[list[Run]], store: Store, on_progress: OnProgress) -> list[Failure]: ...


def in_threads(groups: list[list[Run]], threads: int, train: Callable[[int], str]) -> list[Failure]:
    """Calls `train(i)` for each group, so many at a time, in order.

    **Arguments:** the `groups`; the number of `threads`; `train`, which returns what went wrong, or nothing.

    **Returns:** what failed. An exception in a thread is raised here at once; the other threads are abandoned.
    """
    todo, done = queue.SimpleQueue(), queue.SimpleQueue()
    for i in range(len(groups)):
        todo.put(i)

    def work() -> None:
        while not todo.empty():
            try:
                i = todo.get_nowait()
                done.put((i, train(i)))
            except queue.Empty:  # another thread was faster
                return
            except BaseException as error:
                done.put((0, error))

    for _ in range(min(threads, len(groups))):
        threading.Thread(target=work, daemon=True).start()
    failures = []
    for i, outcome in (done.get() for _ in groups):
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome:
            failures.append(Failure(groups[i], outcome))
    return failures
