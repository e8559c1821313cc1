"""What a step of a stream costs, alone of all that `bplambda bench` measures.

python benchmarks/streaming.py
"""

import sys

import tyro

from bplambda.bench.cli import Bench

if __name__ == "__main__":
    sys.exit(tyro.cli(Bench, default=Bench(groups=["streaming"]), description=__doc__).run())
