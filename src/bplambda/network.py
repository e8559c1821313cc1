"""A network: a recurrent cell, a readout and a loss."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .checks import evaluate, require, require_int, shape_of


def first_part(state: PyTree) -> PyTree:
    """The output part of a state: the first element of a tuple state (an LSTM's h), or the state itself."""
    return state[0] if isinstance(state, tuple) else state


class Network(eqx.Module):
    """A recurrent network, s_t = cell(x_t, s_{t-1}), with a loss L_t = loss(readout(output(s_t)), y_t).

    The state may be any pytree of float arrays; learning rules see it as one flat vector of `state_size` numbers.

    !!! example

        ```python
        cell = eqx.nn.GRUCell(3, 32, key=key1)
        network = bp.Network(cell, eqx.nn.Linear(32, 2, key=key2), bp.losses.squared_error)
        ```
    """

    cell: Any
    readout: Any
    loss: Callable = eqx.field(static=True)
    output: Callable = eqx.field(static=True)
    _structure: Any = eqx.field(static=True)
    _shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __init__(
        self,
        cell: Callable[[Any, PyTree], PyTree],
        readout: Callable[[Any], Any],
        loss: Callable[[Any, Any], Array],
        output: Callable[[PyTree], Any] = first_part,
        state: PyTree | None = None,
    ):
        """**Arguments:**

        - `cell`: a module with `cell(x, state) -> state` for one example.
        - `readout`: a module that turns the output part of the state into a prediction.
        - `loss`: a function `loss(prediction, target) -> scalar` for one example; see `bp.losses`.
        - `output`: picks the output part of the state; the first element of a tuple state, or the state itself.
        - `state`: an example of the cell's state (only its shapes are used). Needed only if the cell has no
          `hidden_size`, or if its state is neither a vector of that size nor a pair of such vectors.
        """
        for name, value in {"cell": cell, "readout": readout, "loss": loss, "output": output}.items():
            require(callable(value), name, value, "callable")
        self.cell = cell
        self.readout = readout
        self.loss = loss
        self.output = output
        state = _find_state(cell) if state is None else state
        leaves, self._structure = jax.tree.flatten(state)
        self._shapes = tuple(tuple(jnp.shape(leaf)) for leaf in leaves)
        for leaf in leaves:
            is_float = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
            require(is_float, "state", shape_of(state), "a pytree of float arrays: its derivative is needed")
        has_numbers = bool(leaves) and all(_sizes(self._shapes))
        require(has_numbers, "state", shape_of(state), "a pytree of arrays, each of at least one number")

    @property
    def state_size(self) -> int:
        """S, the number of floats in the state (an LSTM with H units has 2H)."""
        return sum(_sizes(self._shapes))

    @property
    def dtype(self):
        """The dtype of the state: that of the cell's parameters."""
        return _dtype(self.cell)

    def zero_state(self, batch_size: int | None = None) -> PyTree:
        """A state of zeros, for one example or for a batch."""
        lead = () if batch_size is None else (batch_size,)
        return jax.tree.unflatten(self._structure, [jnp.zeros(lead + s, self.dtype) for s in self._shapes])

    def flatten(self, state: PyTree) -> Float[Array, "... S"]:
        """A state, with any leading axes, as one vector s along the last axis."""
        leaves = jax.tree.leaves(state)
        lead = leaves[0].shape[: leaves[0].ndim - len(self._shapes[0])]
        return jnp.concatenate([leaf.reshape(*lead, -1) for leaf in leaves], axis=-1)

    def unflatten(self, s: Float[Array, "... S"]) -> PyTree:
        """The inverse of `flatten`."""
        edges = [sum(_sizes(self._shapes[:i])) for i in range(1, len(self._shapes))]
        parts = jnp.split(s, edges, axis=-1)
        leaves = [part.reshape(s.shape[:-1] + shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return jax.tree.unflatten(self._structure, leaves)


def _sizes(shapes) -> list[int]:
    return [math.prod(shape) for shape in shapes]


def _dtype(cell):
    leaves = jax.tree.leaves(eqx.filter(cell, eqx.is_inexact_array))
    return jnp.result_type(*leaves) if leaves else jnp.result_type(float)


def _find_state(cell) -> PyTree:
    """The state of a cell that says its `hidden_size`: a vector, or a pair of vectors as in an LSTM."""
    size = getattr(cell, "hidden_size", None)
    if size is None:
        raise ValueError(
            f"state is not given, and the cell, a {type(cell).__name__}, has no hidden_size to tell its shape: "
            "pass an example of its state, as in Network(cell, readout, loss, state=jnp.zeros(32))."
        )
    require_int("cell.hidden_size", size, minimum=1)
    vector = jax.ShapeDtypeStruct((size,), _dtype(cell))
    input_size = getattr(cell, "input_size", None)
    if input_size is None:
        return vector
    x = jax.ShapeDtypeStruct((input_size,) if isinstance(input_size, int) else tuple(input_size), vector.dtype)
    pair = (vector, vector)
    try:
        jax.eval_shape(cell, x, pair)
    except Exception:  # any error at all: this cell does not take a pair
        state = vector
    else:
        state = pair
    after = evaluate("cell", f"cell(x, state) fails for x {shape_of(x)}, state {shape_of(state)}", cell, x, state)
    same_state("cell", state, after)
    return state


def same_state(name: str, before: PyTree, after: PyTree) -> None:
    """Checks that a step keeps the state's structure, shapes and kind."""
    same = jax.tree.structure(before) == jax.tree.structure(after) and all(
        a.shape == b.shape and jnp.issubdtype(b.dtype, jnp.floating)
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    )
    if not same:
        raise ValueError(
            f"{name} turns a state of {shape_of(before)} into {shape_of(after)}, but must keep the state's structure "
            "and shapes, with float arrays only."
        )
