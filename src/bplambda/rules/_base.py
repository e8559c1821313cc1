"""The one contract: a learning rule turns a window of time-steps into gradients.

    carry = rule.init(network, synthesiser, batch_size)
    gradients, carry, info = rule.window(network, synthesiser, carry, window)

(Within a compiled program, or as `eqx.filter_jit(rule.window)`: on its own it would be traced anew at each call.)
Sequence training, streaming, checkpoints and the gradient check all follow from these two pure functions.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..checks import (
    evaluate,
    real,
    require,
    require_count,
    require_finite,
    require_int,
    require_real,
    require_unit,
    shape_of,
)
from ..network import Network
from ..timeloop import over_time_and_batch, parameters
from ..unroll import Unrolled, ended, unroll


class Window(NamedTuple):
    """K consecutive time-steps of a batch of B examples: time first, then batch.

    - `xs`, `ys`: inputs and targets, pytrees of arrays `[K, B, ...]`. Targets are not looked at where the weight is 0.
    - `weights`: of the losses, `[K]` or `[K, B]`; 0 where a step has no loss. All 1 if left out. As a NumPy array they
      are known while compiling, and the steps before the first loss are not read out.
    - `last`: whether the sequence ends with this window.
    """

    xs: PyTree[Array]
    ys: PyTree[Array]
    weights: Float[Array, " K"] | Float[Array, "K B"] | np.ndarray | None = None
    last: bool | Bool[Array, ""] = False


class Carry(NamedTuple):
    """All that crosses a window's edge.

    `memory` is what the rule remembers besides the state. `None` stands for the memory at a sequence's start;
    every rule takes it, so that a sequence in one window never forms a trace.
    """

    state: PyTree[Array]
    memory: PyTree[Array] | None


class Gradients(NamedTuple):
    """Descent directions, averaged over the batch: what an Optax optimiser takes."""

    network: Any
    synthesiser: Any


class Info(NamedTuple):
    """What happened in a window, at the states s_t after each of its steps.

    - `loss`: the weighted losses, summed over time and averaged over the batch.
    - `predictions`: the readout at each step, `[K, B, ...]`.
    - `states`: the flat states, `[K, B, S]`.
    - `synthetic`: the synthetic gradients g(s_t; θ), before `scale`; 0 at a sequence's end. `[K, B, S]`. (`Targets` are
      at the states *before* each step: of the same state are `synthetic[t]` and a target at `[t + 1]`.)
    - `errors`: what the synthesiser learned from at the states *before* each step: its targets, as far as the window
      shows them, minus its predictions; in a window of one step, the TD error. 0 where none. `[K, B, S]`.
    """

    loss: Float[Array, ""]
    predictions: PyTree[Array]
    states: Float[Array, "K B S"]
    synthetic: Float[Array, "K B S"]
    errors: Float[Array, "K B S"]


class Rule(eqx.Module):
    """A learning rule. Its hyper-parameters are array leaves, so that `vmap` and `jit` see through them."""

    needs_synthesiser: ClassVar[bool] = True
    streams: ClassVar[bool] = False  # whether it can learn without the end of a sequence, in a `Learner`

    def window_size(self, steps: int) -> int:
        """The rule's natural window for a sequence of `steps`: all of it, unless the rule says otherwise."""
        return steps

    def fits(self, window: int, steps: int) -> bool:
        """Whether a sequence may be cut into windows of this size without changing the result."""
        return window == self.window_size(steps)

    def init(self, network: Network, synthesiser: Any, batch_size: int) -> Carry:
        """The carry at the start of a sequence: a zero state and an empty memory.

        **Arguments:** the `network`, its `synthesiser` (`None` where the rule needs none), the `batch_size` B.
        """
        require_int("batch_size", batch_size, minimum=1)
        self._check(network, synthesiser)
        return Carry(network.zero_state(batch_size), self._memory(network, synthesiser, batch_size))

    @abc.abstractmethod
    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window) -> tuple[Gradients, Carry, Info]:
        """The gradients of one window, the carry to the next, and what happened.

        **Arguments:** `network` and `synthesiser`, held fixed within the window; `carry`, from `init` or from the
        window before; the `window`. Called again and again, call `eqx.filter_jit(rule.window)`.
        """

    def advance(self, synthesiser: Any, gradient: Any) -> Any:
        """The synthesiser in the next window of the same sequence: held, unless the rule has its own step size."""
        return synthesiser

    def _memory(self, network: Network, synthesiser: Any, batch_size: int) -> PyTree[Array] | None:
        return None

    def _check(self, network: Network, synthesiser: Any) -> None:
        require_network(network)
        for name, value in vars(self).items():
            if eqx.is_array(value):
                require(value.ndim == 0, name, shape_of(value), "one number; vmap over more")
        name = type(self).__name__
        if self.needs_synthesiser:
            allowed = f"a synthesiser, such as LinearSynthesiser(network.state_size): {name} learns from one"
            require(synthesiser is not None, "synthesiser", synthesiser, allowed)
        if synthesiser is not None:
            check_synthesiser(network, synthesiser)

    def _run(self, network: Network, synthesiser: Any, carry: Carry, window: Window) -> Unrolled:
        """Checks the arguments and runs the window forward."""
        self._check(network, synthesiser)
        require(isinstance(window, Window), "window", type(window).__name__, "a bplambda.Window")
        require(isinstance(carry, Carry), "carry", type(carry).__name__, "what init or the last window returned")
        return unroll(network, carry.state, window.xs, window.ys, window.weights)


