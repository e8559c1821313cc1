"""How long the whole reproduction takes on many workers, from the run times in a run store.

    python benchmarks/schedule.py runs --workers 1 16 64 256

A simulation: whenever a worker is free it takes the longest group that is left, as `bplambda reproduce` does. The time
of a run that is not finished comes from the checkpoints of its task, or from the speed of its finished runs; with
an empty store, all times come from the speeds that the library expects of a free core.
"""

import argparse
import heapq
import statistics
from typing import NamedTuple

from bplambda.config import Run
from bplambda.experiments import EXPERIMENTS
from bplambda.runs import Finished, Store
from bplambda.train import seconds_of
from bplambda.training import groups


class Schedule(NamedTuple):
    """When all is done, and how long each worker was busy."""

    makespan: float
    busy: list[float]


def schedule(costs: list[float], workers: int, start: float) -> Schedule:
    """Longest first. **Arguments:** seconds of each group; the `workers`; seconds to `start` one for a group."""
    free = [(0.0, worker) for worker in range(workers)]
    busy = [0.0] * workers
    for cost in sorted(costs, reverse=True):
        since, worker = heapq.heappop(free)
        busy[worker] = since + start + cost
        heapq.heappush(free, (busy[worker], worker))
    return Schedule(max(busy), busy)


def cost(group: list[Run], found: dict[Run, Finished], underway: dict[str, float]) -> tuple[float, bool]:
    """Seconds of a group on one core, and whether they were measured, run by run."""
    done = [found[run].result for run in group if run in found]
    seconds = sum(result["seconds"] / result["runs_together"] for result in done)
    rest = [run for run in group if run not in found]
    for run in rest:
        epoch = underway.get(run.task)
        seconds += epoch * run.epochs if epoch else seconds_of([run], list(found.values()))
    return seconds, not rest


def epochs_underway(store: Store, todo: list[list[Run]], found: dict[Run, Finished]) -> dict[str, float]:
    """Seconds of an epoch, for a run of each task of which there are checkpoints and nothing finished."""
    tasks: dict[str, list[float]] = {}
    for group in todo:
        if group[0].task in {run.task for run in found}:
            continue
        checkpoint = store.load_checkpoint(group)
        if checkpoint and checkpoint.header["steady"][1]:
            seconds, epochs = checkpoint.header["steady"]
            tasks.setdefault(group[0].task, []).append(seconds / epochs / len(group))
    return {task: statistics.mean(times) for task, times in tasks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--start", type=float, default=5.0, help="seconds to start a worker for a group")
    options = parser.parse_args()

    todo = groups([run for experiment in EXPERIMENTS.values() for run in experiment.runs("paper", None)])
    store = Store(options.store)
    found = {f.run: f for f in store.finished()}
    underway = epochs_underway(store, todo, found)
    costs = [cost(group, found, underway) for group in todo]
    for task in dict.fromkeys(group[0].task for group in todo):
        of_task = [c for group, c in zip(todo, costs, strict=True) if group[0].task == task]
        hours, measured = sum(c for c, _ in of_task) / 3600, sum(known for _, known in of_task)
        print(f"{task}: {len(of_task)} groups, {measured} of them measured, {hours:.1f} hours on one core")

    seconds = [c for c, _ in costs]
    alone = schedule(seconds, 1, options.start).makespan
    print("\n| workers | hours | speed-up | busy |\n|---|---|---|---|")
    for workers in options.workers:
        made = schedule(seconds, workers, options.start)
        share = 100 * sum(made.busy) / (workers * made.makespan)
        print(f"| {workers} | {made.makespan / 3600:.2f} | {alone / made.makespan:.1f} | {share:.0f} % |")
    longest = max(range(len(todo)), key=lambda i: seconds[i])
    group, (took, measured) = todo[longest], costs[longest]
    more = f" and {len(group) - 1} more in one program" if len(group) > 1 else ""
    how = "measured" if measured else "estimated"
    print(f"\nThe critical path: {group[0].name}{more}, {group[0].epochs} epochs: {took / 3600:.2f} hours, {how}.")


if __name__ == "__main__":
    main()
