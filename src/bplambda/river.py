"""Estimators for River: recurrent networks that learn from each sample as it comes, in constant memory."""

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from . import losses
from .cells import BY_NAME
from .checks import require, require_int
from .learner import Learner, LearnerState
from .network import Network
from .rules.bplambda import BPLambda
from .rules.bptt import NoBPTT, TruncatedBPTT
from .rules.nstep import NStepSG
from .rules.true_online import TrueOnlineBPLambda
from .stream.sources import EARLY, FAR

try:
    from river import base, stats
except ImportError as error:
    raise ImportError(
        "bplambda.river needs River, which is not installed: in a checkout, pip install '.[river]'"
    ) from error

_LARGEST = float(np.finfo(np.float32).max)
_RULES: dict[str, Callable] = {
    "bplambda": lambda s: BPLambda(s.lam, s.gamma, s.scale),
    "true-online": lambda s: TrueOnlineBPLambda(s.lam, s.gamma, s.scale, s.synthesiser_rate),
    "truncated": lambda s: TruncatedBPTT(s.n),
    "nstep": lambda s: NStepSG(s.n, s.gamma, s.scale),
    "none": lambda s: NoBPTT(),
}


class _Settings(NamedTuple):
    """What a learner is made of, besides its sizes and its weights."""

    loss: Callable
    units: int
    cell: str
    rule: str
    lam: float
    gamma: float
    scale: float
    n: int
    network_rate: float
    synthesiser_rate: float
    update_every: int


class _Recurrent(base.Estimator):
    """What both estimators share: features with names, and a network that grows with them."""

    _loss: Callable
    _record: Callable  # what it remembers of targets, empty

    def __init__(
        self,
        units: int = 16,
        cell: str = "gru",
        rule: str = "bplambda",
        lam: float = 0.9,
        gamma: float = 0.9,
        scale: float = 1.0,
        n: int = 5,
        network_rate: float = 1e-2,
        synthesiser_rate: float = 1e-3,
        update_every: int = 1,
        seed: int = 0,
    ):
        """**Arguments:**

        - `units`, `cell`: the size of the network and its kind, `"gru"`, `"lstm"` or `"rnn"`.
        - `rule`: `"bplambda"` or `"true-online"`, or, to compare, `"truncated"`, `"nstep"` or `"none"`.
        - `lam`, `gamma`, `scale`: of the rules with a synthesiser.
        - `n`: the samples that `"truncated"` and `"nstep"` go back. `"nstep"` learns once in so many.
        - `network_rate`, `synthesiser_rate`: the step sizes, of Adam; `"true-online"` has plain steps for the second.
        - `update_every`: the samples between two updates.
        - `seed`: of the initial weights.
        """
        require_int("units", units, minimum=1)
        require_int("n", n, minimum=1)
        require_int("seed", seed, minimum=0)
        require(cell in BY_NAME, "cell", cell, f"one of {', '.join(BY_NAME)}")
        require(rule in _RULES, "rule", rule, f"one of {', '.join(_RULES)}")
        for name, rate in (("network_rate", network_rate), ("synthesiser_rate", synthesiser_rate)):
            require(0 < rate < math.inf, name, rate, "finite and greater than 0")
        self.units, self.cell, self.rule, self.n = units, cell, rule, n
        self.lam, self.gamma, self.scale = lam, gamma, scale
        self.network_rate, self.synthesiser_rate = network_rate, synthesiser_rate
        self.update_every, self.seed = update_every, seed
        self._settings = _Settings(
            self._loss, units, cell, rule, lam, gamma, scale, n, network_rate, synthesiser_rate, update_every
        )
        self._columns: dict[tuple, int] = {}
        self._seen: Any = self._record()
        self._sizes = _room(0), 1
        self._state: LearnerState | None = None
        _learner(self._settings, *self._sizes)  # If there is anything else wrong with the settings, this will tell.

    def _learn(self, features: dict[tuple, float], target: np.ndarray | None, outputs: int) -> None:
        new = features.keys() - self._columns.keys()
        for column in sorted(new, key=lambda c: [(type(part).__name__, str(part)) for part in c]):
            self._columns[column] = len(self._columns)
        sizes = _room(len(self._columns)), outputs
        if self._state is None or sizes != self._sizes:
            self._state, self._sizes = self._grown(sizes), sizes
        self._state, _ = _learner(self._settings, *sizes).step(self._state, self._vector(features), target)

    def _unlabelled(self, features: dict[tuple, float], outputs: int) -> None:
        if all(map(math.isfinite, features.values())):
            self._learn(features, None, outputs)

    def _grown(self, sizes: tuple[int, int]) -> LearnerState:
        """A fresh state of these sizes; all that the old one knows is in a corner of it."""
        key = jax.random.fold_in(jax.random.key(self.seed), math.prod(sizes))
        network = eqx.filter(_network(self._settings, *sizes, key), eqx.is_inexact_array)
        state = _learner(self._settings, *sizes).init(key)._replace(network=network)
        if self._state is None:
            return state
        leaves, structure = jax.tree.flatten(state)
        known = jax.tree.leaves(self._state)
        return structure.unflatten(_with_corner(a, b) for a, b in zip(leaves, known, strict=True))

    def _predict(self, state: LearnerState, x: dict) -> np.ndarray:
        """The network's outputs. A feature that is new or not finite is left out."""
        vector = np.nan_to_num(self._vector(_features(x)))
        return np.asarray(_learner(self._settings, *self._sizes).predict(state, vector), float)

    def _vector(self, features: dict[tuple, float]) -> np.ndarray:
        vector = np.zeros(self._sizes[0], np.float32)
        for column, value in features.items():
            if column in self._columns:
                vector[self._columns[column]] = value
        return vector


