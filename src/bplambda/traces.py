"""Eligibility traces: how a synthesiser remembers which of its past predictions a TD error now concerns.

A trace e_t has, for each example, a row for each of the S numbers of the state and a column for each parameter of the
synthesiser. What crosses a window's edge is the *transported* trace γλ J_{t+1} e_t, at the state that begins the next.

To move it at every step is what costs O(S⁴). But only qᵀe is wanted at every step, and e itself is not: a large trace
is left where it is (`Deferred`), and catches up with the steps since then all at once.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from .synthesiser import is_linear
from .timeloop import over_time_and_batch, parameters
from .unroll import Unrolled, ended

# If each has at least so many numbers, the traces of a batch are moved one by one, while each is in a CPU's cache: with
# 16 times as many that is 1.6 times as fast, with half as many the loop costs more than it saves. And of so many on, a
# trace is not moved at every step.
LARGE = 2**15


class Deferred(NamedTuple):
    """An exact trace that does not move with every step. At the state that begins the next window it is

        A e + Σ_τ P_τ ∇g(s_τ; θ),

    s_τ being the states since e was moved last, P_τ the product of the γλ J of all steps since s_τ, and A of all since
    e. The batch is the first axis of all.

    - `trace`: e. `moved`: A.
    - `states`, `jacobians`: s_τ, and γλ J of the step that leaves it, for up to m steps.
    - `count`: how many there are (the same for each example).
    """

    trace: PyTree[Float[Array, "B S ..."]]
    moved: Float[Array, "B S S"]
    states: Float[Array, "B m S"]
    jacobians: Float[Array, "B m S S"]
    count: Int[Array, " B"]

    @property
    def most(self) -> int:
        """m, the steps that there is room for."""
        return self.states.shape[1]


_SMALL = ("moved", "states", "count")  # the parts that are no larger than a Jacobian
Trace = PyTree[Float[Array, "B S ..."]] | Deferred


def zero_trace(synthesiser: Any, batch_size: int, size: int) -> Trace:
    """The trace at the start of a sequence. Where it is large, it is deferred, if the synthesiser is linear in its
    parameters: else ∇g(s_τ; θ) would have to know what θ was then."""
    theta, _ = parameters(synthesiser)
    trace = jax.tree.map(lambda p: jnp.zeros((batch_size, size, *p.shape), p.dtype), theta)
    if size * sum(p.size for p in jax.tree.leaves(theta)) < LARGE or not is_linear(synthesiser):
        return trace
    # With m steps the trace costs S⁴/m a step, and the way back through them m S²/2: a fourth of S is near the best.
    most, dtype = max(2, size // 4), jnp.result_type(*jax.tree.leaves(trace))
    matrices = jnp.zeros((batch_size, most, size, size), dtype)
    return Deferred(trace, matrices[:, 0], matrices[..., 0], matrices, jnp.zeros(batch_size, jnp.int32))


def suited(memory: Any, steps: int) -> Any:
    """A trace at the start of a sequence that will be seen so many steps at a time: if that is more than a deferred one
    has room for, it may as well not be deferred. What is not a trace stays as it is."""
    return memory.trace if isinstance(memory, Deferred) and steps >= memory.most else memory


def is_full(memory: Deferred, steps: int) -> Bool[Array, ""]:
    """Whether a trace must catch up before so many more steps: if they are more than it has room for, at once."""
    return memory.count[0] > max(0, memory.most - steps)


def caught_up(memory: Deferred, synthesiser: Any) -> Deferred:
    """The same trace, with all steps in e."""

    def earlier(later, tau):
        jacobian = lax.dynamic_index_in_dim(memory.jacobians, tau, 1, keepdims=False)
        is_there, both = tau < memory.count[0], later @ jacobian
        return jnp.where(is_there, both, later), jnp.where(is_there, both, jnp.zeros_like(both))

    identity = jnp.broadcast_to(jnp.eye(memory.moved.shape[1], dtype=memory.moved.dtype), memory.moved.shape)
    _, transport = lax.scan(earlier, identity, jnp.arange(memory.most, dtype=memory.count.dtype), reverse=True)
    nothing = jnp.zeros_like(memory.moved[:, 0])
    states = _time_first(memory.states)
    _, trace = _moved(_in_play(memory), nothing, synthesiser, states, memory.moved, transport, last=False)
    return from_now_on(memory, trace)


def eligible(q: Float[Array, "B S"], memory: Trace, synthesiser: Any) -> PyTree[Array]:
    """Σ_b q_bᵀ e_b, summed over the batch: a pytree like the synthesiser's parameters."""
    if not isinstance(memory, Deferred):
        return jax.tree.map(lambda e: jnp.einsum("bi,bi...->...", q, e), memory)
    count = memory.count[0]

    def back(i, loop):
        """qᵀ P_τ, one τ after the other."""
        q, rows = loop
        at = count - 1 - i
        jacobian = lax.dynamic_index_in_dim(memory.jacobians, at, 1, keepdims=False)
        q = jnp.einsum("bi,bij->bj", q, jacobian)
        return q, lax.dynamic_update_index_in_dim(rows, q, at, 1)

    _, rows = lax.fori_loop(0, count, back, (q, jnp.zeros_like(memory.states)))
    theta, rebuild = parameters(synthesiser)
    _, pull = jax.vjp(lambda p: over_time_and_batch(rebuild(p))(memory.states), theta)
    # An e that is out of play may be anything, even not finite, and is not read.
    q = jnp.einsum("bi,bij->bj", q, memory.moved)
    older = lax.cond(
        _is_in_play(memory), lambda: eligible(q, memory.trace, synthesiser), lambda: jax.tree.map(jnp.zeros_like, theta)
    )
    return jax.tree.map(jnp.add, older, pull(rows)[0])


