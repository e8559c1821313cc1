"""The time loop: the states of a window, step by step, and what leads back from them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

from .cells import Factors, Nested, factors
from .equations import taken_apart
from .network import Network


def over_time_and_batch(function: Callable) -> Callable:
    """Maps a function of one example over `[K, B]`, as one axis of K·B: one large product, not K small ones."""

    def mapped(*args):
        lead = jax.tree.leaves(args)[0].shape[:2]
        args = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), args)
        return jax.tree.map(lambda y: y.reshape(*lead, *y.shape[1:]), jax.vmap(function)(*args))

    return mapped


def parameters(module: Any) -> tuple[Any, Callable]:
    """A module's parameters, and the way back from them to the module."""
    dynamic, static = eqx.partition(module, eqx.is_inexact_array)
    return dynamic, lambda p: eqx.combine(p, static)


class Layout(NamedTuple):
    """How a time loop holds what has an axis for the batch: as it is, or the numbers of a whole batch as one vector."""

    network: Network
    is_flat: bool

    def together(self, tree: PyTree[Array], lead: int = 0) -> PyTree[Array]:
        """Any arrays `[..., B, ...]`, with so many axes before the batch, as the loop holds them."""
        return jax.tree.map(lambda a: a.reshape(*a.shape[:lead], -1), tree) if self.is_flat else tree

    def apart(self, tree: PyTree[Array], lead: int = 0) -> PyTree[Array]:
        """States as the loop holds them, with an axis for the batch again."""
        if not self.is_flat:
            return tree
        one = jax.eval_shape(self.network.zero_state)
        return jax.tree.map(lambda s, a: a.reshape(*a.shape[:lead], -1, *s.shape), one, tree)


def turning(cell: Any, steps: int, batch: int) -> Callable[[Any], Any]:
    """What transposes a known cell's matrices, once before a loop and once within: so they are what they were, but lie
    the other way round in memory, and x Wᵀ need not turn W at every step.

    For one step that is not worth the copy. Nor is it where the product is W x anyway: with one example, or as a cell
    that is not known has it.
    """
    if steps == 1 or batch == 1 or factors(cell) is None:
        return lambda weights: weights
    return lambda weights: jax.tree.map(lambda w: w.T if w.ndim == 2 else w, weights)


class Pullbacks(eqx.Module):
    """The local derivatives of each step of a window, as AD left them, in the loop's `Layout`.

    `jax.vjp` returns a pytree: its leaves are saved by the forward scan, except those that are the same at every step
    (the weights), which would be stacked K times.
    """

    varying: list[Array]
    constant: list[Array]
    parts: Factors | Nested = eqx.field(static=True)
    is_varying: tuple[bool, ...] = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    def at(self, varying: list[Array]) -> tuple[Callable, Callable | None, PyTree[Array]]:
        """The pull-backs of the combination and of the products at one step, from its slice of `varying`. Of a `Nested`
        cell: that of the whole step, `None`, and what its parameters met."""
        rest, same = iter(varying), iter(self.constant)
        return jax.tree.unflatten(self.structure, [next(rest) if v else next(same) for v in self.is_varying])

    @property
    def met(self) -> PyTree[Array]:
        """What a `Nested` cell's parameters met, at every step."""
        return self.at(self.varying)[2]

    def back(self, varying: list[Array], r: PyTree[Array]) -> PyTree[Array]:
        """Jᵀ r for one step, J = ∂s_{t+1}/∂s_t."""
        combine, products, _ = self.at(varying)
        _, dp, direct = combine(r)
        if products is None:
            return direct
        (through,) = products(dp)
        return jax.tree.map(jnp.add, direct, through)


def forward(network: Network, state, xs) -> tuple[PyTree[Array], PyTree[Array], Pullbacks]:
    """The states s_0 … s_{K-1}, s_1 … s_K, and the pull-backs of each step."""
    steps, batch = jax.tree.leaves(xs)[0].shape[:2]
    x, s = jax.eval_shape(lambda: jax.tree.map(lambda a: a[0], (jax.tree.map(lambda a: a[0], xs), state)))
    parts = taken_apart(network.cell, x, s)
    held = Layout(network, parts.by_number)
    learned, rebuild = parameters(network.cell)
    turn = turning(network.cell, steps, batch)
    kept = turn(learned)

    # The gradient of the parameters comes later, for all steps at once, and needs nothing from here.
    def combined(parts: Factors, i, state):
        def products(s):
            return held.together(jax.vmap(partial(parts.products, rebuild(turn(kept))))(i, held.apart(s)))

        p, pull_products = jax.vjp(products, state)
        combine = parts.combine if held.is_flat else jax.vmap(parts.combine)
        after, pull_combine = jax.vjp(combine, held.together(i), p, state)
        return after, (pull_combine, pull_products, None)

    def nested(parts: Nested, i, state):
        def step(real, nudges, s):
            return jax.vmap(partial(parts.step, rebuild(turn(kept))))(eqx.combine(real, other), nudges, s)

        real, other = eqx.partition(i, eqx.is_inexact_array)
        lead = jax.tree.leaves(state)[0].shape[:1]
        nudges = [jnp.zeros((*lead, *n.shape), n.dtype) for n in parts.nudges]
        after, pull, met = jax.vjp(step, real, nudges, state, has_aux=True)
        return after, (pull, None, met)

    linearised = partial(nested, parts) if isinstance(parts, Nested) else partial(combined, parts)
    inputs = over_time_and_batch(lambda x: parts.inputs(network.cell, x, steps * batch))(xs)
    first = jax.tree.map(lambda a: a[0], inputs), state

    def linearised_first(i, state):
        state = held.together(state)
        after, pullbacks = linearised(i, state)
        return jax.tree.leaves((after, state, i)), *jax.tree.flatten(pullbacks)

    # What comes from an example has a batch axis. A shape that a larger batch leaves as it is belongs to the weights.
    # And what is there already, as a state (the tanh of an RNN is one) or an input, need not be saved.
    places: list[int | None] = []

    def seen(*first):
        there, leaves, _ = linearised_first(*first)
        places.extend(next((i for i, known in enumerate(there) if known is leaf), None) for leaf in leaves)
        return leaves

    _, leaves, structure = linearised_first(*first)
    larger = jax.tree.map(lambda a: jax.ShapeDtypeStruct((batch + 1, *a.shape[1:]), a.dtype), first)
    is_varying = tuple(a.shape != b.shape for a, b in zip(leaves, jax.eval_shape(seen, *larger), strict=True))
    places = [place for place, varies in zip(places, is_varying, strict=True) if varies]

    def step(state, i):
        state, pullbacks = linearised(i, state)
        varying = [leaf for leaf, varies in zip(jax.tree.leaves(pullbacks), is_varying, strict=True) if varies]
        return state, (state, [leaf for leaf, place in zip(varying, places, strict=True) if place is None])

    start = held.together(state)
    _, (states, saved) = lax.scan(step, start, inputs, length=steps)
    before = jax.tree.map(lambda first, s: jnp.concatenate([first[None], s[:-1]]), start, states)
    there, rest = jax.tree.leaves((states, before, inputs)), iter(saved)
    varying = [next(rest) if place is None else there[place] for place in places]
    constant = [leaf for leaf, varies in zip(leaves, is_varying, strict=True) if not varies]
    pullbacks = Pullbacks(varying, constant, parts, is_varying, structure)
    return held.apart(before, lead=1), held.apart(states, lead=1), pullbacks
