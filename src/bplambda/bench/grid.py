"""Throughput of a grid: the toy task, more and more runs in one program, in one process and in one for each core."""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import jax

from ..config import Run
from ..training import trainer, varied
from .effort import Effort
from .measure import Now, Row, block, cores, pin, surroundings

RUN = Run(length=20, batches=10)


def train(core: int, effort: Effort, barrier: Any, results: Any) -> None:
    """A process on its core: the seconds of an epoch for each number of runs, all processes at the same time."""
    pin(core)
    from ..cache import use_compilation_cache

    use_compilation_cache()
    for count in effort.runs:
        runs = [Run(length=RUN.length, batches=RUN.batches, seed=seed) for seed in range(count)]
        how, v = trainer(RUN), varied(runs)
        state = how.start(RUN, v, None)

        def epoch(how=how, state=state, v=v):
            jax.block_until_ready(how.advance(RUN, state, v, None, 1)[0].learned)

        epoch()
        barrier.wait()
        results.put((count, block(epoch, effort.rounds * effort.seconds)))
        barrier.wait()


def grid(effort: Effort) -> Iterator[Row | Now]:
    """Runs × time-steps a second, by how many runs train at once and in how many processes."""
    there = cores()
    for processes in sorted({1, len(there)}):
        yield Now(f"grid/{processes}-processes")
        found = _together(there[-processes:], effort)
        config = surroundings(effort) | {"processes": processes, "length": RUN.length, "units": RUN.units}
        for count in effort.runs:
            rate = sum(count * RUN.batches * RUN.length / seconds for n, seconds in found if n == count)
            more = {"runs_per_process": count, "batch": RUN.batch_size}
            yield Row(f"grid/{processes}-processes/{count}-runs", rate, "runs*steps/s", None, None, config | more)


def _together(on: list[int], effort: Effort) -> list[tuple[int, float]]:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(len(on), timeout=300), context.SimpleQueue()
    processes = [context.Process(target=train, args=(core, effort, barrier, results), daemon=True) for core in on]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process of the grid ended with exit code {process.exitcode}")
    return [results.get() for _ in range(len(on) * len(effort.runs))]
