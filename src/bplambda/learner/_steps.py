"""The compiled part of a learner: pure functions from a state and some steps to the next state."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..cells import wide
from ..network import Network
from ..rules._base import Carry, Gradients, Rule, SteppingRule, Window
from ..rules.true_online import Dutch
from ..traces import Deferred, caught_up, chosen, emptied, is_full
from ._state import LearnerState, Recent, StepInfo


@dataclass(frozen=True, eq=False)
class Steps:
    """What does not change while a learner learns; `network` and `synthesiser` give the structure alone.

    - `window`: the steps between two updates; if it is `rolling`, those that are replayed.
    """

    network: Network
    synthesiser: Any
    optimisers: tuple[optax.GradientTransformation, optax.GradientTransformation]
    window: int
    batch_size: int | None
    rolling: bool
    clip_trace: float | None

    def modules(self, state: LearnerState) -> tuple[Network, Any]:
        """The network and the synthesiser, as learned so far."""
        static = eqx.filter((self.network, self.synthesiser), eqx.is_inexact_array, inverse=True)
        return eqx.combine((state.network, state.synthesiser), static)

    def _with(self, parameters: Any) -> Network:
        """The network with these parameters."""
        return eqx.combine(parameters, eqx.filter(self.network, eqx.is_inexact_array, inverse=True))

    def _batched(self, tree: PyTree) -> PyTree:
        return _stacked(tree) if self.batch_size is None else tree

    def _unbatched(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda a: a[0], tree) if self.batch_size is None else tree

    def predict(self, state: LearnerState, x: PyTree) -> PyTree:
        return self._unbatched(self._ahead(state, self._batched(x))[1])

    def _ahead(self, state: LearnerState, x: PyTree) -> tuple[PyTree, PyTree]:
        """The state after one more step, and the prediction there."""
        network, _ = self.modules(state)
        if self.rolling and state.recent is not None:
            xs, count = self._window_of(state.recent, x)
            states = self._replay(state.network, state.carry.state, xs, count)
            after = jax.tree.map(lambda s: s[-1], states)
        else:
            after = jax.vmap(network.cell)(x, state.now)
        return after, jax.vmap(lambda s: network.readout(network.output(s)))(after)

    def many(self, rule: Rule, state: LearnerState, xs, ys, weights, count: Int[Array, ""]):
        """The first `count` of some steps.

        `step` and `run` both come here, and the compiler does not know the count: their loop is the same, and so is
        every bit of their numbers. (A step on its own would be compiled otherwise, and rounded otherwise.)
        """
        data = xs, ys, weights
        advance = self._learn_at_once if self.rolling or state.recent is None else self._collect_and_learn
        seen = jax.eval_shape(lambda s: self._seen(s, *jax.tree.map(lambda a: a[0], data)), state)
        zero = jnp.zeros((), self.network.dtype)
        empty = StepInfo(seen.prediction, seen.loss, zero, zero, zero, seen.good, seen.good)
        infos = jax.tree.map(lambda a: jnp.zeros((len(weights), *a.shape), a.dtype), empty)

        def body(loop):
            return advance(rule, data, count, loop)

        begin = jnp.zeros_like(count), state, infos
        return jax.lax.while_loop(lambda loop: loop[0] < count, body, begin)[1:]

    def single(self, rule: Rule, state: LearnerState, x, y, weight, count: Int[Array, ""]):
        # Twice, of which the loop takes the first: a loop over arrays of one step would be simplified.
        xs, ys, weights = jax.tree.map(lambda a: jnp.stack([a, a]), (x, y, weight))
        state, infos = self.many(rule, state, xs, ys, weights, count)
        return state, jax.tree.map(lambda a: a[0], infos)

    def _seen(self, state: LearnerState, x, y, weight) -> "_Seen":
        """A step without learning: what it predicts, what it loses, and whether all of it is finite."""
        x, y = self._batched(x), self._batched(y)
        good = _finite(x) & (_finite(y) | (weight == 0)) & jnp.isfinite(weight)
        x, y = jax.tree.map(_cleaned, (x, y))
        network, _ = self.modules(state)
        weight = jnp.where(good, weight, 0.0).astype(network.dtype)
        after, prediction = self._ahead(state, x)
        loss = jnp.mean(jax.vmap(network.loss)(prediction, y))
        loss = jnp.where(weight == 0, jnp.zeros_like(loss), weight * loss)  # without a target it may be anything
        good = good & _finite((prediction, loss))
        # If the data have no loss (and of those that are not finite, the weight is now 0), then 0 is said; if the
        # network is what has gone wrong, then as much as can be.
        undefined = jnp.isnan(loss) & _finite(prediction)
        largest = jnp.where(undefined, jnp.zeros_like(loss), jnp.finfo(loss.dtype).max)
        loss = jnp.where(jnp.isfinite(loss), loss, largest)
        return _Seen(x, y, weight, after, self._unbatched(prediction), loss, good)

    def _learn_at_once(self, rule: Rule, data, count, loop):
        """One step, with an update."""
        i, state, infos = loop
        carry, well = self._with_room(state, 1)
        state = state._replace(carry=carry)
        seen = self._seen(state, *_at(data, i))
        new, report = (self._rolled if self.rolling else self._stepped)(rule, state, seen)
        good = _once(seen.good & report.good & well, i)
        old = state._replace(carry=_emptied(seen.good & report.overflow, state.carry))
        state = _kept(good, new, old)._replace(steps=_count(state.steps), skipped=_count(state.skipped, ~good))
        norms = (jnp.where(good, norm, jnp.zeros_like(norm)) for norm in report.norms)
        return i + 1, state, _put(infos, i, StepInfo(seen.prediction, seen.loss, *norms, updated=good, skipped=~good))

    def _with_room(self, state: LearnerState, steps: int) -> tuple[Carry, Bool[Array, ""]]:
        """The carry, a deferred trace ready for so many more steps: that changes no number of it, so it is not undone
        if they are skipped. And whether it is finite; if not, it is empty now."""
        memory, well = state.carry.memory, jnp.array(True)
        if isinstance(memory, Deferred):

            def catch_up(loop):
                memory = caught_up(loop[0], self.modules(state)[1])
                well = _finite(memory.trace)
                kept = jax.tree.map(lambda e: jnp.where(well, e, jnp.zeros_like(e)), memory.trace)
                return memory._replace(trace=kept), well

            memory, well = jax.lax.while_loop(lambda loop: is_full(loop[0], steps), catch_up, (memory, well))
        return state.carry._replace(memory=memory), well

    def _collect_and_learn(self, rule: Rule, data, count, loop):
        """Steps up to the end of the window, or of the data; with the end of the window comes the update.

        Collecting touches only what it changes: parameters and trace stay where they are.
        """
        i, state, infos = loop

        def collect(inner):
            i, now, recent, steps, skipped, infos = inner
            seen = self._seen(state._replace(now=now), *_at(data, i))
            this = Recent(seen.x, seen.y, seen.weight, recent.count + 1)
            kept = (_put(a, recent.count, b) for a, b in zip(recent[:3], this[:3], strict=True))
            more = Recent(*kept, count=this.count)
            now, recent = _kept(seen.good, (seen.after, more), (now, recent))
            said = (infos.prediction, infos.loss, infos.skipped), (seen.prediction, seen.loss, ~seen.good)
            prediction, loss, bad = _put(said[0], i, said[1])
            infos = infos._replace(prediction=prediction, loss=loss, skipped=bad)
            return i + 1, now, recent, _count(steps), _count(skipped, ~seen.good), infos

        def wanted(inner):
            return (inner[0] < count) & (inner[2].count < self.window)

        start = i, state.now, state.recent, state.steps, state.skipped, infos
        i, now, recent, steps, skipped, infos = jax.lax.while_loop(wanted, collect, start)
        state = state._replace(now=now, recent=recent, steps=steps, skipped=skipped)

        def update(state: LearnerState):
            carry, well = self._with_room(state, self.window)
            state = state._replace(carry=carry)
            new, report = self._updated(rule, state, Window(recent.xs, recent.ys, recent.weights))
            report = report._replace(good=report.good & well)
            # Where the update cannot be made, its steps are forgotten.
            carry = _emptied(report.overflow, state.carry)
            undone = state._replace(carry=carry, now=carry.state, skipped=_count(skipped))
            kept = _kept(report.good, new, undone)
            return kept._replace(recent=jax.tree.map(jnp.zeros_like, recent)), report

        def wait(state: LearnerState):
            zero = jnp.zeros((), self.network.dtype)
            return state, _Report((zero, zero, zero), jnp.array(True), jnp.array(False))

        full = recent.count == self.window
        state, report = jax.lax.cond(full, update, wait, state)
        last = jax.tree.map(lambda a: a[i - 1], infos)
        done = full & report.good
        td_error, first, second = (jnp.where(done, norm, jnp.zeros_like(norm)) for norm in report.norms)
        info = last._replace(
            td_error=td_error,
            network_gradient=first,
            synthesiser_gradient=second,
            updated=done,
            skipped=last.skipped | (full & ~report.good),
        )
        return i, state, _put(infos, i - 1, info)

    def _stepped(self, rule: Rule, state: LearnerState, seen: "_Seen") -> tuple[LearnerState, "_Report"]:
        return self._updated(rule, state, Window(_stacked(seen.x), _stacked(seen.y), seen.weight[None]))

    def _updated(self, rule: Rule, state: LearnerState, window: Window) -> tuple[LearnerState, "_Report"]:
        """The rule's gradients of a window, and an optimiser step."""
        network, synthesiser = self.modules(state)
        gradients, carry, info = rule.window(network, synthesiser, state.carry, window)
        if self.clip_trace is not None and carry.memory is not None:
            carry = carry._replace(memory=_clipped(carry.memory, self.clip_trace))
        return self._applied(rule, state._replace(carry=carry, now=carry.state), gradients, info.errors)

    def _applied(self, rule: Rule, state: LearnerState, gradients: Gradients, errors) -> tuple[LearnerState, "_Report"]:
        gradients = Gradients(*(eqx.filter(g, eqx.is_inexact_array) for g in gradients))
        optimise, optimise_synthesiser = self.optimisers
        steps, first = optimise.update(gradients.network, state.optimisers[0], state.network)
        network = optax.apply_updates(state.network, steps)
        if isinstance(rule, SteppingRule):
            synthesiser, second = rule.advance(state.synthesiser, gradients.synthesiser), state.optimisers[1]
        else:
            steps, second = optimise_synthesiser.update(gradients.synthesiser, state.optimisers[1], state.synthesiser)
            synthesiser = optax.apply_updates(state.synthesiser, steps)
        new = state._replace(
            network=network, synthesiser=synthesiser, optimisers=(first, second), updates=_count(state.updates)
        )
        memory = new.carry.memory
        memory = memory.moved if isinstance(memory, Deferred) else memory  # the rest is looked at when it catches up
        is_synthesiser_well = _finite((synthesiser, second, memory, gradients.synthesiser))
        good = is_synthesiser_well & _finite((network, first, new.carry.state, gradients.network))
        td_error = jnp.sqrt(jnp.mean(jnp.sum(errors**2, axis=-1)))
        dtype = self.network.dtype
        network_norm, synthesiser_norm = (jnp.minimum(_norm(g), jnp.finfo(dtype).max).astype(dtype) for g in gradients)
        # If neither the network's gradient nor the error is too large, it is the trace between them that is.
        overflow = ~is_synthesiser_well & _finite((td_error, gradients.network))
        return new, _Report((td_error, network_norm, synthesiser_norm), good, overflow)

    def _rolled(self, rule: Rule, state: LearnerState, seen: "_Seen") -> tuple[LearnerState, "_Report"]:
        """The last n inputs, replayed under the weights as they are; the newest loss goes back through all of them."""
        if state.recent is None:  # n = 1: nothing to replay
            return self._stepped(rule, state, seen)
        xs, count = self._window_of(state.recent, seen.x)

        def newest_loss(parameters):
            network = self._with(parameters)
            states = self._replay(parameters, state.carry.state, xs, count)
            last = jax.tree.map(lambda s: s[-1], states)
            prediction = jax.vmap(lambda s: network.readout(network.output(s)))(last)
            return seen.weight * jnp.mean(jax.vmap(network.loss)(prediction, seen.y)), states

        gradient, states = jax.grad(newest_loss, has_aux=True)(state.network)
        gradient = jax.tree.map(lambda g: jnp.where(seen.weight == 0, jnp.zeros_like(g), g), gradient)
        # Once n steps are there, the oldest leaves the window: the state after it is where the next replay begins.
        full = count == self.window
        first = jax.tree.map(lambda s, old: jnp.where(full, s[0], old), states, state.carry.state)
        now = jax.tree.map(lambda s: s[-1], states)
        new = state._replace(carry=Carry(first, None), now=now, recent=state.recent._replace(xs=xs, count=count))
        nothing = jnp.zeros((1, 1, 1), self.network.dtype)
        empty = jax.tree.map(jnp.zeros_like, state.synthesiser)
        return self._applied(rule, new, Gradients(gradient, empty), nothing)

    def _window_of(self, recent: Recent, x: PyTree) -> tuple[PyTree, Int[Array, ""]]:
        """The last n inputs, `x` being the newest, and how many of them there are: the last so many."""
        xs = jax.tree.map(lambda all_, a: jnp.concatenate([all_[1:], a[None]]), recent.xs, x)
        return xs, jnp.minimum(recent.count + 1, self.window)

    def _replay(self, parameters: Any, start: PyTree, xs: PyTree, count: Int[Array, ""]) -> PyTree:
        """The states after each of the last `count` inputs."""
        cell = self._with(parameters).cell

        def one(s, at):
            x, is_there = at
            s = jax.tree.map(lambda a, b: jnp.where(is_there, a, b), jax.vmap(cell)(x, s), s)
            return s, s

        n = self.window
        return jax.lax.scan(one, start, (xs, jnp.arange(n) >= n - count))[1]


