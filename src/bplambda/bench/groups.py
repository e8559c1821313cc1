"""What is measured, and in what surroundings: each group has a process of its own."""

from typing import NamedTuple

from .gradient import all_cores, one_core
from .grid import grid
from .limits import limits
from .measure import Group
from .scaling import against_gemm, by_batch, by_length, by_size
from .start import start
from .streaming import streaming


class Setting(NamedTuple):
    """A group of measurements; whether its process has one thread, and whether it is kept on one core."""

    measure: Group
    one_thread: bool = True
    pinned: bool = True


GROUPS = {
    "gradient": Setting(one_core),
    "gradient-2cores": Setting(all_cores, one_thread=False, pinned=False),
    "floor": Setting(limits),
    "size": Setting(by_size),
    "batch": Setting(by_batch),
    "trace": Setting(against_gemm),
    "length": Setting(by_length),
    "grid": Setting(grid, pinned=False),  # its processes have a core each
    "streaming": Setting(streaming),
    "start": Setting(start, one_thread=False, pinned=False),  # as a person starts it
}
