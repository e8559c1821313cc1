"""The same four groups of runs on one worker and on two, as local processes and on a Ray of our own.

    python benchmarks/workers.py [local] [ray]

Programs are compiled first, and kept: what is timed is the start of each worker, loading and training. Starting Ray
itself is given apart.
"""

import os
import tempfile
import time
from typing import Literal

import tyro

from bplambda.cache import use_compilation_cache
from bplambda.config import Run
from bplambda.executors import Executor, LocalProcesses
from bplambda.executors.cluster import cluster
from bplambda.runs import Store

GROUPS = [[Run(length=T, seed=seed, epochs=10) for seed in range(32)] for T in range(20, 24)]


def seconds(executor: Executor) -> float:
    """The wall-clock time of all groups, into a new store."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        store.prepare()
        began = time.perf_counter()
        assert executor(GROUPS, store, lambda i, progress: None) == []
        return time.perf_counter() - began


def on_local_processes(workers: int) -> None:
    print(f"local, {workers} workers: {seconds(LocalProcesses(workers)):.1f} s", flush=True)


def on_ray(workers: int) -> None:
    began = time.perf_counter()
    with cluster(None, workers, 0.0) as (executor, _):
        started = time.perf_counter() - began
        print(f"ray, {workers} workers: {seconds(executor):.1f} s (and {started:.1f} s to start Ray)", flush=True)


def main(which: tuple[Literal["local", "ray"], ...] = ("local", "ray"), /) -> None:
    use_compilation_cache()
    seconds(LocalProcesses(os.cpu_count() or 1))  # compiles
    contenders = {"local": on_local_processes, "ray": on_ray}
    for name in which:
        for workers in (1, 2):
            contenders[name](workers)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
