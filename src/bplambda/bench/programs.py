"""Calls of compiled programs with hardly anything around them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


def program(function: Callable, *args: Any) -> Callable[[], list[jax.Array]]:
    """`function(*args)` as one compiled program, called with bare arrays.

    Within a training step, which is one program itself, there is nothing around a gradient. From Python each call would
    first take modules apart, for a time that is longer than a small gradient takes.

    **Returns:** a function without arguments, which returns when the arrays are there.
    """
    arrays, static = eqx.partition(args, lambda a: isinstance(a, jax.Array))  # what NumPy holds is compiled in
    leaves, structure = jax.tree.flatten(arrays)

    @jax.jit
    def run(*leaves: jax.Array) -> list[jax.Array]:
        found = function(*eqx.combine(jax.tree.unflatten(structure, leaves), static))
        return jax.tree.leaves(eqx.filter(found, eqx.is_array))

    return lambda: jax.block_until_ready(run(*leaves))