def followed(memory: Deferred, states: Float[Array, "K B S"], jacobians: Float[Array, "K B S S"]) -> Deferred:
    """The trace after a window of K steps that there is room for.

    **Arguments:** `memory`; `states` s_0 … s_{K-1}; `jacobians`: γλ J of the steps that leave them.
    """
    moved, _ = lax.scan(lambda moved, jacobian: (jacobian @ moved, None), memory.moved, jacobians)
    # What is not finite shows in what it has moved; here, where it may lie unused, it would only spread.
    jacobians = jnp.where(jnp.isfinite(jacobians), jacobians, 0)
    at = memory.count[0]
    return memory._replace(
        moved=moved,
        states=lax.dynamic_update_slice_in_dim(memory.states, _time_first(states), at, 1),
        jacobians=lax.dynamic_update_slice_in_dim(memory.jacobians, _time_first(jacobians), at, 1),
        count=memory.count + len(states),
    )


def emptied(memory: Deferred) -> Deferred:
    """No trace: e is not eligible for anything any more."""
    return memory._replace(**{name: jnp.zeros_like(getattr(memory, name)) for name in _SMALL})


def chosen(first: bool | Bool[Array, ""], one: Deferred, other: Deferred) -> Deferred:
    """`one` or `other` trace, which differ in what is *not* large: the rest is the latter's, as it lies."""
    return other._replace(**{name: jnp.where(first, getattr(one, name), getattr(other, name)) for name in _SMALL})


