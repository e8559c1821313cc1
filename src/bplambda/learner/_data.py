"""Does this piece of a stream fit the learner? Asked of every step, so asked quickly."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import losses
from ..checks import evaluate, require, shape_of
from ..network import Network


class Example(NamedTuple):
    """The shapes and dtypes of an input and a target of one stream."""

    x: PyTree[jax.ShapeDtypeStruct]
    y: PyTree[jax.ShapeDtypeStruct]


class Data(NamedTuple):
    """Steps as arrays, of NumPy or JAX: inputs, targets, and the weights of the losses."""

    x: PyTree
    y: PyTree
    weight: Any


def of_network(network: Network) -> Example | None:
    """As far as the network tells them: the target is like the prediction, or an index of one."""
    size = getattr(network.cell, "input_size", None)
    if size is None:
        return None
    x = jax.ShapeDtypeStruct((size,) if isinstance(size, int | np.integer) else tuple(size), network.dtype)

    def predict(x):
        return network.readout(network.output(network.cell(x, network.zero_state())))

    wrong = f"the cell does not take an input of {shape_of(x)}: pass Learner(..., example=(x, y))"
    prediction = evaluate("cell", wrong, predict, x)
    is_index = network.loss is losses.softmax_cross_entropy
    return Example(x, jax.ShapeDtypeStruct((), jnp.int32) if is_index else prediction)


def of_data(x: Any, y: Any, axes: int = 0) -> Example:
    """From an input and a target, without their first `axes`."""

    def one(a):
        a = a if isinstance(a, jax.Array) else np.asarray(a)
        return jax.ShapeDtypeStruct(a.shape[axes:], jnp.result_type(a))

    x, y = (_numbers(name, a) if isinstance(a, list) else a for name, a in (("x", x), ("y", y)))
    return Example(jax.tree.map(one, x), jax.tree.map(one, y))


def one_step(example: Example, x: Any, y: Any, batch: tuple[int, ...]) -> Data:
    """A step; without a target it has no weight."""
    if y is None:
        return Data(_fitted("x", x, example.x, batch), _zeros(example.y, batch), np.float32(0))
    y, weight = _known(y, np.float32(1), example.y)
    return Data(_fitted("x", x, example.x, batch), _fitted("y", y, example.y, batch), weight)


def many_steps(example: Example, xs: Any, ys: Any, weights: Any, batch: tuple[int, ...]) -> Data:
    """Steps, time first."""
    leaves = jax.tree.leaves(xs)
    require(bool(leaves) and np.ndim(leaves[0]) > 0, "xs", shape_of(xs), "of arrays, time first")
    steps = np.shape(leaves[0])[0]
    require(steps > 0, "xs", shape_of(xs), "of at least one step")
    lead = (steps, *batch)
    if ys is None:
        require(weights is None, "weights", weights, "left out where there are no targets")
        return Data(_fitted("xs", xs, example.x, lead), _zeros(example.y, lead), np.zeros(steps, np.float32))
    weights = np.ones(steps, np.float32) if weights is None else weights
    weights = weights if isinstance(weights, jax.Array) else _numbers("weights", weights).astype(jnp.result_type(float))
    allowed = f"of shape [{steps}], a number for each step"
    require(weights.shape == (steps,), "weights", shape_of(weights), allowed)
    ys, weights = _known(ys, weights, example.y)
    return Data(_fitted("xs", xs, example.x, lead), _fitted("ys", ys, example.y, lead), weights)


def _known(ys: Any, weights: Any, like: PyTree) -> tuple[Any, Any]:
    """Targets that are whole numbers, with 0 for one that is not a number: nor is then its weight, unless that is 0."""
    is_whole = isinstance(like, jax.ShapeDtypeStruct) and like.dtype.kind in "iu"
    if not is_whole or isinstance(ys, jax.core.Tracer):
        return ys, weights
    ys = _numbers("y", ys)
    if ys.dtype.kind != "f" or np.all(known := np.isfinite(ys)):
        return ys, weights
    all_known = known.all(axis=tuple(range(np.ndim(weights), ys.ndim)))
    return np.where(known, ys, 0), np.where(all_known | (weights == 0), weights, np.nan).astype(weights.dtype)


def padded(data: Data) -> Data:
    """With zeros up to the next power of two, for fewer programs to be compiled."""
    count = len(data.weight)
    missing = (1 << (count - 1).bit_length()) - count

    def more(a):
        numpy = jnp if isinstance(a, jax.core.Tracer) else np  # which compiles nothing
        return numpy.concatenate([a, numpy.zeros((missing, *a.shape[1:]), a.dtype)])

    return jax.tree.map(more, data) if missing else data


def first(infos: PyTree, count: int) -> PyTree:
    """Those that are not of the padding."""
    leaves = jax.tree.leaves(infos)
    if len(leaves[0]) == count:
        return infos
    if any(isinstance(a, jax.core.Tracer) for a in leaves):
        return jax.tree.map(lambda a: a[:count], infos)
    return jax.device_put(jax.tree.map(lambda a: np.asarray(a)[:count], infos))


def _zeros(like: PyTree, lead: tuple[int, ...]) -> PyTree:
    return jax.tree.map(lambda a: np.zeros((*lead, *a.shape), a.dtype), like)


def _fitted(name: str, data: Any, like: PyTree, lead: tuple[int, ...]) -> PyTree:
    """`data` as arrays of the shapes and dtypes of `like`, after the axes `lead`."""

    def refuse(a, to, why=""):
        wanted = jax.tree.map(lambda s: jax.ShapeDtypeStruct((*lead, *s.shape), s.dtype), to)
        require(False, name, shape_of(a), f"of {shape_of(wanted)}{why}")

    def one(a, to):
        a = a if isinstance(a, jax.Array) else _numbers(name, a)
        if a.shape != (*lead, *to.shape):
            refuse(a, to)
        cuts = jnp.issubdtype(a.dtype, jnp.floating) and to.dtype.kind in "biu"
        if cuts and not (isinstance(a, np.ndarray) and np.all(a % 1 == 0)):
            # No fraction is cut off, and nothing that is not finite becomes an index.
            refuse(a, to, ", whole numbers as were shown first; if they are floats: Learner(..., example=(x, y))")
        return a if a.dtype == to.dtype else a.astype(to.dtype)

    if isinstance(like, jax.ShapeDtypeStruct) and isinstance(data, list | tuple):
        data = _numbers(name, data)
    if jax.tree.structure(data) != jax.tree.structure(like):
        refuse(data, like)
    return jax.tree.map(one, data, like)


def _numbers(name: str, data: Any) -> np.ndarray:
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ValueError(f"{name} is {data!r}, but must be an array of numbers: {error}.") from error
    is_number = array.dtype.kind in "biuf" or jnp.issubdtype(array.dtype, jnp.floating)
    require(is_number, name, data, "an array of numbers")
    return array
