"""Does this network fit these data? Asked of shapes alone, before anything is compiled."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .checks import evaluate, require, shape_of
from .network import Network, same_state


def checked(network: Network, state: PyTree, xs: PyTree, ys: PyTree, weights: Any):
    """The data of a window or a sequence as arrays, the weights as `[K, B]`, or a `ValueError` that says what is wrong.

    **Arguments:** `network`; `state`, a batch of states to start from; `xs`, `ys`, `weights` as in a `Window`.
    """
    xs, ys = _arrays("xs", xs), _arrays("ys", ys)
    steps, batch = time_and_batch("xs", xs)
    require(steps > 0, "xs", shape_of(xs), "of at least one time-step: this window is empty")
    require(batch > 0, "xs", shape_of(xs), "of at least one example: this batch is empty")
    allowed = f"time first, then batch, as xs is: [{steps}, {batch}, ...]"
    require(time_and_batch("ys", ys) == (steps, batch), "ys", shape_of(ys), allowed)
    weights = _weights(weights, steps, batch, network.dtype)

    zero = jax.eval_shape(lambda: network.zero_state(batch))
    fits = jax.tree.structure(state) == jax.tree.structure(zero) and all(
        jnp.shape(a) == b.shape for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(zero), strict=True)
    )
    allowed = f"a state of this network for the {batch} examples of xs: {shape_of(zero)}"
    require(fits, "carry.state", shape_of(state), allowed)
    check_step(network, *jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[2:], a.dtype), (xs, ys)))
    return xs, ys, weights


def _arrays(name: str, data: PyTree) -> PyTree[Array]:
    try:
        return jax.tree.map(jnp.asarray, data)
    except TypeError as error:
        kinds = sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in jax.tree.leaves(data)})
        raise ValueError(f"{name} is of {', '.join(kinds)}, but must be arrays of numbers.") from error


def time_and_batch(name: str, data: PyTree) -> tuple[int, int]:
    """K and B, the first two axes of all arrays."""
    leads = {jnp.shape(leaf)[:2] for leaf in jax.tree.leaves(data)}
    same = len(leads) == 1 and all(len(lead) == 2 for lead in leads)
    require(same, name, shape_of(data), "arrays with time first, then batch: [K, B, ...], the same K and B in all")
    steps, batch = leads.pop()
    return steps, batch


def _weights(weights: Any, steps: int, batch: int, dtype) -> Float[Array, "K B"]:
    weights = jnp.ones((steps, batch)) if weights is None else jnp.asarray(weights)
    allowed = f"of shape [{steps}] or [{steps}, {batch}], a number for each time-step (of each example)"
    require(weights.shape in {(steps,), (steps, batch)}, "weights", shape_of(weights), allowed)
    require(not jnp.issubdtype(weights.dtype, jnp.complexfloating), "weights", shape_of(weights), "real")
    weights = weights if weights.ndim == 2 else weights[:, None]
    return jnp.broadcast_to(weights, (steps, batch)).astype(dtype)


def check_step(network: Network, x: PyTree, y: PyTree) -> None:
    """One step of one example: input, state, readout, loss."""
    state = jax.eval_shape(network.zero_state)
    name, dtype = type(network.cell).__name__, network.dtype
    wrong = f"the cell, a {name}, does not take an input of {shape_of(x)} with a state of {shape_of(state)}"
    after = evaluate("xs", wrong, network.cell, x, state)
    same_state("cell", state, after)
    if any(leaf.dtype != dtype for leaf in jax.tree.leaves(after)):
        raise ValueError(
            f"xs is {shape_of(x)} for each example, but must not change the state's dtype from {dtype} to "
            f"{shape_of(after)}: convert the inputs to {dtype}, or the network to the inputs' dtype."
        )
    wrong = f"it does not take the output part of the state, from {shape_of(after)}"
    prediction = evaluate("readout", wrong, lambda s: network.readout(network.output(s)), after)
    wrong = f"loss(prediction, target) fails for a prediction of {shape_of(prediction)} and a target of {shape_of(y)}"
    loss = evaluate("ys", wrong, network.loss, prediction, y)
    scalar = isinstance(loss, jax.ShapeDtypeStruct) and loss.shape == () and jnp.issubdtype(loss.dtype, jnp.floating)
    found = f"a function that gives {shape_of(loss)} for a prediction of {shape_of(prediction)}, target {shape_of(y)}"
    require(scalar, "loss", found, "a function that gives one float for one example")
