"""Time and memory of a step on paper, for states that no machine here can hold."""

from collections.abc import Callable
from typing import NamedTuple

TRACED = 1000  # T, of a sequence that is learned from in one window


class Cost(NamedTuple):
    """Of a step of a GRU with a linear synthesiser, batch 1, by |h| = S.

    - `flop`: of its products, in multiplications and additions.
    - `floats`: that are kept while it runs, beside parameters and optimisers.
    """

    flop: Callable[[int], float]
    floats: Callable[[int], float]


COSTS = {
    # The TD error times the trace, and through half of the last S/4 Jacobians; J times what has moved the trace. Every
    # S/4 steps it catches up: what has moved it times the trace, the product of Jacobians, the new part of the trace.
    # The old trace, it moved, its new part; the Jacobians and their products.
    "K=1": Cost(lambda s: (2 + 1 / 4 + 2 + 8 + 2 + 2) * s**3, lambda s: 3.3 * s**3),
    # The product of Jacobians, the new part of the trace, and the old part moved once a window; the trace and the
    # next one, and a Jacobian and a transport for each of the S steps.
    "K=S": Cost(lambda s: 6 * s**3, lambda s: 4 * s**3),
    # Three gates there, back and for their weights; the synthesiser and its gradient. What the steps leave behind.
    "K=T": Cost(lambda s: 22 * s**2, lambda s: 19 * s * TRACED),
}


def parameters(s: int) -> float:
    """Floats of network and synthesiser: each with its gradient and two moments of Adam."""
    return 4 * (3 + 1) * s**2


def duration(seconds: float) -> str:
    """Three digits and the unit that fits."""
    units = {"years": 3.156e7, "days": 86400, "hours": 3600, "s": 1, "ms": 1e-3, "µs": 1e-6}
    return next(f"{seconds / unit:.3g} {name}" for name, unit in units.items() if seconds >= unit or unit == 1e-6)


def size(floats: float) -> str:
    """The memory of so many float32."""
    units = {"PB": 1e15, "TB": 1e12, "GB": 1e9, "MB": 1e6, "KB": 1e3}
    return next(f"{4 * floats / unit:.3g} {name}" for name, unit in units.items() if 4 * floats >= unit or unit == 1e3)
