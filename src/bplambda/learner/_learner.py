"""A learner as its user sees it: what may be asked of it, and what is refused."""

import contextlib
import dataclasses
import sys
import zlib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from .. import checkpoints
from ..checks import require, require_int
from ..network import Network
from ..rules._base import Carry, Rule, TruncatingRule, require_rule
from ..rules.bptt import TruncatedBPTT
from ..shapes import check_step
from ..synthesiser import LinearSynthesiser
from ..traces import Deferred, from_now_on, suited
from . import _data
from ._data import Example
from ._state import LearnerState, Recent, StepInfo
from ._steps import Steps, clipping

_ONE = np.int32(1)


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
          has a step size of its own, and makes no use of the second. (In float16, give Adam an `eps` of 1e-4: its
          usual 1e-8 is 0 there, and no step would be finite.)
        - `update_every`: K, the steps between two updates; the same gradients as at every step if the parameters were
          held, much cheaper. `TruncatedBPTT(n)` and `NStepSG(n)` have windows of n, or of a multiple.
        - `batch_size`: the number of streams that are learned from together, the first axis of each x and y. One
          stream, without that axis, if left out. They go in step: if one of them has something that is not finite, the
          step is skipped for all. Streams that may fail on their own are learners on their own.
        - `synthesiser`: a `LinearSynthesiser` of the right size if left out.
        - `rolling`: for `TruncatedBPTT(n)`: an update at every step, through the last n, replayed with the weights now.
        - `clip`: the largest norm of a gradient, of network and synthesiser each; of the network's alone under
          `TrueOnlineBPLambda`, which needs its own step as it is.
        - `clip_trace`: the largest norm of an example's trace.
        - `example`: an input and a target of one stream. Needed only where the cell does not tell its input's shape
          or the target's is not the prediction's (an index under `softmax_cross_entropy` is known).
        """
        require(isinstance(network, Network), "network", type(network).__name__, "a bplambda.Network")
        allowed = "one that learns from streams, such as BPLambda or TruncatedBPTT: it would need a whole sequence"
        require_rule(rule)
        require(rule.streams, "rule", type(rule).__name__, allowed)
        require_int("update_every", update_every, minimum=1)
        if batch_size is not None:
            require_int("batch_size", batch_size, minimum=1)
        allowed = "left out, unless the rule is TruncatedBPTT with update_every=1"
        require(not rolling or (isinstance(rule, TruncatedBPTT) and update_every == 1), "rolling", rolling, allowed)
        if synthesiser is None and rule.needs_synthesiser:
            synthesiser = LinearSynthesiser(network.state_size, network.dtype)
        rule._check(network, synthesiser)
        for name, value in (("optimiser", optimiser), ("synthesiser_optimiser", synthesiser_optimiser)):
            allowed = "an optimiser of Optax, such as optax.adam(1e-3)"
            require(value is None or hasattr(value, "update"), name, value, allowed)
        eps = 1e-8 if float(jnp.finfo(network.dtype).tiny) < 1e-8 else 1e-4  # in float16, 1e-8 is 0
        both = optimiser or optax.adam(1e-3, eps=eps), synthesiser_optimiser or optax.adam(1e-4, eps=eps)
        for name, value in (("clip", clip), ("clip_trace", clip_trace)):
            require(value is None or value > 0, name, value, "greater than 0")
        if clip is not None:
            first, second = both
            both = optax.chain(clipping(float(clip)), first), optax.chain(clipping(float(clip)), second)
        self.rule = rule
        size = _window_size(rule, update_every, rolling)
        clip_trace = None if clip_trace is None else float(clip_trace)
        self._steps = Steps(network, synthesiser, both, size, batch_size, rolling, clip_trace)
        self._batch = () if batch_size is None else (batch_size,)
        self._example = _data.of_network(network) if example is None else _data.of_data(*example)
        if example is not None and self._example is not None:
            check_step(network, *self._example)
        self._step = jax.jit(self._steps.single)
        self._run = jax.jit(self._steps.many)
        self._predict = jax.jit(self._steps.predict)
        self._fresh = jax.jit(self._reset)

    def init(self, key: PRNGKeyArray) -> LearnerState:
        """A learner before its first step. Nothing in it is random: the first weights are the network's own.

        The `key` is kept in the state, for those who need randomness there.

        **Arguments:** `key`: from `jax.random.key` or `jax.random.PRNGKey`.
        """
        if not jnp.issubdtype(jnp.result_type(key), jax.dtypes.prng_key):
            is_old = jnp.result_type(key) == jnp.uint32 and jnp.ndim(key) > 0
            require(is_old, "key", key, "a key, as in learner.init(jax.random.key(0))")
            key = jax.random.wrap_key_data(key)
        modules = self._steps.network, self._steps.synthesiser
        network, synthesiser = eqx.filter(modules, eqx.is_inexact_array)
        first, second = self._steps.optimisers
        optimisers = first.init(network), second.init(synthesiser)
        nothing = jnp.zeros((), jnp.int32)
        carry, now, recent = self._fresh_carry()
        state = LearnerState(network, synthesiser, optimisers, carry, now, recent, key, nothing, nothing, nothing)
        # Copies, no two alike: a state may be donated or deleted without harm to the modules that it began as.
        return jax.tree.map(jnp.copy, state)

    def step(self, state: LearnerState, x: Any, y: Any = None) -> tuple[LearnerState, StepInfo]:
        """One step: predict, then learn. `y` may be `None`: no loss at this step, but the state moves on."""
        data = _data.one_step(self._shown(x, y), x, y, self._batch)
        return self._step(self.rule, state, *data, _ONE)

    def run(self, state: LearnerState, xs: Any, ys: Any = None, weights: Any = None) -> tuple[LearnerState, StepInfo]:
        """`step` over a chunk, compiled as one loop: the same numbers, much faster.

        **Arguments:** `state`; `xs`, `ys`: time first; `ys` may be `None`; `weights` of the losses, 0 where a step has
        no target, all 1 if left out.

        **Returns:** the state, and the infos of all steps, time first.

        A program is compiled for each power of two, not for each number of steps.
        """
        data = _data.many_steps(self._shown(xs, ys, time=1), xs, ys, weights, self._batch)
        count = len(data.weight)
        if count == 1:
            state, info = self._step(self.rule, state, *jax.tree.map(lambda a: a[0], data), _ONE)
            return state, jax.tree.map(lambda a: a[None], info)
        state, infos = self._run(self.rule, state, *_data.padded(data), np.int32(count))
        return state, _data.first(infos, count)

    def predict(self, state: LearnerState, x: Any) -> PyTree[Array]:
        """What `step` would predict, without learning. (NaN for an input that is; `step` says that it is skipped.)"""
        return self._predict(state, _data.one_step(self._shown(x, None), x, None, self._batch).x)

    def reset(self, state: LearnerState) -> LearnerState:
        """The start of a new sequence: state and trace fresh, parameters kept.

        With `update_every`, or in a window of n, the steps since the last update are dropped: nothing is learned from
        sequences that are shorter than that. A learner does not know that a sequence ends, and predicts gradients from
        beyond its end; where the end is known in advance, use `sequence_gradients`, which does not.
        """
        return self._fresh(state)

    def modules(self, state: LearnerState) -> tuple[Network, Any]:
        """The network and the synthesiser, as learned so far."""
        return self._steps.modules(state)

    def save(self, path: Path | str, state: LearnerState) -> None:
        """Writes all of `state` to one file, whole or not at all; makes its folder if it is not there."""
        kind = str(jax.random.key_impl(state.key))
        checkpoints.check(state, self._like(kind), "state", "a state of this learner")
        checkpoints.save(Path(path), state, self._configuration(kind))

    def load(self, path: Path | str) -> LearnerState:
        """Reads a state that this learner, or one made like it, has saved."""
        kind = checkpoints.configuration(Path(path)).get("key")
        like, configuration = self._like(kind), self._configuration(kind)
        try:
            return checkpoints.load(Path(path), like, configuration)
        except checkpoints.CheckpointError:
            if isinstance(like.carry.memory, Deferred):  # an older version may have saved the trace as it is
                older = like._replace(carry=like.carry._replace(memory=like.carry.memory.trace))
                with contextlib.suppress(checkpoints.CheckpointError):
                    state = checkpoints.load(Path(path), older, configuration)
                    fresh: Any = self._fresh_carry()[0].memory
                    memory = from_now_on(fresh, state.carry.memory)
                    return state._replace(carry=state.carry._replace(memory=memory))
            raise

    def _like(self, kind_of_key: str | None) -> LearnerState:
        """The shapes of a state."""
        return jax.eval_shape(lambda: self.init(jax.random.key(0, impl=kind_of_key)))

    def _configuration(self, kind_of_key: str | None) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        numbers = {k: np.asarray(v).tolist() for k, v in vars(self.rule).items()}
        network = self._steps.network
        modules = {"cell": network.cell, "readout": network.readout, "synthesiser": self._steps.synthesiser}
        return {
            "rule": type(self.rule).__name__,
            **{f"rule.{name}": value for name, value in numbers.items()},
            **{name: type(module).__name__ for name, module in modules.items()},
            **{f"{name}{part}": value for name, module in modules.items() for part, value in _static(module)},
            "loss": _called(network.loss),
            "output": _called(network.output),
            "update_every": self._steps.window,
            "batch_size": self._steps.batch_size,
            "rolling": self._steps.rolling,
            "key": kind_of_key,
        }

    def _shown(self, x: Any, y: Any, time: int = 0) -> Example:
        """The shapes of an input and a target: as they are known, or as they are first seen."""
        if self._example is None:
            require(y is not None, "y", y, "given at the first step, or shown by Learner(..., example=(x, y))")
            example = _data.of_data(x, y, axes=time + len(self._batch))
            check_step(self._steps.network, *example)
            self._example = example
        return self._example

    def _fresh_carry(self) -> tuple[Carry, PyTree[Array], Recent | None]:
        network, size = self._steps.network, self._steps.window
        batch = self._steps.batch_size or 1
        carry = self.rule.init(network, self._steps.synthesiser, batch)
        # A trace that is clipped at every step is moved at every step.
        longest = size if self._steps.clip_trace is None else sys.maxsize
        carry = carry._replace(memory=suited(carry.memory, longest))
        if size == 1:
            return carry, carry.state, None
        if self._example is None:
            raise ValueError(
                f"example is not given, and the cell, a {type(network.cell).__name__}, has no input_size to tell "
                "the shape of its input: pass Learner(..., example=(x, y)), an input and a target of one stream."
            )
        xs, ys = jax.tree.map(lambda a: jnp.zeros((size, batch, *a.shape), a.dtype), self._example)
        return carry, carry.state, Recent(xs, ys, jnp.zeros(size, network.dtype), jnp.zeros((), jnp.int32))

    def _reset(self, state: LearnerState) -> LearnerState:
        carry, now, recent = self._fresh_carry()
        return state._replace(carry=carry, now=now, recent=recent)


def _static(part: Any) -> list[tuple[str, Any]]:
    """What a module is told once and for all, such as an activation, by name or as a function; and its parts are."""
    if isinstance(part, bool | int | float | str):
        return [("", part)]
    if eqx.is_array(part) or isinstance(part, np.ndarray):  # one that is learned is in the state
        return [] if eqx.is_inexact_array(part) else [("", f"an array, {zlib.crc32(np.asarray(part).tobytes())}")]
    if isinstance(part, eqx.Module):
        fields = [(f".{f.name}", getattr(part, f.name, None)) for f in dataclasses.fields(part)]
    elif isinstance(part, tuple | list):
        fields = [(f"[{i}]", value) for i, value in enumerate(part)]
    else:
        return [("", _called(part))] if callable(part) else []
    return [(name + rest, value) for name, field in fields for rest, value in _static(field)]


def _called(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _window_size(rule: Rule, update_every: int, rolling: bool) -> int:
    """The steps between two updates; in a rolling window, those that are replayed."""
    if not isinstance(rule, TruncatingRule):
        allowed = f"{rule.window_size(update_every)}, the window of {type(rule).__name__}"
        require(rule.fits(update_every, 2 * update_every), "update_every", update_every, allowed)
        return update_every
    require(not isinstance(rule.n, jax.core.Tracer), "rule.n", "traced", "a number, in a Learner: it is a size")
    n = int(rule.n)
    if rolling or update_every == 1:
        return n
    require(update_every % n == 0, "update_every", update_every, f"a multiple of n = {n}, for windows of n")
    return update_every
