"""Trains one group of runs, from its checkpoint if there is one, into the run store."""

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .config import Run
from .runs import Arrays, Checkpoint, Store
from .training import CHUNK, Metrics, State, advance, start, varied

SOLVED, LAST = 0.025, 20  # the paper's criterion: error below this, averaged over the last epochs


class Progress(NamedTuple):
    """Where a group is: epochs done, and the mean error of the latest."""

    epochs: int
    error: float


def train_group(group: list[Run], store: Store, report: Callable[[Progress], None]) -> None:
    """Trains a group to its end; what is already in the store is not repeated."""
    with store.lock(group):
        if all(store.find(run) for run in group):
            return
        run, v = group[0], varied(group)
        state = start(run, v)
        checkpoint = store.load_checkpoint(group)
        epochs, seconds, steady, metrics = 0, 0.0, [0.0, 0], []
        if checkpoint is not None:
            epochs, seconds, steady = (checkpoint.header[k] for k in ("epochs", "seconds", "steady"))
            state = _restored(state, checkpoint.arrays)
            metrics = [Metrics(*(checkpoint.arrays[f"metrics/{name}"] for name in Metrics._fields))]
        while epochs < run.epochs:
            count, began = min(CHUNK, run.epochs - epochs), time.perf_counter()
            state, new = advance(run, state, v, count)
            metrics.append(jax.tree.map(np.asarray, new))
            took = time.perf_counter() - began
            compiled = len(metrics) > (2 if checkpoint else 1)  # the first chunk includes the compilation
            epochs, seconds = epochs + count, seconds + took
            if compiled:
                steady = [steady[0] + took, steady[1] + count]
            if epochs < run.epochs:
                joined = _joined(metrics)
                curves = {f"metrics/{name}": curve for name, curve in joined._asdict().items()}
                header = {"epochs": epochs, "seconds": seconds, "steady": steady}
                store.save_checkpoint(group, Checkpoint(_saved(state) | curves, header))
            report(Progress(epochs, float(np.mean(metrics[-1].error[:, -1]))))
        _finish(group, store, state, _joined(metrics), seconds, steady)


def _finish(group, store: Store, state: State, metrics: Metrics, seconds: float, steady: list) -> None:
    learned = _named((state.network, state.synthesiser))
    run_steps = len(group) * steady[1] * group[0].batches * group[0].length
    for i, run in enumerate(group):
        if store.find(run):  # written before a kill
            continue
        mine = {name: curve[i] for name, curve in metrics._asdict().items()}
        result = {
            "error": float(np.mean(mine["error"][-LAST:])),
            "solved": bool(np.mean(mine["error"][-LAST:]) < SOLVED),
            "alignment": float(np.mean(mine["alignment"][-max(1, run.epochs // 10) :])) if run.length > 1 else 0.0,
            "seconds": seconds,
            "runs_together": len(group),
            "us_per_run_and_step": 1e6 * steady[0] / run_steps if run_steps else None,
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in ("bplambda", "jax", "jaxlib", "equinox", "optax", "numpy")},
        }
        store.write(group, run, mine, result, {name: array[i] for name, array in learned.items()})
    store.forget_checkpoint(group)


def _named(tree) -> Arrays:
    return {jax.tree_util.keystr(path): np.asarray(a) for path, a in jax.tree_util.tree_leaves_with_path(tree)}


def _joined(metrics: list[Metrics]) -> Metrics:
    return Metrics(*(np.concatenate(parts, axis=1) for parts in zip(*metrics, strict=True)))


def _is_key(leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _saved(state: State) -> Arrays:
    leaves = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(state)]
    return {f"state/{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}


def _restored(like: State, arrays: Arrays) -> State:
    leaves, structure = jax.tree.flatten(like)
    saved = [jnp.asarray(arrays[f"state/{i}"]) for i in range(len(leaves))]
    wrapped = [jax.random.wrap_key_data(a) if _is_key(leaf) else a for a, leaf in zip(saved, leaves, strict=True)]
    return jax.tree.unflatten(structure, wrapped)


def main() -> None:
    """A worker process: a group as one line of JSON comes in, a line of JSON for each piece of progress goes out."""
    from .cache import use_compilation_cache

    use_compilation_cache()
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    group = [Run(**run) for run in job["runs"]]
    train_group(group, Store(job["store"]), lambda progress: print(json.dumps(progress._asdict()), flush=True))


def _end_with_parent() -> None:
    """Standard input ends when the parent does, however that came about."""
    sys.stdin.read()
    os._exit(3)


if __name__ == "__main__":
    main()
