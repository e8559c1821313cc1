"""`bplambda stream csv`: a person's own numbers, line by line."""

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
from ..processes import nobody_listens
from .session import Keeper, Memory, Session, Settings, begin, check, held, make_learners
from .show import finish, means, shown, table, write
from .sources import FAR, CsvStream, Row, Scale

SHOWN = 20  # bad lines, before they are only counted


def learn_csv(
    path: str, target: str, features: list[str], horizon: int, on_error: str, missing: str, delimiter: str, s: Settings
) -> int:
    """Learns from a CSV as its lines arrive. **Returns:** the exit code."""
    keeper = Keeper(s.checkpoint, {"stream": "csv", "target": target, "horizon": horizon} | check(s))
    delimiter = {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
    require(len(delimiter) == 1 and delimiter not in '"\r\n', "delimiter", delimiter, "one character, or tab")
    stream, session, names, stopped = None, None, [], False
    with opened(path) as file, shown(None) as (say, tell):
        try:
            features = features or keeper.kept("features")  # by name: whichever are numbers in today's first line
            stream = CsvStream(
                file,
                "standard input" if path == "-" else path,
                target,
                features,
                horizon,
                delimiter,
                gaps=missing == "mean",
                whole=s.checkpoint is not None,  # half a line, learned today, would make tomorrow's file another one
            )
            rows = good_rows(stream, on_error, say)
            first = next(rows, None)
            if first is None:
                raise ValueError(f"{stream.name} has no line to learn from after its header.")
            used = [stream.columns[i] for i in stream.features]
            say(f"From {', '.join(used)} to {target}{' of the next line' if horizon else ''}.")
            unused = [] if features else [column for column in stream.columns if column not in (*used, target)]
            if unused:
                what = ", ".join(unused)
                say(f"Left out, as line {first.line} has no number there: {what}. (--features chooses otherwise.)")
            learners = chosen(make_learners(len(used), s), keeper, s, say)
            names = [*learners, "persistence"]
            keeper.configuration |= {"features": used, "learners": list(learners)}
            session, is_first_new = start_or_go_on(learners, keeper, stream, s, say)
            rows = chain([first], rows) if is_first_new else rows
            write("line,prediction,target")
            for row in rows:
                with held():
                    session, prediction = teach(learners, session, row, stream.checksum, horizon)
                    write(f"{row.line},{prediction:.9g},{'' if np.isnan(row.target) else repr(row.target)}")
                    keeper.save_now_and_then(session)
                    tell(row.line, f"line {row.line:,}: {means(session, names)}")
        except KeyboardInterrupt:
            stopped = True
        except BrokenPipeError:
            nobody_listens()
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
    if stream.unfinished:
        say(f"Line {stream.line + 1} has no end yet: it is left for the next time.")
    finish(session, names, title, "line with a target", stopped, say, s)
    return 130 if stopped else 0


def chosen(learners: dict[str, Learner], keeper: Keeper, s: Settings, say: Callable[[str], None]) -> dict[str, Learner]:
    """BP(λ), and the others if they are to be drawn; but what is in a checkpoint stays together."""
    some = keeper.kept("learners") or (list(learners) if s.plot else list(learners)[:1])
    if s.plot and len(some) == 1:
        say(f"{s.checkpoint} was begun without --plot: {some[0]} is drawn alone.")
    return {name: learner for name, learner in learners.items() if name in some}


def start_or_go_on(
    learners: dict[str, Learner], keeper: Keeper, stream: CsvStream, s: Settings, say: Callable[[str], None]
) -> tuple[Session, bool]:
    """The session to go on with, and whether it has yet to learn from the first line of the stream."""
    fresh = begin(learners, "persistence", s, nothing_yet(len(stream.features), learners))
    kept = keeper.load(fresh)
    session = kept or fresh
    keeper.save(session)  # if it cannot be, then let it be said here
    memory = session.memory
    assert memory is not None
    if kept and stream.go_on_after(int(memory.line), int(memory.checksum), int(memory.first)):
        say(f"Going on after line {stream.line}.")
        return session, False
    if kept:
        say(f"Another stream than the one that was learned up to line {int(memory.line)}: from its start.")
    return session._replace(memory=memory._replace(first=np.int64(stream.checksum))), True


def nothing_yet(inputs: int, learners: dict[str, Learner]) -> Memory:
    scale = Scale(*np.zeros((3, inputs + 1)))
    zero, none = np.int64(0), np.float64(np.nan)
    return Memory(scale, zero, zero, zero, none, np.zeros(inputs, np.float32), {name: none for name in learners})


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
        off = {name: np.clip((guesses[name] - row.target) / unit, -FAR, FAR) for name in meters}
        meters = {name: meter.add(float(off[name]) ** 2) for name, meter in meters.items()}
    last = memory.last if y is None else np.float64(row.target)
    memory = Memory(scale, np.int64(row.line), np.int64(checksum), memory.first, last, x, predictions)
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
            if stream.bad <= SHOWN:
                say(f"Skipped {row}{' More are only counted.' if stream.bad == SHOWN else ''}")


def opened(path: str) -> AbstractContextManager[BinaryIO]:
    try:
        return nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb")
    except FileNotFoundError:
        raise ValueError(f"There is no file at {path}.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