class LambdaRule(Rule):
    """A rule with the paper's three hyper-parameters.

    - `lam`: λ, the trace decay: 0 bootstraps alone (biased), 1 regresses on the true future gradient.
    - `gamma`: γ, the discount of future gradients.
    - `scale`: of the synthetic gradient that the network receives; it does not touch the synthesiser's targets.
    """

    lam: Float[Array, ""] = eqx.field(converter=real, default=1.0)
    gamma: Float[Array, ""] = eqx.field(converter=real, default=0.9)
    scale: Float[Array, ""] = eqx.field(converter=real, default=1.0)

    def __check_init__(self):
        require_unit("lam", self.lam)
        require_unit("gamma", self.gamma)
        require_finite("scale", self.scale)

    def _numbers(self, dtype) -> tuple[Array, Array, Array]:
        return self.lam.astype(dtype), self.gamma.astype(dtype), self.scale.astype(dtype)


class TruncatingRule(Rule):
    """A rule that cuts its backward pass every `n` steps, counted from a window's end.

    `n` is an array leaf: rules that differ in it alone share one compiled program, or one `vmap`.
    """

    streams: ClassVar[bool] = True
    n: Int[Array, ""] = eqx.field(converter=jnp.asarray)

    def __check_init__(self):
        require_count("n", self.n)

    def fits(self, window: int, steps: int) -> bool:
        return window == steps or (not isinstance(self.n, jax.core.Tracer) and window % int(self.n) == 0)


class SteppingRule(LambdaRule):
    """A λ-rule that moves its synthesiser within the sequence, by a step size of its own.

    - `alpha`: α, the synthesiser's step size.
    """

    alpha: Float[Array, ""] = eqx.field(converter=real, default=1e-3)

    def __check_init__(self):
        require_real("alpha", self.alpha, "finite and greater than 0", lambda a: (a > 0) & (a < float("inf")))


def require_rule(rule: Any) -> None:
    shown = f"the class {rule.__name__}" if isinstance(rule, type) else type(rule).__name__
    require(isinstance(rule, Rule), "rule", shown, "a learning rule, such as BPLambda()")


def require_network(network: Any) -> None:
    require(isinstance(network, Network), "network", type(network).__name__, "a bplambda.Network")


def check_synthesiser(network: Network, synthesiser: Any) -> None:
    """A synthesiser must map a state to a vector of the same size."""
    require_network(network)
    s = jax.ShapeDtypeStruct((network.state_size,), network.dtype)
    require(callable(synthesiser), "synthesiser", type(synthesiser).__name__, "callable, such as a LinearSynthesiser")
    wanted = f"it must take this network's state, {shape_of(s)}, and give a vector of the same shape and dtype"
    g = evaluate("synthesiser", wanted, synthesiser, s)
    if not (isinstance(g, jax.ShapeDtypeStruct) and (g.shape, g.dtype) == (s.shape, s.dtype)):
        raise ValueError(f"synthesiser gives {shape_of(g)}, but {wanted}.")


def edges(steps: int, n: int | Int[Array, ""]) -> Bool[Array, " K"]:
    """Where a backward pass is cut every n steps: at s_K, s_{K−n}, s_{K−2n} … of the states s_1 … s_K."""
    return jnp.arange(steps)[::-1] % n == 0


def predict(synthesiser: Any, unrolled: Unrolled, last: bool | Bool[Array, ""]):
    """The synthetic gradients in a window.

    **Returns:** g at the states s_0 … s_{K-1}; g at s_1 … s_K, with g_K = 0 if the sequence ends there; and the
    pull-back q ↦ Σ_t q_tᵀ ∇g(s_t; θ) of the first, for q_0 … q_{K-1}.
    """
    theta, rebuild = parameters(synthesiser)
    before, end = (unrolled.network.flatten(s) for s in (unrolled.before, unrolled.end))
    g, pull = jax.vjp(lambda p: over_time_and_batch(rebuild(p))(before), theta)
    g_end = ended(last, jax.vmap(synthesiser)(end))
    return g, jnp.concatenate([g[1:], g_end[None]]), lambda q: pull(q)[0]


def finish(
    unrolled: Unrolled,
    last: bool | Bool[Array, ""],
    synthetic: Float[Array, "K B S"],
    errors: Float[Array, "K B S"],
    memory: PyTree[Array] | None = None,
) -> tuple[Carry, Info]:
    """The carry to the next window, fresh if the sequence has ended, and the info of this one."""
    info = Info(unrolled.loss, unrolled.predictions, unrolled.states[1:], synthetic, errors)
    return Carry(ended(last, unrolled.end), memory), info
