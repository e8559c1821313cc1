"""Trains one group of runs, from its checkpoint if there is one, into the run store."""

import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import numpy as np

from .checkpoints import from_arrays, to_arrays
from .config import Run
from .processes import say, take
from .runs import Arrays, Checkpoint, Store
from .training import Trainer, trainer, varied

_CURVE = "curves/"


class Progress(NamedTuple):
    """Where a group is: epochs done, and the mean error of the latest."""

    epochs: int
    error: float


def train_group(group: list[Run], store: Store, report: Callable[[Progress], None]) -> None:
    """Trains a group to its end; what is already in the store is not repeated."""
    with store.lock(group):
        if all(store.find(run) for run in group):
            return
        run, v, how = group[0], varied(group), trainer(group[0])
        data = how.data(run)
        state = how.start(run, v, data)
        checkpoint = store.load_checkpoint(group)
        epochs, seconds, steady, curves = 0, 0.0, [0.0, 0], []
        if checkpoint is not None:
            epochs, seconds, steady = (checkpoint.header[k] for k in ("epochs", "seconds", "steady"))
            state = _restored(state, checkpoint.arrays)
            curves = [{k.removeprefix(_CURVE): a for k, a in checkpoint.arrays.items() if k.startswith(_CURVE)}]
        while epochs < run.epochs:
            count, began = min(how.chunk, run.epochs - epochs), time.perf_counter()
            state, new = how.advance(run, state, v, data, count)
            curves.append(new)
            took = time.perf_counter() - began
            compiled = len(curves) > (2 if checkpoint else 1)  # the first chunk includes the compilation
            epochs, seconds = epochs + count, seconds + took
            if compiled:
                steady = [steady[0] + took, steady[1] + count]
            if epochs < run.epochs:
                saved = {_CURVE + name: curve for name, curve in _joined(curves).items()}
                header = {"epochs": epochs, "seconds": seconds, "steady": steady}
                store.save_checkpoint(group, Checkpoint(_saved(state) | saved, header))
            report(Progress(epochs, float(np.mean(new["error"][:, -1]))))
        _finish(group, store, how, state, _joined(curves), seconds, steady)


def _finish(
    group: list[Run], store: Store, how: Trainer, state: Any, curves: Arrays, seconds: float, steady: list
) -> None:
    learned = how.learned(state)
    parameters = _named((learned.network, learned.synthesiser))
    run_steps = sum(run.steps for run in group) * steady[1] / group[0].epochs
    for i, run in enumerate(group):
        if store.find(run):  # written before a kill
            continue
        mine = {name: curve[i] for name, curve in curves.items()}
        result = how.summary(run, mine) | {
            "seconds": seconds,
            "runs_together": len(group),
            "us_per_run_and_step": 1e6 * steady[0] / run_steps if run_steps else None,
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in ("bplambda", "jax", "jaxlib", "equinox", "optax", "numpy")},
        }
        store.write(group, run, mine, result, {name: array[i] for name, array in parameters.items()})
    store.forget_checkpoint(group)


def _named(tree) -> Arrays:
    return {jax.tree_util.keystr(path): np.asarray(a) for path, a in jax.tree_util.tree_leaves_with_path(tree)}


def _joined(curves: list[Arrays]) -> Arrays:
    return {name: np.concatenate([c[name] for c in curves], axis=1) for name in curves[0]}


def _saved(state: Any) -> Arrays:
    return {f"state/{i}": array for i, array in enumerate(to_arrays(state))}


def _restored(like: Any, arrays: Arrays) -> Any:
    return from_arrays(like, [arrays[f"state/{i}"] for i in range(len(jax.tree.leaves(like)))])


def main() -> None:
    """A worker process: a group as one line of JSON comes in, a line of JSON for each piece of progress goes out."""
    from .cache import use_compilation_cache

    use_compilation_cache()
    job = take()
    group = [Run(**run) for run in job["runs"]]
    train_group(group, Store(job["store"]), lambda progress: say(progress._asdict()))


if __name__ == "__main__":
    main()
