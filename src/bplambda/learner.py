"""The streaming learner: a network that learns from a live stream, one step at a time, in constant memory."""

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from . import checkpoints, losses
from .checks import evaluate, require, require_int, shape_of
from .network import Network
from .rules._base import Carry, Gradients, Rule, SteppingRule, TruncatingRule, Window
from .rules.bplambda import BPLambda
from .rules.bptt import TruncatedBPTT
from .rules.nstep import NStepSG
from .rules.true_online import Dutch, TrueOnlineBPLambda
from .synthesiser import LinearSynthesiser

_ONE = np.int32(1)


class Recent(NamedTuple):
    """The steps since the last update, and how many there are."""

    xs: PyTree[Array]
    ys: PyTree[Array]
    weights: Float[Array, " K"]
    count: Int[Array, ""]


class LearnerState(NamedTuple):
    """All that a learner knows: one pytree of arrays, and what a checkpoint holds.

    - `network`, `synthesiser`: their parameters (`Learner.modules` gives the modules).
    - `optimisers`: the states of both.
    - `carry`: at the last update: the network's state then, and the rule's memory (its trace).
    - `now`: the network's state now.
    - `recent`: the steps since the last update; `None` if there is an update at every one.
    - `steps`, `updates`, `skipped`: counters.
    """

    network: Any
    synthesiser: Any
    optimisers: tuple[Any, Any]
    carry: Carry
    now: PyTree[Array]
    recent: Recent | None
    key: PRNGKeyArray
    steps: Int[Array, ""]
    updates: Int[Array, ""]
    skipped: Int[Array, ""]


class StepInfo(NamedTuple):
    """What happened in one step.

    - `prediction`: made before anything was learned from the target.
    - `loss`: of the prediction; 0 without a target.
    - `td_error`: the norm of the synthesiser's error in an update: of the TD error δ, if there is one at every step.
    - `network_gradient`, `synthesiser_gradient`: their norms in an update.
    - `updated`: whether there was an update.
    - `skipped`: whether there was none because something was not finite; nothing but this count has then changed.
    """

    prediction: PyTree[Array]
    loss: Float[Array, ""]
    td_error: Float[Array, ""]
    network_gradient: Float[Array, ""]
    synthesiser_gradient: Float[Array, ""]
    updated: Bool[Array, ""]
    skipped: Bool[Array, ""]