def accumulate(
    memory: Trace,
    q: Float[Array, "B S"],
    synthesiser: Any,
    unrolled: Unrolled,
    decay: Float[Array, ""],
    last: bool | Bool[Array, ""],
) -> tuple[PyTree[Array], Trace]:
    """The exact accumulating trace (Eq. 16) at a window's end, and what the one at its start was eligible for.

    **Arguments:** `memory`, the transported trace e that enters; `q`, what it is wanted for; the window, `unrolled`;
    `decay`: γλ; `last`: whether the sequence ends here.

    **Returns:** Σ_b q_bᵀ e_b, a pytree like the synthesiser's parameters; and the trace P_0 e + Σ_t P_t ∇g(s_t; θ),
    where P_t = (γλ)^{K−t} ∂s_K/∂s_t, or none.
    """
    is_deferred, states = isinstance(memory, Deferred), unrolled.states[:-1]
    if last is True:  # no need to move it
        return eligible(q, memory, synthesiser), emptied(memory) if is_deferred else ended(True, memory)
    if is_deferred:
        # Not `cond`, which would copy the trace where there is nothing to do.
        memory = lax.while_loop(lambda e: is_full(e, len(states)), lambda e: caught_up(e, synthesiser), memory)
        if len(states) < memory.most:
            after = followed(memory, states, decay * unrolled.jacobians())
            # Those before are read where they now lie beside the new ones: else there would have to be a copy.
            memory = memory._replace(states=after.states, jacobians=after.jacobians)
            return eligible(q, memory, synthesiser), chosen(last, emptied(after), after)
    transport = unrolled.transport(decay)
    trace = _in_play(memory) if is_deferred else memory
    before, trace = _moved(trace, q, synthesiser, states, transport[0], transport, last)
    return before, from_now_on(memory, trace) if is_deferred else trace


def from_now_on(memory: Deferred, trace: PyTree[Array]) -> Deferred:
    """`trace`, deferred from here on: A is the identity, and there are no steps that it lacks."""
    identity = jnp.eye(memory.moved.shape[1], dtype=memory.moved.dtype)
    moved = jnp.broadcast_to(identity, memory.moved.shape)
    return emptied(memory)._replace(trace=trace, moved=moved)


def _moved(trace, q, synthesiser, states, by, transport, last) -> tuple[PyTree[Array], PyTree[Array]]:
    """Σ_b q_bᵀ e_b; and A e + Σ_t P_t ∇g(s_t; θ), with A as `by` and P as `transport`, or zeros."""
    theta, rebuild = parameters(synthesiser)

    def one_example(e, q, s, A, P):
        _, pull = jax.vjp(lambda p: jax.vmap(rebuild(p))(s), theta)
        (rows,) = jax.vmap(pull, in_axes=1)(P)
        # A trace is large, and read once: q is one more row of the matrix that moves it.
        moved = jax.tree.map(lambda e: jnp.tensordot(jnp.concatenate([A, q[None]]), e, axes=1), e)
        new = ended(last, jax.tree.map(lambda m, row: m[:-1] + row, moved, rows))
        return jax.tree.map(lambda m: m[-1], moved), new

    def at_once(trace):
        eligible, trace = jax.vmap(one_example, in_axes=(0, 0, 1, 0, 1))(trace, q, states, by, transport)
        return jax.tree.map(lambda a: jnp.sum(a, axis=0), eligible), trace

    def one_by_one(trace):
        def update(b, carry):
            total, trace = carry
            e, q_b, A = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, b, 0, keepdims=False), (trace, q, by))
            s, P = (lax.dynamic_index_in_dim(a, b, 1, keepdims=False) for a in (states, transport))
            eligible, e = one_example(e, q_b, s, A, P)
            trace = jax.tree.map(lambda all_, one: lax.dynamic_update_index_in_dim(all_, one, b, 0), trace, e)
            return jax.tree.map(jnp.add, total, eligible), trace

        return lax.fori_loop(0, len(q), update, (jax.tree.map(jnp.zeros_like, theta), trace))

    numbers = sum(e[0].size for e in jax.tree.leaves(trace))
    return lax.platform_dependent(trace, cpu=one_by_one if numbers >= LARGE else at_once, default=at_once)


def _is_in_play(memory: Deferred) -> Bool[Array, ""]:
    """Whether there is anything left of e: not where a sequence has begun since then."""
    return jnp.any(memory.moved != 0)


def _in_play(memory: Deferred) -> PyTree[Array]:
    """e, or zeros where there is nothing left of it."""
    return ended(~_is_in_play(memory), memory.trace)


def _time_first(a: Array) -> Array:
    """`[B, m, …]` as `[m, B, …]`, and back."""
    return jnp.swapaxes(a, 0, 1)
