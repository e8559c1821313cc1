"""The command `bplambda bench`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from tyro.conf import Positional, arg

GroupName = Literal[
    "gradient", "gradient-2cores", "floor", "size", "batch", "trace", "length", "grid", "streaming", "start"
]


@dataclass
class Bench:
    """Measure how fast we are, against what you would use instead, and draw it.

    Against BPTT by jax.grad and by PyTorch, Algorithm 1 as a PyTorch loop, braintrace, and the bare products; all in
    one run, in turn, as ratios. Writes bench.json and plots. Without groups: all of them, in about twenty minutes.

    Example: bplambda bench --quick --out bench
    """

    groups: Positional[list[GroupName]] = field(default_factory=list)
    quick: Annotated[bool, arg(help="Fewer rounds and smaller ranges: under 8 minutes.")] = False
    out: Annotated[Path, arg(help="Folder for bench.json and the plots.")] = Path("bench")

    def run(self) -> int:
        from ..options import made
        from .command import bench
        from .effort import FULL, QUICK

        groups = list(dict.fromkeys(self.groups or get_args(GroupName)))
        return bench(groups, QUICK if self.quick else FULL, made(self.out))
