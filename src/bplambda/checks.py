"""Checks at the edges: what was wrong, which value it had, what is allowed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def require(condition: bool, name: str, value: Any, allowed: str) -> None:
    """Raises a `ValueError` that names the argument, its value and what is allowed."""
    if not condition:
        raise ValueError(f"{name} is {value!r}, but must be {allowed}.")


def require_int(name: str, value: Any, minimum: int) -> None:
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    require(is_int and int(value) >= minimum, name, value, f"a whole number of at least {minimum}")


def real(value: Any) -> Array:
    """A hyper-parameter as a float array leaf, so that one compiled program serves all its values."""
    return jnp.asarray(value, float)


def require_count(name: str, value: Array) -> None:
    """A whole number of at least 1; its value is not known while it is being traced."""
    allowed = "a whole number of at least 1"
    is_int = jnp.issubdtype(value.dtype, jnp.integer)
    require_real(name, value, allowed, lambda v: is_int & (v >= 1))


def require_real(name: str, value: Array, allowed: str, holds: Callable[[np.ndarray], Any]) -> None:
    """Checks the values of a hyper-parameter, unless it is being traced and has none yet."""
    if not isinstance(value, jax.core.Tracer):
        require(bool(np.all(holds(np.asarray(value)))), name, np.asarray(value).tolist(), allowed)


def require_unit(name: str, value: Array) -> None:
    require_real(name, value, "between 0 and 1", lambda v: (v >= 0) & (v <= 1))


def require_finite(name: str, value: Array) -> None:
    require_real(name, value, "finite", np.isfinite)


def shape_of(tree: Any) -> str:
    """The shapes and dtypes of a pytree, for messages."""
    found = [f"{jnp.result_type(x)}{list(jnp.shape(x))}" for x in jax.tree.leaves(tree)]
    return ", ".join(found) or "nothing"


def evaluate(name: str, what: str, function: Callable, *examples: Any) -> Any:
    """The shape of `function(*examples)`; an error in it becomes one that names the argument at fault."""
    try:
        return jax.eval_shape(function, *examples)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{name} does not fit: {what}. JAX says: {reason}") from error
