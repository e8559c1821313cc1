"""The gradient of one training batch alone, of all that `bplambda bench` measures.

python benchmarks/gradient.py
"""

import sys

import tyro

from bplambda.bench.cli import Bench

if __name__ == "__main__":
    sys.exit(tyro.cli(Bench, default=Bench(groups=["gradient"]), description=__doc__).run())
