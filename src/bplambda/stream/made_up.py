"""`bplambda stream echo` and `mackey-glass`: three learners on one made-up stream."""

from typing import Any

import numpy as np
from rich.console import Console

from ..checks import require_int
from .session import Keeper, Session, Settings, begin, check, held, make_learners
from .show import finish, means, shown, table
from .sources import echo, mackey_glass

CHUNK = 500  # steps between two looks at the stream


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
