"""`bplambda stream`: learns from a stream, shows how it goes, keeps what was learned."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .. import checkpoints, losses
from ..cells import RNNCell
from ..checks import require, require_int
from ..learner import Learner, LearnerState
from ..network import Network
from ..rules.bplambda import BPLambda
from ..rules.bptt import NoBPTT, TruncatedBPTT
from .sources import CsvStream, Row, Scale, echo, mackey_glass

WINDOW = 500  # errors, in a running mean
POINTS = 512  # of a curve, at most
CHUNK = 500  # steps between two looks at a made-up stream
SAVE_EVERY, LOG_EVERY = 60.0, 30.0  # seconds
CELLS = {"gru": eqx.nn.GRUCell, "lstm": eqx.nn.LSTMCell, "rnn": RNNCell}
LOOKS = ({"color": "tab:green"}, {"color": "tab:gray", "linestyle": "--"}, {"color": "tab:red", "linestyle": "--"})
BASELINE = {"color": "black", "linestyle": ":", "linewidth": 1}


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
    """What is kept of a CSV: the last line that was learned and the checksum up to there; the last target; with
    horizon 1 the inputs whose target is still to come, and the predictions of it, NaN if there are none."""

    scale: Scale
    line: np.ndarray | np.int64
    checksum: np.ndarray | np.int64
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
    """Holds Ctrl-C back until the work within is done: what is kept is always of whole steps."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked = []
    signal.signal(signal.SIGINT, lambda *_: asked.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt


def make_learners(inputs: int, s: Settings) -> dict[str, Learner]:
    """BP(λ) first, and those to compare it with. All begin with the same network."""
    first, second = jax.random.split(jax.random.key(s.seed))
    network = Network(
        CELLS[s.cell](inputs, s.units, key=first), eqx.nn.Linear(s.units, 1, key=second), losses.squared_error
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
        require(getattr(s, name) > 0, name, getattr(s, name), "greater than 0")
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


def learn_echo(delay: int, steps: int, s: Settings) -> int:
    require_int("delay", delay, minimum=1)
    require_int("steps", steps, minimum=1)
    configuration = {"stream": "echo", "delay": delay} | check(s)
    xs, ys = echo(steps, delay, s.seed)
    return learn(xs, ys, "predict zero", 0 * ys, f"Echo of {delay} steps ago", configuration, s)


def learn_mackey_glass(steps: int, s: Settings) -> int:
    require_int("steps", steps, minimum=1)
    configuration = {"stream": "mackey-glass"} | check(s)
    series = mackey_glass(steps + 1, s.seed)
    xs, ys = series[:-1], series[1:]
    return learn(xs, ys, "persistence", xs, "Mackey-Glass, one step ahead", configuration, s)


def learn(
    xs: np.ndarray,
    ys: np.ndarray,
    baseline: str,
    guesses: np.ndarray,
    title: str,
    configuration: dict[str, Any],
    s: Settings,
) -> int:
    """Learns from a stream of numbers, `guesses` being the baseline's. **Returns:** the exit code."""
    keeper, learners, stopped = Keeper(s.checkpoint, configuration), make_learners(1, s), False
    names = [*learners, baseline]
    session = fresh = begin(learners, baseline, s)
    if kept := keeper.load(fresh):
        session = kept
    keeper.save(session)  # if it cannot be, then let it be said here
    at = int(session.meters[baseline].count)
    with shown(len(xs)) as (say, tell):
        if at:
            say(f"Going on after step {at:,}." if at < len(xs) else f"Step {at:,} is done; for more, a larger --steps.")
        try:
            for start in range(at, len(xs), CHUNK):
                with held():
                    chunk = slice(start, start + CHUNK)
                    states, errors = {}, {baseline: (ys[chunk] - guesses[chunk]) ** 2}
                    for name, learner in learners.items():
                        states[name], info = learner.run(session.states[name], xs[chunk, None], ys[chunk, None])
                        errors[name] = np.asarray(info.loss)
                    session = Session(states, {name: m.add(*errors[name]) for name, m in session.meters.items()})
                    keeper.save_now_and_then(session)
                    tell(start + len(xs[chunk]), means(session, names))
        except KeyboardInterrupt:
            stopped = True
    keeper.save(session)
    title = f"{title}: {s.cell.upper()}, {s.units} units"
    Console().print(table(f"{title}, {int(session.meters[baseline].count):,} steps", session, names))
    finish(session, names, title, "step", stopped, say, s)
    return 130 if stopped else 0


def learn_csv(
    path: str, target: str, features: list[str], horizon: int, on_error: str, delimiter: str, s: Settings
) -> int:
    """Learns from a CSV as its lines arrive. **Returns:** the exit code."""
    keeper = Keeper(s.checkpoint, {"stream": "csv", "target": target, "horizon": horizon} | check(s))
    delimiter = {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
    require(len(delimiter) == 1 and delimiter not in '"\r\n', "delimiter", delimiter, "one character, or tab")
    stream, session, names, stopped = None, None, [], False
    with opened(path) as file, shown(None) as (say, tell):
        try:
            stream = CsvStream(file, "standard input" if path == "-" else path, target, features, horizon, delimiter)
            rows = good_rows(stream, on_error, say)
            first = next(rows, None)
            if first is None:
                raise ValueError(f"{stream.name} has no line to learn from after its header.")
            used = [stream.columns[i] for i in stream.features]
            say(f"From {', '.join(used)} to {target}{' of the next line' if horizon else ''}.")
            learners = make_learners(len(used), s)
            if s.plot is None:  # the others are there to be drawn
                learners = dict([next(iter(learners.items()))])
            names = [*learners, "persistence"]
            keeper.configuration |= {"features": used, "learners": list(learners)}
            fresh = begin(learners, "persistence", s, nothing_yet(len(used), learners))
            kept = keeper.load(fresh)
            session = kept or fresh
            keeper.save(session)  # if it cannot be, then let it be said here
            if kept and kept.memory and stream.go_on_after(int(kept.memory.line), int(kept.memory.checksum)):
                say(f"Going on after line {stream.line}.")
            else:
                rows = chain([first], rows)
            write("line,prediction,target")
            for row in rows:
                with held():
                    session, prediction = teach(learners, session, row, stream.checksum, horizon)
                    write(f"{row.line},{prediction:.9g},{'' if np.isnan(row.target) else repr(row.target)}")
                    keeper.save_now_and_then(session)
                    tell(row.line, f"line {row.line:,}: {means(session, names)}")
        except KeyboardInterrupt:
            stopped = True
        except BrokenPipeError:  # whoever reads the predictions has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        finally:
            keeper.save(session)
    if stream is None or session is None:
        say("Stopped before the first line.")
        return 130
    title = f"{target}: {s.cell.upper()}, {s.units} units"
    Console(stderr=True).print(table(f"{title}, in units of its variance", session, names))
    if stream.bad:
        say(f"{stream.bad:,} bad lines were skipped.")
    finish(session, names, title, "line with a target", stopped, say, s)
    return 130 if stopped else 0


def nothing_yet(inputs: int, learners: dict[str, Learner]) -> Memory:
    scale = Scale(*np.zeros((3, inputs + 1)))
    none = np.float64(np.nan)
    return Memory(
        scale, np.int64(0), np.int64(0), none, np.zeros(inputs, np.float32), {name: none for name in learners}
    )


def teach(
    learners: dict[str, Learner], session: Session, row: Row, checksum: int, horizon: int
) -> tuple[Session, np.float64]:
    """One line of a CSV. **Returns:** the session after it, and the prediction of BP(λ)."""
    memory = session.memory
    assert memory is not None
    values = np.append(row.features, row.target)
    scale = memory.scale.add(values)
    standardised = scale.standardised(values)
    x, y = standardised[:-1], None if np.isnan(row.target) else standardised[-1:]
    states, predictions = dict(session.states), {}
    for name, learner in learners.items():
        if horizon == 0:
            states[name], info = learner.step(states[name], x, y)
            predictions[name] = memory.scale.target(info.prediction)  # the target itself is not known yet
        else:
            if not np.isnan(memory.predictions[name]):
                states[name], _ = learner.step(states[name], memory.inputs, y)
            predictions[name] = scale.target(learner.predict(states[name], x))
    meters = session.meters
    if y is not None and not np.isnan(memory.last):
        guesses = (predictions if horizon == 0 else memory.predictions) | {"persistence": memory.last}
        unit = scale.deviation[-1] or 1.0
        meters = {name: m.add(float((guesses[name] - row.target) / unit) ** 2) for name, m in meters.items()}
    last = memory.last if y is None else np.float64(row.target)
    memory = Memory(scale, np.int64(row.line), np.int64(checksum), last, x, predictions)
    return Session(states, meters, memory), next(iter(predictions.values()))


def good_rows(stream: CsvStream, on_error: str, say: Callable[[str], None]) -> Iterator[Row]:
    """The lines that can be used; one that cannot is reported and skipped, or raised."""
    for row in stream:
        if isinstance(row, Row):
            yield row
        elif on_error == "stop":
            raise row
        else:
            stream.bad += 1
            say(f"Skipped {row}")


def opened(path: str) -> AbstractContextManager[BinaryIO]:
    try:
        return nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb")
    except FileNotFoundError:
        raise ValueError(f"There is no file at {path}.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None


def write(line: str) -> None:
    """At once, for whoever waits for it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def shown(total: int | None) -> Iterator[tuple[Callable[[str], None], Callable[[int, str], None]]]:
    """Two functions, both on standard error: one says something, the other tells how far it is."""
    console = Console(stderr=True)
    # Where no line can be redrawn, or predictions go to the same terminal, there is a line now and then.
    live = console.is_terminal and (total is not None or not sys.stdout.isatty())
    ends = (BarColumn(), TaskProgressColumn()), (TimeElapsedColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}")
    columns = (text,) if total is None else (*ends[0], text, *ends[1])
    progress = Progress(*columns, console=console, disable=not live, redirect_stdout=False, redirect_stderr=False)
    bar = progress.add_task("compiling" if total else "waiting for the first line", total=total)
    told = time.monotonic()

    def say(words: str) -> None:
        console.print(words, markup=False, highlight=False, soft_wrap=True)

    def tell(done: int, words: str) -> None:
        nonlocal told
        progress.update(bar, completed=done, description=words)
        if not live and time.monotonic() > told + LOG_EVERY:
            told = time.monotonic()
            say(words if total is None else f"{100 * done / total:.0f} %: {words}")

    with progress:
        yield say, tell


def means(session: Session, names: list[str]) -> str:
    return ", ".join(f"{name} {float(session.meters[name].mean):.4f}" for name in names)


def table(title: str, session: Session, names: list[str]) -> Table:
    found = Table(title=title, title_justify="left")
    found.add_column("")
    found.add_column(f"squared error, mean of about the last {WINDOW}", justify="right")
    for name in names:
        found.add_row(name, f"{float(session.meters[name].mean):.4f}")
    return found


def finish(
    session: Session, names: list[str], title: str, unit: str, stopped: bool, say: Callable[[str], None], s: Settings
) -> None:
    """Draws the errors, and says what there is to say."""
    for name, state in session.states.items():
        if skipped := int(state.skipped):
            say(f"{name}: {skipped:,} steps were not learned from, because a gradient was not finite.")
    if s.plot is not None:
        draw(session, names, title, unit, s.plot)
        say(f"The errors are drawn in {s.plot}.")
    if stopped:
        say("Stopped. Nothing was kept: that takes --checkpoint FILE." if s.checkpoint is None else "Stopped.")
    if s.checkpoint is not None:
        say(f"All is kept in {s.checkpoint}; to go on from there: {s.again}")


def draw(session: Session, names: list[str], title: str, unit: str, path: Path) -> None:
    """The running errors of all, the baseline's dotted."""
    from ..experiments._base import figure

    fig, axes = figure(1, width=6, height=3.6)
    ax = axes[0, 0]
    for name, look in zip(names, (*LOOKS[: len(names) - 1], BASELINE), strict=True):
        ax.plot(*session.meters[name].course(), label=name, **look)
    drawn = np.concatenate([session.meters[name].course()[1] for name in names])
    if np.max(drawn, initial=0) > 10 * np.min(drawn[drawn > 0], initial=np.inf):
        ax.set_yscale("log")
    else:
        ax.set_ylim(bottom=0)
    ax.set_xlabel(unit)
    ax.set_ylabel("squared error, running mean")
    ax.set_title(title, loc="left", fontsize=10)
    ax.legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=150)
