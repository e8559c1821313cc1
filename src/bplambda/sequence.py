"""Whole sequences: cut into windows, gradients added up, as the paper trains."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from .checks import require, require_int
from .network import Network
from .rules._base import Carry, Gradients, Info, Rule, Window, require_rule
from .shapes import checked
from .timeloop import parameters
from .traces import suited
from .unroll import as_precise_as, more, nothing_yet


def sequence_gradients(
    network: Network,
    synthesiser: Any,
    rule: Rule,
    xs: PyTree[Array],
    ys: PyTree[Array],
    weights: Array | np.ndarray | None = None,
    window: int | None = None,
) -> tuple[Gradients, Info]:
    """The gradients of a batch of whole sequences, from a zero state to the sequence's end.

    The sequence is cut into windows, the remainder first, and the windows' gradients are added up. The synthesiser is
    held meanwhile, except under a rule with its own step size `alpha`.

    **Arguments:**

    - `network`, `synthesiser` (`None` for rules that need none), `rule`.
    - `xs`, `ys`: inputs and targets, `[T, B, ...]`: time first, then batch.
    - `weights`: of the losses, `[T]` or `[T, B]`; 0 where a step has no loss. All 1 if left out. Within a compiled
      program, a NumPy array of shape `[T]` is known: the steps before the first loss are then not read out.
    - `window`: the size of the windows; the rule's own if left out. `BPLambda` takes any, with the same result.

    **Returns:** the gradients, pytrees like the modules; and the info of the whole sequence.

    !!! example

        ```python
        gradients, info = bp.sequence_gradients(network, synthesiser, bp.BPLambda(lam=1.0), xs, ys)
        updates, opt_state = optimiser.update(gradients.network, opt_state)
        ```
    """
    require_rule(rule)
    rule._check(network, synthesiser)
    lead = [jnp.shape(x)[1] for x in jax.tree.leaves(xs) if jnp.ndim(x) >= 2]
    state = jax.eval_shape(lambda: network.zero_state(lead[0] if lead else 1))
    # Called from Python, other weights must not compile anew; within a program they are compiled in as it is.
    is_within = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((network, xs)))
    is_plain = isinstance(weights, np.ndarray) and weights.ndim == 1
    known = tuple(np.asarray(weights).tolist()) if is_within and is_plain else None
    xs, ys, weights = checked(network, state, xs, ys, weights)
    steps = len(weights)
    size = rule.window_size(steps)
    if window is not None:
        require_int("window", window, minimum=1)
        whole, size = size, min(window, steps)
        name, n = type(rule).__name__, getattr(rule, "n", None)
        multiple = "" if n is None else f", or a multiple of {n},"
        allowed = f"{whole}{multiple} or left out: cut otherwise, {name} would give another result"
        require(rule.fits(size, steps), "window", window, allowed)
    return _sequence_gradients(network, synthesiser, rule, xs, ys, weights, known, size)


@eqx.filter_jit
def _sequence_gradients(network, synthesiser, rule, xs, ys, weights, known, size: int) -> tuple[Gradients, Info]:
    steps, batch = weights.shape
    count, rest = divmod(steps, size)
    if count == 1 and rest == 0:
        weights = weights if known is None else np.array(known, weights.dtype)
        carry = Carry(network.zero_state(batch), memory=None)
        gradients, _, info = rule.window(network, synthesiser, carry, Window(xs, ys, weights, last=True))
        return gradients, info

    theta, rebuild = parameters(synthesiser)

    def one_window(state, window):
        theta, carry, total = state
        gradients, carry, info = rule.window(network, rebuild(theta), carry, window)
        theta = rule.advance(theta, gradients.synthesiser)
        return (theta, carry, more(total, gradients)), info

    learned = eqx.filter(Gradients(network, synthesiser), eqx.is_inexact_array)
    carry = rule.init(network, synthesiser, batch)
    state = theta, carry._replace(memory=suited(carry.memory, size)), nothing_yet(learned)
    data, head = (xs, ys, weights), None
    if rest:
        state, head = one_window(state, Window(*jax.tree.map(lambda a: a[:rest], data), last=False))
    data = jax.tree.map(lambda a: a[rest:].reshape(count, size, *a.shape[1:]), data)
    (_, _, total), info = lax.scan(one_window, state, Window(*data, last=jnp.arange(count) == count - 1))
    loss, per_step = jnp.sum(info.loss), jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), info[1:])
    if head is not None:
        loss, per_step = (
            loss + head.loss,
            jax.tree.map(lambda a, b: jnp.concatenate([a, b]), head[1:], per_step),
        )
    return as_precise_as(learned, total), Info(loss, *per_step)
