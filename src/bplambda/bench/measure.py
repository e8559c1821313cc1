"""Measuring: contenders in turn, medians, and what a row of the result is."""

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .effort import Effort


class Row(NamedTuple):
    """A line of bench.json.

    `value` is ours, in `unit`. `ratio` is how many times faster than the `baseline` we are; both are `None` where there
    is nothing to compare with.
    """

    name: str
    value: float
    unit: str
    baseline: str | None
    ratio: float | None
    config: dict[str, Any]


class Now(NamedTuple):
    """What is measured next."""

    what: str


class LeftOut(NamedTuple):
    """What is not measured, and why."""

    what: str
    why: str


Group = Callable[[Effort], Iterator[Row | Now | LeftOut]]


def in_turn(contenders: dict[str, Callable[[], Any]], effort: Effort) -> dict[str, np.ndarray]:
    """Seconds of a call of each contender, one number for each round.

    In a round each contender runs again and again for a moment, so that it finds its own data in the cache as it would
    in use, and its number is the median. What disturbs a round disturbs all of them alike: compare round by round.
    """
    for call in contenders.values():
        call()  # compiles
        call()  # some compile again, for what came out of the first
    found = [[block(call, effort.seconds) for call in contenders.values()] for _ in range(effort.rounds)]
    return dict(zip(contenders, np.array(found).T, strict=True))


def block(call: Callable[[], Any], seconds: float) -> float:
    """The median seconds of a call, called for so many seconds, or once."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        times.append(once(call))
    return statistics.median(times)


def once(call: Callable[[], Any]) -> float:
    """The seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def ratio(baseline: np.ndarray, ours: np.ndarray) -> float:
    """How many times faster than the baseline we are: the median of the rounds' ratios."""
    return float(np.median(baseline / ours))


def exponent(sizes: Any, times: Any) -> float:
    """The p of time ∝ sizeᵖ: the slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def resident() -> float:
    """The memory of this process now, in MB; elsewhere than on Linux, the most that it has had."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # bytes on macOS
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def pin(core: int) -> None:
    """Keeps this process, and all threads that it starts from now on, on one core, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def surroundings(effort: Effort) -> dict[str, Any]:
    """What any number depends on: the effort, the cores and as many threads, the versions."""
    names = ("bplambda", "jax", "jaxlib", "equinox", "numpy", "torch", "braintrace")
    found = {name: v for name in names if (v := _version(name))}
    dtype = str(jnp.result_type(float))
    return {"effort": effort.name, "cores": len(cores()), "dtype": dtype, "python": platform.python_version()} | found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