class RecurrentRegressor(_Recurrent, base.Regressor):
    """A recurrent network that learns to predict a number, sample by sample, for River.

    The network remembers the samples it has learned from: their order matters. The target is standardised inside, by
    the mean and variance so far, so that any scale will do; none counts as more than 10 deviations off. Features are
    taken as they are: scale them before.

    A string is a feature of its own for each value; a feature that is missing, or `None`, is 0. New features may
    appear at any time: the network grows, and keeps what it knows. A sample that is not finite is left out.

    !!! example

        ```python
        model = preprocessing.StandardScaler() | RecurrentRegressor()
        evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE())
        ```
    """

    _loss = staticmethod(losses.squared_error)
    _record = stats.Var

    def learn_one(self, x: dict, y: float | None) -> None:
        """Learns from a sample; the network's state moves on, and that alone where `y` is `None`."""
        features = _features(x)
        if y is None:
            return self._unlabelled(features, outputs=1)
        y = _number("y", y)
        if all(map(math.isfinite, (*features.values(), y))):
            mean, variance = self._seen.mean.get(), self._seen.get()
            if self._seen.mean.n >= EARLY and variance > 0:  # one wrong number must not spoil the scale of all others
                far = FAR * math.sqrt(variance)
                y = min(max(y, mean - far), mean + far)
            self._seen.update(y)
            mean, deviation = self._moments()
            self._learn(features, np.array([(y - mean) / deviation]), outputs=1)

    def predict_one(self, x: dict) -> float:
        """The prediction for the sample that comes next; 0 before the first one was learned."""
        if self._state is None:
            return 0.0
        mean, deviation = self._moments()
        return mean + deviation * self._predict(self._state, x).item()

    def _moments(self) -> tuple[float, float]:
        return self._seen.mean.get(), math.sqrt(self._seen.get()) or 1.0


def _cross_entropy(prediction: Float[Array, " outputs"], target: Int[Array, " 2"]) -> Float[Array, ""]:
    """Softmax cross-entropy among the classes seen so far; `target` is the class and the number of them."""
    label, seen = target
    among = jnp.where(jnp.arange(len(prediction)) < seen, prediction, -jnp.inf)
    return losses.softmax_cross_entropy(among, label)


class RecurrentClassifier(_Recurrent, base.Classifier):
    """A recurrent network that learns to tell classes apart, sample by sample, for River.

    Classes may be anything hashable (but `None`, for one that is not known), and new ones may appear at any time, as
    may new features: see `RecurrentRegressor`, which is otherwise alike.

    !!! example

        ```python
        model = preprocessing.StandardScaler() | RecurrentClassifier()
        evaluate.progressive_val_score(datasets.Phishing(), model, metrics.Accuracy())
        ```
    """

    _loss = staticmethod(_cross_entropy)
    _record = dict

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict, y: Hashable) -> None:
        """Learns from a sample; the network's state moves on, and that alone where `y` is `None`."""
        features = _features(x)
        if y is None:
            return self._unlabelled(features, outputs=_room(len(self._seen)))
        if all(map(math.isfinite, features.values())) and y == y:
            label = self._seen.setdefault(y, len(self._seen))
            self._learn(features, np.array([label, len(self._seen)]), outputs=_room(len(self._seen)))

    def predict_proba_one(self, x: dict, **kwargs) -> dict[Any, float]:
        """The probability of each class seen so far, for the sample that comes next."""
        if self._state is None:
            return {}
        logits = self._predict(self._state, x)[: len(self._seen)]
        weights = np.exp(logits - logits.max())
        return dict(zip(self._seen, (weights / weights.sum()).tolist(), strict=True))


def _features(x: dict) -> dict[tuple, float]:
    """The columns of a sample, `(name,)` or, for a string, `(name, value)`, and what is in them."""
    found: dict[tuple, float] = {}
    for name, value in x.items():
        if isinstance(value, str):
            found[name, value] = 1.0
        elif value is not None:
            found[name,] = _number(f"feature {name!r}", value)
    return found


def _number(name: str, value: Any) -> float:
    """`value` as a float, NaN if it is not finite in single precision."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}, but must be a number{' or a string' * (name != 'y')}.") from None
    return number if abs(number) <= _LARGEST else math.nan


def _room(count: int) -> int:
    """The next power of two, for few recompilations."""
    return max(8, 1 << (count - 1).bit_length())


def _network(s: _Settings, columns: int, outputs: int, key: PRNGKeyArray) -> Network:
    first, second = jax.random.split(key)
    readout = eqx.nn.Linear(s.units, outputs, key=second)
    return Network(BY_NAME[s.cell](columns, s.units, key=first), readout, s.loss)


@functools.lru_cache(maxsize=256)
def _learner(s: _Settings, columns: int, outputs: int) -> Learner:
    """Compiled once for all estimators with the same settings, and no part of them: they can be copied and pickled."""
    network = _network(s, columns, outputs, jax.random.key(0))
    target = np.zeros(2, np.int32) if s.loss is _cross_entropy else np.zeros(1, network.dtype)
    return Learner(
        network,
        _RULES[s.rule](s),
        optax.adam(s.network_rate),
        optax.adam(s.synthesiser_rate),
        s.update_every,
        rolling=s.rule == "truncated" and s.update_every == 1,
        example=(np.zeros(columns, network.dtype), target),
    )


def _with_corner(whole: Array, corner: Array) -> Array:
    if whole.shape == corner.shape:
        return corner
    return whole.at[tuple(slice(size) for size in corner.shape)].set(corner)
