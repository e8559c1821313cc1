"""How near the gradient of a batch is to its floor, and what it costs without knowing the cell."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..rules.bplambda import BPLambda
from ..rules.bptt import BPTT
from .baselines.floor import floor, flops
from .baselines.jax_bptt import jax_bptt
from .effort import Effort
from .gradient import NUMBERS, compared, ours, settings, whole
from .measure import Now, Row, in_turn
from .problems import TASKS, problem
from .programs import program


class AnyCell(eqx.Module):
    """A cell that the library knows nothing about."""

    cell: Any
    input_size: int = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)

    def __call__(self, x, state):
        return self.cell(x, state)


class NestedCell(AnyCell):
    """The same, with weights that meet what weights have made: each unit has a gain."""

    gain: Array

    def __call__(self, x, state):
        return jax.tree.map(lambda s: self.gain * s, self.cell(x, state))


def limits(effort: Effort) -> Iterator[Row | Now]:
    """BP(1) in percent of the floor; and against `jax.grad`: BP(1) for cells that are not known, BPTT as our rule."""
    for task, sizes in TASKS.items():
        yield Now(f"floor/{task}")
        sizes = sizes.shrunk(effort.shrink)
        p = problem(sizes)
        data = p.xs, p.ys, p.weights
        known = p.network.cell, sizes.inputs, sizes.units
        unknown = {"any-cell": AnyCell(*known), "nested-cell": NestedCell(*known, jnp.ones(sizes.units))}
        networks = {name: eqx.tree_at(lambda n: n.cell, p.network, cell) for name, cell in unknown.items()}
        beside = {
            **{name: program(whole, n, p.synthesiser, BPLambda(**NUMBERS), *data) for name, n in networks.items()},
            "nested-jax": program(jax_bptt, networks["nested-cell"], *data),
            "bptt": program(whole, p.network, None, BPTT(), *data),
            "floor": floor(sizes),
        }
        times, config = in_turn(ours(p) | beside, effort), settings(sizes, effort)
        row = compared(f"floor/{task}", times, "ours", "floor", config | {"mflop": flops(sizes) / 1e6})
        yield row._replace(
            value=100 * (row.ratio or 0.0), unit="percent of floor", config=row.config | {"ms": row.value}
        )
        for contender, baseline in {"any-cell": "jax-bptt", "nested-cell": "nested-jax", "bptt": "jax-bptt"}.items():
            row = compared(f"gradient-{contender}/{task}/vs-jax-bptt", times, contender, baseline, config)
            yield row._replace(baseline="jax-bptt")  # of the same network
