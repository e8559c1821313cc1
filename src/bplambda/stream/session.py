"""A session with a stream: its learners, how they have done so far, and the file that keeps it all."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax

from .. import checkpoints, losses
from ..cells import BY_NAME
from ..checks import require, require_int
from ..learner import Learner, LearnerState
from ..network import Network
from ..processes import ASKS_TO_END
from ..rules.bplambda import BPLambda
from ..rules.bptt import NoBPTT, TruncatedBPTT
from .sources import Scale

WINDOW = 500  # errors, in a running mean
POINTS = 512  # of a curve, at most
SAVE_EVERY = 60.0  # seconds


class Settings(NamedTuple):
    """Of the learners, and where their work is kept and drawn; `again` is the command that goes on with it."""

    units: int
    cell: str
    lam: float
    gamma: float
    network_rate: float
    synthesiser_rate: float
    seed: int
    update_every: int
    checkpoint: Path | None
    plot: Path | None
    again: str


class Meter(NamedTuple):
    """The running mean of errors, and its course, which keeps fewer points of a longer past."""

    mean: np.ndarray | np.float64 = np.float64(0)
    count: np.ndarray | np.int64 = np.int64(0)
    stride: np.ndarray | np.int64 = np.int64(1)
    curve: np.ndarray = np.zeros(POINTS)

    def add(self, *errors: float) -> "Meter":
        mean, count, stride, curve = float(self.mean), int(self.count), int(self.stride), self.curve.copy()
        for error in errors:
            count += 1
            mean += (error - mean) / min(count, WINDOW)
            if count % stride == 0:
                curve[count // stride - 1] = mean
            if count == POINTS * stride:
                curve[: POINTS // 2] = curve[1::2].copy()
                stride *= 2
        return Meter(np.float64(mean), np.int64(count), np.int64(stride), curve)

    def course(self) -> tuple[np.ndarray, np.ndarray]:
        """How many errors there had been, and their running mean then."""
        points = int(self.count // self.stride)
        return self.stride * np.arange(1, points + 1), self.curve[:points]


class Memory(NamedTuple):
    """What is kept of a CSV: the last line that was learned and the checksum up to there, and up to the first row; the
    last target; with horizon 1 the inputs whose target is still to come, and the predictions of it, NaN if there are
    none."""

    scale: Scale
    line: np.ndarray | np.int64
    checksum: np.ndarray | np.int64
    first: np.ndarray | np.int64
    last: np.ndarray | np.float64
    inputs: np.ndarray
    predictions: dict[str, np.float64]


class Session(NamedTuple):
    """All that goes on tomorrow: one pytree of arrays."""

    states: dict[str, LearnerState]
    meters: dict[str, Meter]
    memory: Memory | None = None


class Keeper:
    """A session's checkpoint, if it is to have one."""

    def __init__(self, path: Path | None, configuration: dict[str, Any]):
        self.path, self.configuration, self.saved = path, configuration, time.monotonic()

    def kept(self, what: str) -> list[str]:
        """The names of the "learners" whose work is kept, or of the "features" that they have learned from."""
        if self.path is None or not self.path.exists():
            return []
        saved = checkpoints.configuration(self.path)
        is_ours = all(saved.get(name) == value for name, value in self.configuration.items())
        return saved.get(what, []) if is_ours else []

    def load(self, fresh: Session) -> Session | None:
        """The session that was kept, if there is one; of the structure of a fresh one."""
        if self.path is None or not self.path.exists():
            return None
        with jax.enable_x64(True):  # or means and checksums would lose half of their digits
            found = checkpoints.load(self.path, fresh, self.configuration)
        return Session(found.states, *jax.tree.map(np.asarray, tuple(found[1:])))

    def save(self, session: Session | None) -> None:
        if self.path is None or session is None:
            return
        try:
            with suppress(KeyboardInterrupt), held():
                checkpoints.save(self.path, session, self.configuration)
        except OSError as error:
            raise ValueError(f"{self.path} cannot be written: {error.strerror}.") from error
        self.saved = time.monotonic()

    def save_now_and_then(self, session: Session) -> None:
        if time.monotonic() > self.saved + SAVE_EVERY:
            self.save(session)


@contextmanager
def held() -> Iterator[None]:
    """Holds Ctrl-C, and what is treated alike, back until the work within is done: what is kept is of whole steps."""
    in_main = threading.current_thread() is threading.main_thread()
    all_ = [s for s in ASKS_TO_END if in_main and signal.getsignal(s) is signal.default_int_handler]
    asked = []
    for each in all_:
        signal.signal(each, lambda *_: asked.append(True))
    try:
        yield
    finally:
        for each in all_:
            signal.signal(each, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt


def make_learners(inputs: int, s: Settings) -> dict[str, Learner]:
    """BP(λ) first, and those to compare it with. All begin with the same network."""
    first, second = jax.random.split(jax.random.key(s.seed))
    network = Network(
        BY_NAME[s.cell](inputs, s.units, key=first), eqx.nn.Linear(s.units, 1, key=second), losses.squared_error
    )
    rates = optax.adam(s.network_rate), optax.adam(s.synthesiser_rate)
    return {
        f"BP({s.lam:g})": Learner(network, BPLambda(s.lam, s.gamma), *rates, update_every=s.update_every),
        "no BPTT": Learner(network, NoBPTT(), *rates),
        "BPTT n=5": Learner(network, TruncatedBPTT(5), *rates, rolling=True),
    }


def check(s: Settings) -> dict[str, Any]:
    """Refuses wrong settings before anything has begun. **Returns:** what a checkpoint must agree with."""
    require_int("units", s.units, minimum=1)
    require_int("seed", s.seed, minimum=0)
    for name in ("network_rate", "synthesiser_rate"):
        require(0 < getattr(s, name) < math.inf, name, getattr(s, name), "finite and greater than 0")
    if s.plot is not None:
        require(s.plot.suffix in (".png", ".pdf", ".svg"), "plot", str(s.plot), "a .png, .pdf or .svg")
    for path in (s.plot, s.checkpoint):
        if path is not None:
            require(not path.is_dir(), "a file to write", str(path), "a file, not a folder")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"{path} cannot be written: {error.strerror}.") from None
    return {name: getattr(s, name) for name in ("cell", "units", "lam", "gamma", "seed", "update_every")}


def begin(learners: dict[str, Learner], baseline: str, s: Settings, memory: Memory | None = None) -> Session:
    states = {name: learner.init(jax.random.key(s.seed)) for name, learner in learners.items()}
    return Session(states, {name: Meter() for name in (*learners, baseline)}, memory)
