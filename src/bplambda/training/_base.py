"""What every task's training shares: the hyper-parameters under a `vmap`, the optimiser, one step of learning."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..config import Run
from ..network import Network
from ..rules._base import Info, Rule
from ..rules.bplambda import BPLambda
from ..rules.bptt import BPTT, TruncatedBPTT
from ..rules.nstep import NStepSG
from ..rules.parallel import DataParallel
from ..sequence import sequence_gradients
from ..synthesiser import ConditionalSynthesiser, LinearSynthesiser

Curves = dict[str, np.ndarray]  # each [runs, epochs, ...]


class Varied(NamedTuple):
    """What may differ between the runs of one program, as arrays."""

    seed: Any
    lam: Any
    n: Any
    gamma: Any
    scale: Any
    network_rate: Any
    readout_rate: Any
    synthesiser_rate: Any


class Learned(NamedTuple):
    """All that learning changes."""

    network: Network
    synthesiser: LinearSynthesiser | ConditionalSynthesiser
    optimiser: Any  # the state of `_ADAM`


class Parts(NamedTuple):
    """What has a learning rate of its own."""

    cell: Any
    readout: Any
    synthesiser: Any


class Trainer(NamedTuple):
    """How a task is trained, a group of runs at a time; the first axis of all arrays is the run.

    - `data(run)`: what is loaded once, or `None`.
    - `start(run, v, data)`: the initial states.
    - `advance(run, state, v, data, epochs)`: some epochs later; and the curves meanwhile, one of them `"error"`.
    - `learned(state)`: what has been learned so far.
    - `summary(run, curves)`: the final figures of one run.
    - `chunk`: epochs between two looks at the progress, and between two checkpoints.
    - `together`: the most runs that are faster in one program than apart.
    - `microseconds`: per run and time-step on one core, before anything has been measured.
    """

    data: Callable[[Run], Any]
    start: Callable[[Run, Varied, Any], Any]
    advance: Callable[[Run, Any, Varied, Any, int], tuple[Any, Curves]]
    learned: Callable[[Any], Learned]
    summary: Callable[[Run, Curves], dict[str, Any]]
    chunk: int
    together: int
    microseconds: float


# The authors' configuration.
_ADAM = optax.scale_by_adam(b1=0.9, b2=0.98, eps=1e-9)

_RULES: dict[str, Callable[[Varied], Rule]] = {
    "bplambda": lambda v: BPLambda(v.lam, v.gamma, v.scale),
    "nstep": lambda v: NStepSG(v.n, v.gamma, v.scale),
    "truncated": lambda v: TruncatedBPTT(v.n),
    "bptt": lambda v: BPTT(),
}


def varied(runs: list[Run]) -> Varied:
    """The hyper-parameters of the runs of a group, stacked."""
    return Varied(*(jnp.asarray([getattr(run, name) for run in runs]) for name in Varied._fields))


def of_each(function: Callable, *stacked: Any) -> Any:
    """A function of each run, the first axis of all arrays, in one program. One run alone needs no such axis, and is a
    quarter faster without."""
    if len(jax.tree.leaves(stacked)[0]) > 1:
        return jax.vmap(function)(*stacked)
    return jax.tree.map(lambda a: a[None], function(*jax.tree.map(lambda a: a[0], stacked)))


def begin(network: Network, synthesiser: Any = None) -> Learned:
    """A network before its first step, with a synthesiser that is zero, linear if left out."""
    synthesiser = LinearSynthesiser(network.state_size) if synthesiser is None else synthesiser
    return Learned(network, synthesiser, _ADAM.init(_parts(network, synthesiser)))


def learn(run: Run, v: Varied, learned: Learned, batch: tuple[Any, Any, Any]) -> tuple[Learned, Info]:
    """One batch `(xs, ys, weights)`: gradients added up over the sequence, one optimiser step at its end."""
    modules = learned.network, learned.synthesiser
    rule = _RULES[run.rule](v)
    rule = rule if run.devices == 1 else DataParallel(rule, run.devices)
    gradients, info = sequence_gradients(*modules, rule, *batch)
    # In the paper a synthesiser predicts a sample's share in the *batch's* mean loss, a B-th of what ours predicts: in
    # the paper's units, which Adam's ε is in, its gradient is a B-th of ours; in our units, its steps are B times that.
    directions, optimiser = _ADAM.update(
        _parts(gradients.network, jax.tree.map(lambda d: d / run.batch_size, gradients.synthesiser)), learned.optimiser
    )
    rates = Parts(v.network_rate, v.readout_rate, run.batch_size * v.synthesiser_rate)
    if run.variant == "fixed":
        rates = rates._replace(cell=0.0, readout=0.0)
    if run.schedule == "cosine":
        part = learned.optimiser.count / (run.epochs * run.batches)
        rates = jax.tree.map(lambda rate: rate * (1 + jnp.cos(jnp.pi * part)) / 2, rates)
    new = jax.tree.map(
        lambda rate, part, step: jax.tree.map(lambda p, d: p - rate * d, part, step),
        rates,
        _parts(*modules),
        directions,
    )
    network = eqx.tree_at(lambda n: (n.cell, n.readout), learned.network, (new.cell, new.readout))
    return Learned(network, new.synthesiser, optimiser), info


def _parts(network: Any, synthesiser: Any) -> Any:
    return Parts(network.cell, network.readout, synthesiser)
