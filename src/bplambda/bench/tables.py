"""The numbers of a bench as tables in Markdown, and a page that has them."""

import re
from collections.abc import Callable, Iterable

from .beyond import COSTS, duration, parameters, size
from .measure import Row
from .problems import TASKS
from .scaling import WINDOWS
from .streaming import LEARNERS

Found = dict[str, Row]


def filled(page: str, rows: Iterable[Row]) -> str:
    """The page with each table, between `<!-- name -->` and `<!-- /name -->`, made anew from the rows."""
    found = {row.name: row for row in rows}
    for name, make in TABLES.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        table = make(found)
        page = re.sub(pattern, lambda m, table=table: m[1] + table + m[2], page, flags=re.DOTALL)
    return page


def _table(head: list[str], lines: Iterable[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _number(value: float | None) -> str:
    """Three digits; whole from a hundred on."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _value(found: Found, name: str) -> str:
    return _number(found[name].value) if name in found else "-"


def _ratio(found: Found, name: str) -> str:
    return f"{_number(found[name].ratio)} ×" if name in found else "-"


def gradient(found: Found) -> str:
    """One row a task; two-core figures after the stroke."""
    head = ["", "BP(1), ms", "against `jax.grad`", "against PyTorch", "against eager Algorithm 1", "of the floor"]

    def both(form: Callable[[Found, str], str], rest: str) -> str:
        return " / ".join(form(found, f"{group}/{rest}") for group in ("gradient", "gradient-2cores"))

    def line(task: str) -> list[str]:
        names = (f"{task}/vs-jax-bptt", f"{task}/vs-torch-lstm", f"{task}/vs-eager-algorithm1")
        percent = f"{_value(found, f'floor/{task}')} %"
        return [task, both(_value, names[0]), *(both(_ratio, name) for name in names), percent]

    return _table(head, (line(task) for task in TASKS))


def beside(found: Found) -> str:
    head = ["against `jax.grad`", "BP(1), known cell", "BP(1), unknown cell", "unknown and nested", "our `BPTT()`"]
    kinds = ("gradient", "gradient-any-cell", "gradient-nested-cell", "gradient-bptt")
    return _table(head, ([task, *(_ratio(found, f"{k}/{task}/vs-jax-bptt") for k in kinds)] for task in TASKS))


def _by(what: str, letter: str, label: str) -> Callable[[Found], str]:
    """µs per step by a size, and the exponents."""

    def table(found: Found) -> str:
        sizes = sorted(int(m[1]) for name in found if (m := re.fullmatch(rf"{what}/{letter}(\d+)/K=1", name)))
        lines = [[str(at), *(_value(found, f"{what}/{letter}{at}/{kind}") for kind in WINDOWS)] for at in sizes]
        fitted = ["fitted exponent", *(_value(found, f"{what}/exponent/{kind}") for kind in WINDOWS)]
        return _table([label, *WINDOWS], [*lines, fitted])

    return table


def length(found: Found) -> str:
    lengths = sorted(int(m[1]) for name in found if (m := re.fullmatch(r"length/T(\d+)", name)))

    def line(at: int) -> list[str]:
        row = found[f"length/T{at}"]
        return [f"{at:,}", _number(row.value), _number(row.config["resident_mb"])]

    return _table(["steps so far", "µs per step", "memory, MB"], (line(at) for at in lengths))


def grid(found: Found) -> str:
    names = [re.fullmatch(r"grid/(\d+)-processes/(\d+)-runs", name) for name in found]
    keys = [(int(m[1]), int(m[2])) for m in names if m]
    processes, runs = sorted({p for p, _ in keys}), sorted({r for _, r in keys})
    head = ["runs in each process", *(f"{p} process{'es' if p > 1 else ''}" for p in processes)]
    return _table(head, ([str(r), *(_value(found, f"grid/{p}-processes/{r}-runs") for p in processes)] for r in runs))


def streaming(found: Found) -> str:
    head = ["µs per step", "inside `run`", "`step` from Python", "difference"]
    names = [name for name in LEARNERS if f"streaming/{name}/run" in found]
    kinds = ("run", "step", "dispatch")
    return _table(head, ([name, *(_value(found, f"streaming/{name}/{kind}") for kind in kinds)] for name in names))


def others(found: Found) -> str:
    """Everything that is one number."""
    shown = {
        "trace/lstm100-batch16/vs-gemm": "exact trace at K = 1, LSTM 100, batch 16: Algorithm 1's operations a second, "
        "percent of the large-GEMM rate",
        "streaming/update-every-1/vs-moved-at-every-step": "an update at every step against one that moves its trace, "
        "as Algorithm 1 is written",
        "streaming/update-every-64/vs-moved-at-every-step": "an update every 64 steps against the same",
        "streaming/update-every-64/vs-update-every-1": "an update every 64 steps against one at every step",
        "streaming/run/vs-braintrace-d-rtrl": "BP(1) inside `run` against braintrace's D_RTRL",
        "streaming/step/vs-braintrace-d-rtrl": "BP(1) called from Python against braintrace's D_RTRL",
        "start/import/vs-jax-equinox-optax": "`import bplambda` against `import jax, equinox, optax`",
        "start/train-toy/cold": "`bplambda train toy` to its first progress, nothing compiled before",
        "start/train-toy/warm": "the same, with the compiled programs of the first time",
    }
    rows = [(label, found[name]) for name, label in shown.items() if name in found]
    lines = ([label, f"{_number(row.value)} {row.unit}", _number(row.ratio)] for label, row in rows)
    return _table(["", "ours", "times faster"], lines)


def beyond(found: Found) -> str:
    """On paper, at the rate of large products that was measured."""
    rate = 1e9 * found["trace/lstm100-batch16/vs-gemm"].config["gemm_gflop_per_s"]

    def line(units: int) -> list[str]:
        costs = [f"{duration(c.flop(units) / rate)}, {size(c.floats(units))}" for c in COSTS.values()]
        return [f"{units:,}", size(parameters(units)), *costs]

    return _table(["units", "parameters", *COSTS], (line(10**n) for n in (2, 3, 4, 5)))


def checked(found: Found) -> str:
    """What a step took, by what it would take on paper."""
    rate = 1e9 * found["trace/lstm100-batch16/vs-gemm"].config["gemm_gflop_per_s"]
    sizes = sorted(int(m[1]) for name in found if (m := re.fullmatch(r"size/h(\d+)/K=1", name)))

    def cell(units: int, kind: str) -> str:
        return f"{1e-6 * found[f'size/h{units}/{kind}'].value * rate / COSTS[kind].flop(units):.1f} ×"

    return _table(["units", *COSTS], ([str(units), *(cell(units, kind) for kind in COSTS)] for units in sizes[-3:]))


TABLES: dict[str, Callable[[Found], str]] = {
    "gradient": gradient,
    "beside": beside,
    "size": _by("size", "h", "µs per step, units"),
    "batch": _by("batch", "B", "µs per step, batch"),
    "length": length,
    "grid": grid,
    "streaming": streaming,
    "others": others,
    "beyond": beyond,
    "checked": checked,
}