class Learner:
    """Learns from a stream, for ever.

    !!! example

        ```python
        learner = bp.Learner(network, bp.BPLambda(lam=1.0, gamma=0.9))
        state = learner.init(jax.random.key(0))
        for x, y in stream:
            state, info = learner.step(state, x, y)
        ```
    """

    def __init__(
        self,
        network: Network,
        rule: Rule,
        optimiser: optax.GradientTransformation | None = None,
        synthesiser_optimiser: optax.GradientTransformation | None = None,
        update_every: int = 1,
        batch_size: int | None = None,
        *,
        synthesiser: Any = None,
        rolling: bool = False,
        clip: float | None = None,
        clip_trace: float | None = None,
        example: tuple[Any, Any] | None = None,
    ):
        """**Arguments:**

        - `network`: with its initial parameters.
        - `rule`: `BPLambda` and `TrueOnlineBPLambda`, or, to compare, `TruncatedBPTT(n)` and `NStepSG(n)`.
        - `optimiser`, `synthesiser_optimiser`: of Optax; Adam with 1e-3 and 1e-4 if left out. `TrueOnlineBPLambda`
          has a step size of its own, and makes no use of the second.
        - `update_every`: K, the steps between two updates; the same gradients as at every step if the parameters were
          held, much cheaper. `TruncatedBPTT(n)` and `NStepSG(n)` have windows of n, or of a multiple.
        - `batch_size`: the number of streams that are learned from together, the first axis of each x and y. One
          stream, without that axis, if left out.
        - `synthesiser`: a `LinearSynthesiser` of the right size if left out.
        - `rolling`: for `TruncatedBPTT(n)`: an update at every step, through the last n, replayed with the weights now.
        - `clip`: the largest norm of a gradient, of network and synthesiser each.
        - `clip_trace`: the largest norm of an example's trace.
        - `example`: an input and a target of one stream. Needed only where the cell does not tell its input's shape
          or the target's is not the prediction's (an index under `softmax_cross_entropy` is known).
        """
        require(isinstance(network, Network), "network", type(network).__name__, "a bplambda.Network")
        streaming = (BPLambda, TrueOnlineBPLambda, TruncatedBPTT, NStepSG)
        allowed = "BPLambda, TrueOnlineBPLambda, TruncatedBPTT or NStepSG: the others need the whole of a sequence"
        require(isinstance(rule, streaming), "rule", type(rule).__name__, allowed)
        require_int("update_every", update_every, minimum=1)
        if batch_size is not None:
            require_int("batch_size", batch_size, minimum=1)
        allowed = "left out, unless the rule is TruncatedBPTT with update_every=1"
        require(not rolling or (isinstance(rule, TruncatedBPTT) and update_every == 1), "rolling", rolling, allowed)
        self.rule, self.batch_size, self.rolling = rule, batch_size, rolling
        self._static = eqx.partition(network, eqx.is_inexact_array)[1]
        self._network = network
        if synthesiser is None and rule.needs_synthesiser:
            synthesiser = LinearSynthesiser(network.state_size, network.dtype)
        self._synthesiser = synthesiser
        rule._check(network, synthesiser)
        self.update_every = self._window_size(rule, update_every)
        self._clip_trace = clip_trace
        both = optimiser or optax.adam(1e-3), synthesiser_optimiser or optax.adam(1e-4)
        for name, value in (("clip", clip), ("clip_trace", clip_trace)):
            require(value is None or value > 0, name, value, "greater than 0")
        if clip is not None:
            both = tuple(optax.chain(optax.clip_by_global_norm(clip), o) for o in both)
        self.optimisers = both
        self._example = _example(network) if example is None else jax.tree.map(_struct, example)
        self._step = jax.jit(self._single)
        self._run = jax.jit(self._many)
        self._predict = jax.jit(self._predict_one)
        self._fresh = jax.jit(self._reset)

    def init(self, key: PRNGKeyArray) -> LearnerState:
        """A learner before its first step. `key` is kept in the state, for those who need randomness there."""
        network, _ = eqx.partition(self._network, eqx.is_inexact_array)
        synthesiser = eqx.filter(self._synthesiser, eqx.is_inexact_array)
        optimisers = self.optimisers[0].init(network), self.optimisers[1].init(synthesiser)
        nothing = jnp.zeros((), jnp.int32)
        # Copies: a state may be donated or deleted without harm to the modules that it began as.
        network, synthesiser = jax.tree.map(jnp.array, (network, synthesiser))
        carry, now, recent = self._fresh_carry()
        return LearnerState(network, synthesiser, optimisers, carry, now, recent, key, nothing, nothing, nothing)

    def step(self, state: LearnerState, x: Any, y: Any = None) -> tuple[LearnerState, StepInfo]:
        """One step: predict, then learn. `y` may be `None`: no loss at this step, but the state moves on."""
        x, y, weight = self._checked(x, y)
        return self._step(self.rule, state, x, y, weight, _ONE)

    def run(self, state: LearnerState, xs: Any, ys: Any = None, weights: Any = None) -> tuple[LearnerState, StepInfo]:
        """`step` over a chunk, compiled as one loop: the same numbers, much faster.

        **Arguments:** `state`; `xs`, `ys`: time first; `ys` may be `None`; `weights` of the losses, 0 where a step has
        no target, all 1 if left out.

        **Returns:** the state, and the infos of all steps, time first.
        """
        xs, ys, weights = self._checked(xs, ys, weights, many=True)
        if len(weights) == 1:
            state, info = self._step(self.rule, state, *jax.tree.map(lambda a: a[0], (xs, ys, weights)), _ONE)
            return state, jax.tree.map(lambda a: a[None], info)
        return self._run(self.rule, state, xs, ys, weights, np.int32(len(weights)))

    def predict(self, state: LearnerState, x: Any) -> PyTree[Array]:
        """What `step` would predict, without learning."""
        x, _, _ = self._checked(x, None)
        return self._predict(state, x)

    def reset(self, state: LearnerState) -> LearnerState:
        """The start of a new sequence: state and trace fresh, parameters kept."""
        return self._fresh(state)

    def modules(self, state: LearnerState) -> tuple[Network, Any]:
        """The network and the synthesiser, as learned so far."""
        static = eqx.filter(self._synthesiser, eqx.is_inexact_array, inverse=True)
        return eqx.combine(state.network, self._static), eqx.combine(state.synthesiser, static)

    def save(self, path: Path | str, state: LearnerState) -> None:
        """Writes all of `state` to one file, whole or not at all."""
        checkpoints.save(Path(path), state, self._configuration())

    def load(self, path: Path | str) -> LearnerState:
        """Reads a state that this learner, or one made like it, has saved."""
        return checkpoints.load(Path(path), jax.eval_shape(self.init, jax.random.key(0)), self._configuration())

    # What it is made of.

    def _window_size(self, rule: Rule, update_every: int) -> int:
        if isinstance(rule, TrueOnlineBPLambda):
            allowed = "1: TrueOnlineBPLambda learns at every step"
            require(update_every == 1, "update_every", update_every, allowed)
        if not isinstance(rule, TruncatingRule):
            return update_every
        require(not isinstance(rule.n, jax.core.Tracer), "rule.n", "traced", "a number, in a Learner: it is a size")
        n = int(rule.n)
        if self.rolling or update_every == 1:
            return n
        require(update_every % n == 0, "update_every", update_every, f"a multiple of n = {n}, for windows of n")
        return update_every

    def _configuration(self) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        numbers = {k: np.asarray(v).tolist() for k, v in vars(self.rule).items()}
        return {
            "rule": type(self.rule).__name__,
            **{f"rule.{name}": value for name, value in numbers.items()},
            "cell": type(self._network.cell).__name__,
            "synthesiser": type(self._synthesiser).__name__,
            "update_every": self.update_every,
            "batch_size": self.batch_size,
            "rolling": self.rolling,
        }

    def _fresh_carry(self) -> tuple[Carry, PyTree[Array], Recent | None]:
        size = self.batch_size or 1
        carry = self.rule.init(self._network, self._synthesiser, size)
        if self.update_every == 1:
            return carry, carry.state, None
        if self._example is None:
            raise ValueError(
                f"example is not given, and the cell, a {type(self._network.cell).__name__}, has no input_size to tell "
                "the shape of its input: pass Learner(..., example=(x, y)), an input and a target of one stream."
            )
        lead = self.update_every, size
        xs, ys = jax.tree.map(lambda a: jnp.zeros((*lead, *a.shape), a.dtype), self._example)
        recent = Recent(xs, ys, jnp.zeros(self.update_every, self._network.dtype), jnp.zeros((), jnp.int32))
        return carry, carry.state, recent

    def _reset(self, state: LearnerState) -> LearnerState:
        carry, now, recent = self._fresh_carry()
        return state._replace(carry=carry, now=now, recent=recent)

    def _checked(self, x: Any, y: Any, weights: Any = None, many: bool = False):
        """The data as arrays of the right shapes and dtypes, or an error that says what is wrong."""
        if self._example is None:
            require(y is not None, "y", y, "given at the first step, or shown by Learner(..., example=(x, y))")
            x, y = (_numbers(name, a) if isinstance(a, list) else a for name, a in (("x", x), ("y", y)))
            lead = int(many) + int(self.batch_size is not None)
            self._example = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a)[lead:], _kind(a)), (x, y))
        like_x, like_y = self._example
        lead = () if self.batch_size is None else (self.batch_size,)
        if many:
            leaves = jax.tree.leaves(xs := x)
            require(bool(leaves) and np.ndim(leaves[0]) > 0, "xs", shape_of(xs), "of arrays, time first")
            lead = (np.shape(leaves[0])[0], *lead)
            require(lead[0] > 0, "xs", shape_of(xs), "of at least one step")
        names = ("xs", "ys") if many else ("x", "y")
        x = _fit(names[0], x, like_x, lead)
        if y is None:
            y = jax.tree.map(lambda a: np.zeros((*lead, *a.shape), a.dtype), like_y)
            weights = np.zeros(lead[:1] if many else (), np.float32)
        else:
            y = _fit(names[1], y, like_y, lead)
        if weights is None:
            weights = np.ones(lead[:1] if many else (), np.float32)
        weights = np.asarray(weights, np.float32) if not isinstance(weights, jax.Array) else weights
        allowed = f"of shape {lead[:1]}, a number for each step"
        require(weights.shape == (lead[:1] if many else ()), "weights", shape_of(weights), allowed)
        return x, y, weights

    def _batched(self, tree: PyTree) -> PyTree:
        return _stacked(tree) if self.batch_size is None else tree

    def _unbatched(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda a: a[0], tree) if self.batch_size is None else tree

    def _predict_one(self, state: LearnerState, x: PyTree) -> PyTree:
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

    def _many(self, rule: Rule, state: LearnerState, xs, ys, weights, count: Int[Array, ""]):
        """The first `count` of some steps.

        `step` and `run` both come here, and the compiler does not know the count: their loop is the same, and so is
        every bit of their numbers. (A step on its own would be compiled otherwise, and rounded otherwise.)
        """
        data = xs, ys, weights
        advance = self._learn_at_once if self.rolling or state.recent is None else self._collect_and_learn
        seen = jax.eval_shape(lambda s: self._seen(s, *jax.tree.map(lambda a: a[0], data)), state)
        zero = jnp.zeros((), self._network.dtype)
        empty = StepInfo(seen.shown, seen.loss, zero, zero, zero, seen.good, seen.good)
        infos = jax.tree.map(lambda a: jnp.zeros((len(weights), *a.shape), a.dtype), empty)

        def body(loop):
            return advance(rule, data, count, loop)

        begin = jnp.zeros_like(count), state, infos
        return jax.lax.while_loop(lambda loop: loop[0] < count, body, begin)[1:]

    def _single(self, rule: Rule, state: LearnerState, x, y, weight, count: Int[Array, ""]):
        # Twice, of which the loop takes the first: a loop over arrays of one step would be simplified.
        xs, ys, weights = jax.tree.map(lambda a: jnp.stack([a, a]), (x, y, weight))
        state, infos = self._many(rule, state, xs, ys, weights, count)
        return state, jax.tree.map(lambda a: a[0], infos)

    def _seen(self, state: LearnerState, x, y, weight) -> "_Seen":
        """A step without learning: what it predicts, what it loses, and whether all of it is finite."""
        x, y = self._batched(x), self._batched(y)
        good = _finite(x) & (_finite(y) | (weight == 0)) & jnp.isfinite(weight)
        x, y = jax.tree.map(_cleaned, (x, y))
        network, _ = self.modules(state)
        weight = jnp.where(good, weight, 0.0).astype(network.dtype)
        after, prediction = self._ahead(state, x)
        loss = weight * jnp.mean(jax.vmap(network.loss)(prediction, y))
        good = good & _finite((prediction, loss))
        loss = jnp.where(good, loss, jnp.zeros_like(loss))
        return _Seen(x, y, weight, after, self._unbatched(prediction), loss, good)

    def _learn_at_once(self, rule: Rule, data, count, loop):
        """One step, with an update."""
        i, state, infos = loop
        seen = self._seen(state, *_at(data, i))
        new, report = (self._rolled if self.rolling else self._stepped)(rule, state, seen)
        good = seen.good & report.good
        state = _kept(good, new, state)._replace(steps=state.steps + 1, skipped=state.skipped + ~good)
        norms = (jnp.where(good, norm, jnp.zeros_like(norm)) for norm in report.norms)
        loss = jnp.where(good, seen.loss, jnp.zeros_like(seen.loss))
        return i + 1, state, _put(infos, i, StepInfo(seen.shown, loss, *norms, updated=good, skipped=~good))

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
            zero = jnp.zeros_like(seen.loss)
            info = StepInfo(seen.shown, seen.loss, zero, zero, zero, jnp.array(False), ~seen.good)
            return i + 1, now, recent, steps + 1, skipped + ~seen.good, _put(infos, i, info)

        def wanted(inner):
            return (inner[0] < count) & (inner[2].count < self.update_every)

        start = i, state.now, state.recent, state.steps, state.skipped, infos
        i, now, recent, steps, skipped, infos = jax.lax.while_loop(wanted, collect, start)
        state = state._replace(now=now, recent=recent, steps=steps, skipped=skipped)

        def update(state: LearnerState):
            new, report = self._updated(rule, state, Window(recent.xs, recent.ys, recent.weights))
            # Where the update cannot be made, its steps are forgotten.
            undone = state._replace(now=state.carry.state, skipped=skipped + 1)
            kept = _kept(report.good, new, undone)
            return kept._replace(recent=jax.tree.map(jnp.zeros_like, recent)), report

        def wait(state: LearnerState):
            zero = jnp.zeros((), self._network.dtype)
            return state, _Report((zero, zero, zero), jnp.array(True))

        full = recent.count == self.update_every
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
        if self._clip_trace is not None and rule.needs_synthesiser:
            carry = carry._replace(memory=_clipped(carry.memory, self._clip_trace))
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
            network=network, synthesiser=synthesiser, optimisers=(first, second), updates=state.updates + 1
        )
        good = _finite((network, synthesiser, new.optimisers, new.carry, gradients))
        td_error = jnp.sqrt(jnp.mean(jnp.sum(errors**2, axis=-1)))
        first, second = (jnp.asarray(optax.tree.norm(g), self._network.dtype) for g in gradients)
        return new, _Report((td_error, first, second), good)

    def _rolled(self, rule: Rule, state: LearnerState, seen: "_Seen") -> tuple[LearnerState, "_Report"]:
        """The last n inputs, replayed under the weights as they are; the newest loss goes back through all of them."""
        if state.recent is None:  # n = 1: nothing to replay
            return self._stepped(rule, state, seen)
        xs, count = self._window_of(state.recent, seen.x)

        def newest_loss(parameters):
            network = eqx.combine(parameters, self._static)
            states = self._replay(parameters, state.carry.state, xs, count)
            last = jax.tree.map(lambda s: s[-1], states)
            prediction = jax.vmap(lambda s: network.readout(network.output(s)))(last)
            return seen.weight * jnp.mean(jax.vmap(network.loss)(prediction, seen.y)), states

        gradient, states = jax.grad(newest_loss, has_aux=True)(state.network)
        # Once n steps are there, the oldest leaves the window: the state after it is where the next replay begins.
        full = count == self.update_every
        first = jax.tree.map(lambda s, old: jnp.where(full, s[0], old), states, state.carry.state)
        now = jax.tree.map(lambda s: s[-1], states)
        new = state._replace(carry=Carry(first, None), now=now, recent=state.recent._replace(xs=xs, count=count))
        nothing = jnp.zeros((1, 1, 1), self._network.dtype)
        empty = jax.tree.map(jnp.zeros_like, state.synthesiser)
        return self._applied(rule, new, Gradients(gradient, empty), nothing)

    def _window_of(self, recent: Recent, x: PyTree) -> tuple[PyTree, Int[Array, ""]]:
        """The last n inputs, `x` being the newest, and how many of them there are: the last so many."""
        xs = jax.tree.map(lambda all_, a: jnp.concatenate([all_[1:], a[None]]), recent.xs, x)
        return xs, jnp.minimum(recent.count + 1, self.update_every)

    def _replay(self, parameters: Any, start: PyTree, xs: PyTree, count: Int[Array, ""]) -> PyTree:
        """The states after each of the last `count` inputs."""
        cell = eqx.combine(parameters, self._static).cell

        def one(s, at):
            x, is_there = at
            s = jax.tree.map(lambda a, b: jnp.where(is_there, a, b), jax.vmap(cell)(x, s), s)
            return s, s

        n = self.update_every
        return jax.lax.scan(one, start, (xs, jnp.arange(n) >= n - count))[1]