class _Seen(NamedTuple):
    """A step before anything is learned from it, its data cleaned of what is not finite."""

    x: PyTree[Array]
    y: PyTree[Array]
    weight: Float[Array, ""]
    after: PyTree[Array]
    prediction: PyTree[Array]
    loss: Float[Array, ""]
    good: Bool[Array, ""]


class _Report(NamedTuple):
    """Of an update: the norms (of the synthesiser's error, of both gradients); whether all of it is finite; if not,
    whether that is because the trace has grown too large."""

    norms: tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]
    good: Bool[Array, ""]
    overflow: Bool[Array, ""]


def _at(data: PyTree, i: Int[Array, ""]) -> PyTree:
    return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, i, keepdims=False), data)


def _put(all_: PyTree, i: Int[Array, ""], one: PyTree) -> PyTree:
    return jax.tree.map(lambda many, a: many.at[i].set(a), all_, one)


def _kept(good: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """What is new, if it is good."""

    def one(a, b):
        if isinstance(a, Deferred):
            return chosen(~good, b, a)
        return a if a is b else jnp.where(good, a, b)

    return jax.tree.map(one, new, old, is_leaf=lambda a: isinstance(a, Deferred))


def _emptied(overflow: Bool[Array, ""], carry: Carry) -> Carry:
    """With a trace that has grown too large emptied: or no later step could be learned from either."""
    if isinstance(carry.memory, Deferred):
        return carry._replace(memory=chosen(overflow, emptied(carry.memory), carry.memory))
    return carry._replace(memory=jax.tree.map(lambda e: jnp.where(overflow, jnp.zeros_like(e), e), carry.memory))


def _once(flag: Bool[Array, ""], i: Int[Array, ""]) -> Bool[Array, ""]:
    """The same flag, found once. All that a step changes waits for it, and the compiler would work it out anew for each
    array, hundreds of numbers and all; it does not look through a loop, even one that is never gone through (i ≥ 0)."""
    return jax.lax.while_loop(lambda loop: loop[1] < 0, lambda loop: (~loop[0], loop[1] + 1), (flag, i))[0]


def _count(so_far: Int[Array, ""], more: Bool[Array, ""] | bool = True) -> Int[Array, ""]:
    """One more, but never beyond what an integer can hold: a stream has no end."""
    return jnp.where(more, optax.safe_increment(so_far), so_far)


def _stacked(tree: PyTree) -> PyTree:
    """One step as a window."""
    return jax.tree.map(lambda a: a[None], tree)


def _finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every number is. Arrays of one shape are looked at together: 0 times a number is 0, or not finite."""
    alike: dict[Any, list[Array]] = {}
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            alike.setdefault((leaf.shape, leaf.dtype), []).append(leaf)
    return jnp.all(jnp.array([True, *(jnp.all(jnp.isfinite(sum(0 * a for a in group))) for group in alike.values())]))


def _cleaned(a: Array) -> Array:
    return jnp.where(jnp.isfinite(a), a, jnp.zeros_like(a)) if jnp.issubdtype(a.dtype, jnp.inexact) else a


def _norm(tree: PyTree) -> Float[Array, ""]:
    squares = [jnp.sum(a.astype(wide(a.dtype)) ** 2) for a in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares[1:], squares[0])) if squares else jnp.zeros(())


def clipping(largest: float) -> optax.GradientTransformation:
    """Gradients of a norm of `largest` at most. (Optax's own would take the square of a half-precision number.)"""

    def clipped(gradients: PyTree, _: PyTree) -> PyTree:
        factor = largest / jnp.maximum(_norm(gradients), largest)
        return jax.tree.map(lambda g: (g.astype(factor.dtype) * factor).astype(g.dtype), gradients)

    return optax.stateless(clipped)


def _clipped(memory: Any, largest: float) -> Any:
    """A trace, no example's longer than `largest`."""
    if isinstance(memory, Dutch):
        return memory._replace(trace=_clipped(memory.trace, largest))
    squares = [jnp.sum(e.astype(wide(e.dtype)) ** 2, axis=tuple(range(1, e.ndim))) for e in jax.tree.leaves(memory)]
    norm = jnp.sqrt(sum(squares[1:], squares[0]))
    factor = jnp.minimum(1.0, largest / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    return jax.tree.map(lambda e: e * factor.reshape(-1, *(1,) * (e.ndim - 1)).astype(e.dtype), memory)
