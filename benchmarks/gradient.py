"""The gradient of one training batch alone, of all that `bplambda bench` measures.

python benchmarks/gradient.py
"""

import sys

from bplambda.bench.cli import Bench

if __name__ == "__main__":
    sys.exit(Bench(groups=["gradient"]).run())