class _Seen(NamedTuple):
    """A step before anything is learned from it, its data cleaned of what is not finite."""

    x: PyTree[Array]
    y: PyTree[Array]
    weight: Float[Array, ""]
    after: PyTree[Array]
    shown: PyTree[Array]
    loss: Float[Array, ""]
    good: Bool[Array, ""]


class _Report(NamedTuple):
    """Of an update: the norms (of the synthesiser's error, of both gradients), and whether all of it is finite."""

    norms: tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]
    good: Bool[Array, ""]


def _at(data: PyTree, i: Int[Array, ""]) -> PyTree:
    return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, i, keepdims=False), data)


def _put(all_: PyTree, i: Int[Array, ""], one: PyTree) -> PyTree:
    return jax.tree.map(lambda many, a: many.at[i].set(a), all_, one)


def _kept(good: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """What is new, if it is good."""
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(good, a, b), new, old)


def _stacked(tree: PyTree) -> PyTree:
    """One step as a window."""
    return jax.tree.map(lambda a: a[None], tree)


def _finite(tree: PyTree) -> Bool[Array, ""]:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])) if leaves else jnp.array(True)


def _cleaned(a: Array) -> Array:
    return jnp.where(jnp.isfinite(a), a, jnp.zeros_like(a)) if jnp.issubdtype(a.dtype, jnp.inexact) else a


