"""A pytree of arrays in one file: whole or not at all, checked when it is read, and nothing is ever unpickled."""

import hashlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .files import DAMAGE, pack, unpack, write_whole

FORMAT = 1


class CheckpointError(ValueError):
    """The file cannot be used; the message says why."""


def save(path: Path, tree: Any, configuration: dict[str, Any]) -> None:
    """Replaces `path`, all at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = to_arrays(tree)
    header = {
        "format": FORMAT,
        "configuration": configuration,
        "leaves": _described(tree),
        "sha256": _digest(arrays),
    }
    write_whole(path, lambda file: pack(file, header, {str(i): a for i, a in enumerate(arrays)}))


def configuration(path: Path) -> dict[str, Any]:
    """What `path` was saved with."""
    return _read(path)[0]["configuration"]


def load(path: Path, like: Any, configuration: dict[str, Any]) -> Any:
    """The pytree in `path`, which must be of the structure and shapes of `like`, and saved with `configuration`."""
    header, arrays = _read(path)
    saved = header["configuration"]
    differences = [
        f"{name} is {saved.get(name)!r} in the file, {configuration.get(name)!r} here"
        for name in saved  # what an older version did not write is not known to be different
        if saved[name] != configuration.get(name)
    ]
    if differences:
        raise CheckpointError(f"{path} was saved by another learner: {'; '.join(sorted(differences))}.")
    if difference := _difference(header["leaves"], _described(like), "in the file"):
        raise CheckpointError(f"{path} was saved by a learner with another network or optimiser: {difference}.")
    if len(arrays) != len(header["leaves"]) or _digest(arrays) != header["sha256"]:
        raise CheckpointError(f"{path} is not a whole checkpoint: its contents have been changed.")
    return from_arrays(like, arrays)


def check(tree: Any, like: Any, name: str, wanted: str) -> None:
    """Refuses a pytree, called `name`, that is not of the structure and shapes of `like`."""
    if difference := _difference(_described(tree), _described(like), "there"):
        raise ValueError(f"{name} must be {wanted}: {difference}.")


def _difference(one: list[str], other: list[str], where: str) -> str:
    """The first difference between two descriptions, the first being of what is `where`; nothing if there is none."""
    wrong = [f"{a} {where}, {b} here" for a, b in zip(one, other, strict=False) if a != b]
    if len(one) != len(other):
        wrong.append(f"{len(one)} arrays {where}, {len(other)} here")
    return wrong[0] if wrong else ""


def _read(path: Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The header and the arrays, if they can be read at all."""
    try:
        with path.open("rb") as file:
            header, _ = unpack(file, names=())
            known = header["format"] == FORMAT
            arrays = unpack(file)[1] if known else {}
            found = [arrays[str(i)] for i in range(len(arrays))]
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint at {path}.") from None
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read: {error.strerror or error}.") from error
    except DAMAGE as error:
        raise CheckpointError(f"{path} is not a whole checkpoint: it was cut short or changed.") from error
    if not known:
        raise CheckpointError(
            f"{path} is of format {header['format']}, but this version of bplambda reads format {FORMAT}: "
            "use the version that wrote it, or a newer one."
        )
    return header, found


def to_arrays(tree: Any) -> list[np.ndarray]:
    """The leaves of a pytree, PRNG keys as their data, and what NumPy's files do not know (bfloat16) as its bits."""
    arrays = (np.asarray(jax.random.key_data(a) if _is_key(a) else a) for a in jax.tree.leaves(tree))
    return [a.view(f"u{a.itemsize}") if a.dtype.kind == "V" else a for a in arrays]


def from_arrays(like: Any, arrays: list[np.ndarray]) -> Any:
    """The pytree of the structure of `like` whose leaves `to_arrays` gave."""
    leaves, structure = jax.tree.flatten(like)

    def wrapped(a: np.ndarray, leaf: Any) -> jax.Array:
        if _is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(a), impl=str(leaf.dtype._impl.name))
        return jnp.asarray(a.view(leaf.dtype) if np.dtype(leaf.dtype).kind == "V" else a)

    return jax.tree.unflatten(structure, [wrapped(a, leaf) for a, leaf in zip(arrays, leaves, strict=True)])


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _described(tree: Any) -> list[str]:
    """Each leaf of a pytree: where it is, its dtype, its shape."""
    return [
        f"{jax.tree_util.keystr(path)}: {leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _digest(arrays: list[np.ndarray]) -> str:
    sha256 = hashlib.sha256()
    for array in arrays:
        sha256.update(np.ascontiguousarray(array).tobytes())
    return sha256.hexdigest()
