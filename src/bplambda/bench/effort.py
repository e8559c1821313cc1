"""How much is measured: sizes, lengths and rounds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """What a bench takes its time for.

    - `rounds` and `seconds`: each contender gets so many seconds in each round, or one call.
    - `eager_steps`: of copy-repeat by the eager loop of Algorithm 1; its time for the whole batch follows from them.
    - `units`, `batches`, `lengths`: where the cost of a step is measured.
    - `runs`: trained at once, in the grid.
    - `shrink`: divides the sizes of the tasks. 1, or nothing that is measured says anything; for tests.
    """

    name: str
    rounds: int
    seconds: float
    eager_steps: int
    units: tuple[int, ...]
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    runs: tuple[int, ...]
    shrink: int = 1


FULL = Effort(
    "full",
    rounds=15,
    seconds=0.15,
    eager_steps=28,
    units=(16, 32, 64, 128, 256),
    batches=(1, 4, 16, 64, 256),
    lengths=(100, 1_000, 10_000, 100_000, 1_000_000),
    runs=(1, 2, 4, 8, 16, 32, 64),
)
QUICK = Effort(
    "quick",
    rounds=5,
    seconds=0.1,
    eager_steps=3,
    units=(16, 32, 64, 128),
    batches=(1, 16, 128),
    lengths=(100, 1_000, 10_000),
    runs=(1, 4, 16),
)