def _clipped(memory: Any, largest: float) -> Any:
    """A trace, no example's longer than `largest`."""
    if isinstance(memory, Dutch):
        return memory._replace(trace=_clipped(memory.trace, largest))
    squares = [jnp.sum(e**2, axis=tuple(range(1, e.ndim))) for e in jax.tree.leaves(memory)]
    norm = jnp.sqrt(sum(squares[1:], squares[0]))
    factor = jnp.minimum(1.0, largest / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    return jax.tree.map(lambda e: e * factor.reshape(-1, *(1,) * (e.ndim - 1)), memory)


def _kind(a: Any):
    """The dtype that JAX gives to `a`."""
    return jnp.result_type(np.asarray(a) if not isinstance(a, jax.Array) else a)


def _struct(a: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(a), _kind(a))


def _example(network: Network) -> tuple[Any, Any] | None:
    """The shapes of an input and a target of one stream, as far as the network tells them."""
    size = getattr(network.cell, "input_size", None)
    if size is None:
        return None
    x = jax.ShapeDtypeStruct((size,) if isinstance(size, int) else tuple(size), network.dtype)
    wrong = f"the cell does not take an input of {shape_of(x)}: pass Learner(..., example=(x, y))"
    prediction = evaluate("cell", wrong, lambda x: _alone(network, x), x)
    is_index = network.loss is losses.softmax_cross_entropy
    return x, jax.ShapeDtypeStruct((), jnp.int32) if is_index else prediction


def _alone(network: Network, x):
    return network.readout(network.output(network.cell(x, network.zero_state())))


def _fit(name: str, data: Any, like: Any, lead: tuple[int, ...]) -> Any:
    """`data` as arrays of the shapes and dtypes of `like`, after the axes `lead`."""
    wanted = jax.tree.map(lambda a: jax.ShapeDtypeStruct((*lead, *a.shape), a.dtype), like)
    if isinstance(like, jax.ShapeDtypeStruct) and isinstance(data, list | tuple):
        data = _numbers(name, data)
    same = jax.tree.structure(data) == jax.tree.structure(like)
    require(same, name, shape_of(data), f"of {shape_of(wanted)}")

    def one(a, to):
        if not isinstance(a, jax.Array):
            a = _numbers(name, a)
        require(a.shape == to.shape, name, shape_of(a), f"of {shape_of(to)}")
        return a if a.dtype == to.dtype else a.astype(to.dtype)

    return jax.tree.map(one, data, wanted)


def _numbers(name: str, data: Any) -> np.ndarray:
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ValueError(f"{name} is {data!r}, but must be an array of numbers: {error}.") from error
    require(array.dtype.kind in "biuf", name, data, "an array of numbers")
    return array
