"""`bplambda stream csv`: a person's own numbers, line by line."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
from rich.console import Console

from ..checks import require
from ..learner import Learner
from .session import Keeper, Memory, Session, Settings, begin, check, held, make_learners
from .show import finish, means, shown, table, write
from .sources import CsvStream, Row, Scale


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
