"""What a step of a stream costs, alone of all that `bplambda bench` measures.

python benchmarks/streaming.py
"""

import sys

from bplambda.bench.cli import Bench

if __name__ == "__main__":
    sys.exit(Bench(groups=["streaming"]).run())
