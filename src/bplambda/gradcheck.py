"""Does it really get the gradient? Any rule against full BPTT, parameter by parameter."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from .network import Network
from .rules._base import Rule, require_network, require_rule
from .rules.bptt import BPTT
from .sequence import sequence_gradients
from .synthesiser import LinearSynthesiser


class Row(NamedTuple):
    """One parameter array: the rule's gradient against the true one.

    - `cosine`: of the angle between the two: 1 is the true direction, 0 is no help, negative is uphill.
    - `relative_norm`: the rule's norm over the true one: 1 is the true length.
    - `missing`: whether the rule's gradient is exactly zero where the true one is not.
    - `silent`: whether both are, as those of a constant; cosine and relative norm then count as 1.
    """

    name: str
    shape: tuple[int, ...]
    cosine: float
    relative_norm: float
    missing: bool
    silent: bool


class GradCheck(NamedTuple):
    """The gradient check of a rule: `rows`, one for each parameter array. Print it to read it."""

    rule: str
    rows: tuple[Row, ...]
    untrained: bool

    @property
    def worst(self) -> Row:
        """The parameter whose gradient points furthest from the true one."""
        return min(self.rows, key=lambda row: row.cosine if np.isfinite(row.cosine) else -np.inf)

    @property
    def missing(self) -> tuple[str, ...]:
        """The parameters that get exactly zero gradient where BPTT gives them one."""
        return tuple(row.name for row in self.rows if row.missing)

    def __str__(self) -> str:
        table = Table(title=f"{self.rule} against full BPTT", title_justify="left")
        table.add_column("parameter")
        table.add_column("shape")
        for name in ("cosine", "relative norm"):
            table.add_column(name, justify="right")
        table.add_column("")
        for row in self.rows:
            verdict = "no gradient!" if row.missing else "no gradient, rightly" if row.silent else _bar(row.cosine)
            table.add_row(
                row.name,
                "×".join(map(str, row.shape)),
                f"{row.cosine:.4f}",
                f"{row.relative_norm:.4f}",
                verdict,
            )
        console = Console(width=100, color_system=None)
        with console.capture() as capture:
            console.print(table)
        lines = [capture.get().rstrip(), f"worst: {self.worst.name}, cosine {self.worst.cosine:.4f}"]
        if self.missing:
            lines.append(f"exactly zero where BPTT is not: {', '.join(self.missing)}")
        if self.untrained:
            lines.append("The synthesiser is untrained (it predicts zero): pass the one that you train.")
        return "\n".join(lines)

    __repr__ = __str__


def gradcheck(
    network: Network, rule: Rule, xs, ys, synthesiser: Any = None, weights=None, window: int | None = None
) -> GradCheck:
    """Compares a rule's gradient with that of full BPTT, for every parameter array of the network.

    **Arguments:**

    - `network`, `rule`; `xs`, `ys`, `weights`, `window` as for `sequence_gradients`.
    - `synthesiser`: the one to ask; if left out, an untrained linear one, which predicts zero.

    **Returns:** a `GradCheck`; print it for a table.

    !!! example

        ```python
        print(bp.gradcheck(network, bp.BPLambda(lam=1.0), xs, ys, synthesiser))
        ```
    """
    require_rule(rule)
    require_network(network)
    untrained = synthesiser is None and rule.needs_synthesiser
    if untrained:
        synthesiser = LinearSynthesiser(network.state_size, network.dtype)
    found, _ = sequence_gradients(network, synthesiser, rule, xs, ys, weights, window)
    true, _ = sequence_gradients(network, None, BPTT(), xs, ys, weights)
    pairs = zip(jax.tree_util.tree_leaves_with_path(found.network), jax.tree.leaves(true.network), strict=True)
    return GradCheck(_name(rule), tuple(_row(path, a, b) for (path, a), b in pairs), untrained)


def _row(path, found, true) -> Row:
    a, b = np.asarray(found, np.float64), np.asarray(true, np.float64)
    norm_a, norm_b = np.linalg.norm(a), np.linalg.norm(b)
    missing, silent = bool(norm_a == 0 and norm_b > 0), bool(norm_a == norm_b == 0)
    if silent:
        cosine = relative = 1.0
    elif norm_a == 0 or norm_b == 0:
        cosine, relative = 0.0, 0.0 if missing else float("inf")
    else:
        cosine, relative = float(np.sum(a / norm_a * (b / norm_b))), float(norm_a / norm_b)
    return Row(jax.tree_util.keystr(path).lstrip("."), a.shape, cosine, relative, missing, silent)


def _name(rule: Rule) -> str:
    """`BPLambda(lam=1.0, gamma=0.9, scale=1.0)`, whatever the arrays inside."""
    values = {k: v for k, v in vars(rule).items() if not k.startswith("_")}

    def shown(v: Any) -> str:
        return _name(v) if isinstance(v, Rule) else f"{float(v):g}" if eqx.is_array(v) else str(v)

    return f"{type(rule).__name__}({', '.join(f'{k}={shown(v)}' for k, v in values.items())})"


def _bar(cosine: float) -> str:
    if not np.isfinite(cosine):
        return "not finite!"
    return "█" * round(20 * cosine) if cosine >= 0 else "uphill"
