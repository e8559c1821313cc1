"""Puts the numbers of results/bench/bench.json into docs/performance.md, and their plots beside it.

bplambda bench --out results/bench && python benchmarks/performance_page.py
"""

from pathlib import Path

from bplambda.bench.command import load
from bplambda.bench.plots import draw
from bplambda.bench.tables import filled

ROOT = Path(__file__).parents[1]


def main() -> None:
    rows = [row for found in load(ROOT / "results" / "bench").values() for row in found]
    page = ROOT / "docs" / "performance.md"
    page.write_text(filled(page.read_text(), rows))
    (ROOT / "docs" / "bench").mkdir(exist_ok=True)
    draw(rows, ROOT / "docs" / "bench")


if __name__ == "__main__":
    main()
