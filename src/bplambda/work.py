"""Trains one group of runs, from its checkpoint if there is one, into the run store."""

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .checkpoints import from_arrays, to_arrays
from .config import Run
from .processes import say, take
from .rules.parallel import mesh
from .runs import Arrays, Checkpoint, Store
from .training import Trainer, trainer, varied

_CURVE = "curves/"


class Progress(NamedTuple):
    """Where a group is: epochs done, and the mean error of the latest."""

    epochs: int
    error: float


class Trained(NamedTuple):
    """A run that has come to its end: its curves, its final figures, its parameters."""

    run: Run
    metrics: Arrays
    result: dict[str, Any]
    parameters: Arrays


Event = Progress | Checkpoint | Trained


def train_group(group: list[Run], store: Store, report: Callable[[Progress], None]) -> None:
    """Trains a group to its end; what is already in the store is not repeated."""
    with store.lock(group):
        if not all(store.find(run) for run in group):
            data = trainer(group[0]).data(group[0])
            keep(training(group, data, load_checkpoint(group, data, store)), group, store, report)


def load_checkpoint(group: list[Run], data: Any, store: Store) -> Checkpoint | None:
    """The checkpoint of a group, or `None`. One that training cannot go on from is set aside."""
    checkpoint = store.load_checkpoint(group)
    if checkpoint is None:
        return None
    state = trainer(group[0]).start(group[0], varied(group), data)
    if why := _unusable(checkpoint, len(group), to_arrays(state)):
        store.set_checkpoint_aside(group, why)
        return None
    return checkpoint


def _unusable(checkpoint: Checkpoint, runs: int, state: list[np.ndarray]) -> str:
    """Why training cannot go on from a checkpoint to a state of such arrays, or nothing."""
    match checkpoint.header:
        case {"epochs": int(epochs), "seconds": float() | int(), "steady": [float() | int(), int()]}:
            pass
        case _:
            return "its header lacks epochs, seconds or steady"
    shapes = {name: array.shape for name, array in checkpoint.arrays.items()}
    if wrong := [i for i, array in enumerate(state) if shapes.get(f"state/{i}") != array.shape]:
        return f"its state/{wrong[0]} is not there, or of another shape"
    curves = [shape[:2] for name, shape in shapes.items() if name.startswith(_CURVE)]
    if _CURVE + "error" not in shapes or any(shape != (runs, epochs) for shape in curves):
        return f"its curves are not those of {epochs} epochs"
    return ""


def keep(events: Iterable[Event], group: list[Run], store: Store, report: Callable[[Progress], None]) -> None:
    """Puts what comes of a group into the store. The caller holds the group's lock."""
    for event in events:
        match event:
            case Progress():
                report(event)
            case Checkpoint():
                store.save_checkpoint(group, event)
            case Trained():
                if not store.find(event.run):  # unless it was written before a kill
                    store.write(group, *event)
    store.forget_checkpoint(group)


def training(group: list[Run], data: Any, checkpoint: Checkpoint | None) -> Iterator[Event]:
    """Trains a group from its checkpoint to its end, and says what comes of it. Knows no store, and no disk.

    **Arguments:** the `group`; its trainer's `data`; a `checkpoint` of the group, or `None` to start.

    **Returns:** at the end of each chunk, a `Checkpoint`, then `Progress`; at last, each run as it is `Trained`.
    """
    run, v, how = group[0], varied(group), trainer(group[0])
    state = how.start(run, v, data)
    epochs, seconds, steady, curves, compiled = 0, 0.0, [0.0, 0], [], set()
    if checkpoint is not None:
        epochs, seconds, steady = (checkpoint.header[k] for k in ("epochs", "seconds", "steady"))
        state = _restored(state, checkpoint.arrays)
        curves = [{k.removeprefix(_CURVE): a for k, a in checkpoint.arrays.items() if k.startswith(_CURVE)}]
    if run.devices > 1:
        state, v, data = _on_all((state, v, data), run.devices)
    while epochs < run.epochs:
        count, began = min(how.chunk, run.epochs - epochs), time.perf_counter()
        state, new = how.advance(run, state, v, data, count)
        curves.append(new)
        took = time.perf_counter() - began
        epochs, seconds = epochs + count, seconds + took
        if count in compiled:  # the first chunk of so many epochs includes the compilation
            steady = [steady[0] + took, steady[1] + count]
        compiled.add(count)
        if epochs < run.epochs:
            saved = {_CURVE + name: curve for name, curve in _joined(curves).items()}
            yield Checkpoint(_saved(state) | saved, {"epochs": epochs, "seconds": seconds, "steady": steady})
        yield Progress(epochs, float(np.mean(new["error"][:, -1])))
    yield from _trained(group, how, state, _joined(curves), seconds, steady)


def _trained(
    group: list[Run], how: Trainer, state: Any, curves: Arrays, seconds: float, steady: list
) -> Iterator[Trained]:
    learned = how.learned(state)
    parameters = _named((learned.network, learned.synthesiser))
    run_steps = sum(run.steps for run in group) * steady[1] / group[0].epochs
    for i, run in enumerate(group):
        mine = {name: curve[i] for name, curve in curves.items()}
        result = how.summary(run, mine) | {
            "seconds": seconds,
            "runs_together": len(group),
            "us_per_run_and_step": 1e6 * steady[0] / run_steps if run_steps else None,
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in ("bplambda", "jax", "jaxlib", "equinox", "optax", "numpy")},
        }
        yield Trained(run, mine, result, {name: array[i] for name, array in parameters.items()})


def _named(tree) -> Arrays:
    return {jax.tree_util.keystr(path): np.asarray(a) for path, a in jax.tree_util.tree_leaves_with_path(tree)}


def _joined(curves: list[Arrays]) -> Arrays:
    return {name: np.concatenate([c[name] for c in curves], axis=1) for name in curves[0]}


def _saved(state: Any) -> Arrays:
    return {f"state/{i}": array for i, array in enumerate(to_arrays(state))}


def _restored(like: Any, arrays: Arrays) -> Any:
    return from_arrays(like, [arrays[f"state/{i}"] for i in range(len(jax.tree.leaves(like)))])


def _on_all(tree: Any, devices: int) -> Any:
    """A copy of all arrays for each of the devices; on several hosts, every process calls it with the same."""
    copied = jax.jit(lambda arrays: from_arrays(tree, arrays), out_shardings=NamedSharding(mesh(devices), P()))
    return copied(to_arrays(tree))


def main() -> None:
    """A worker process: a group as one line of JSON comes in, a line of JSON for each piece of progress goes out."""
    from .cache import use_compilation_cache

    use_compilation_cache()
    job = take()
    group = [Run(**run) for run in job["runs"]]
    train_group(group, Store(job["store"]), lambda progress: say(progress._asdict()))


if __name__ == "__main__":
    main()
