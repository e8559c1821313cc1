"""Sequence training: all seeds and all hyper-parameters of a grid in one compiled program."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from .config import Run
from .network import Network
from .rules._base import Rule
from .rules.bplambda import BPLambda
from .rules.bptt import BPTT, TruncatedBPTT
from .rules.nstep import NStepSG
from .sequence import sequence_gradients
from .synthesiser import LinearSynthesiser
from .tasks import toy
from .unroll import unroll

CHUNK = 5  # epochs between two looks at the progress, and between two checkpoints
MEASURE_EVERY = 10  # batches between two measurements of the alignment


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


class State(NamedTuple):
    """All of a run: what it has learned, its optimiser, its task, its random key."""

    network: Network
    synthesiser: LinearSynthesiser
    optimiser: optax.OptState
    task: toy.Toy
    key: PRNGKeyArray


class Metrics(NamedTuple):
    """Curves of a run, by epoch.

    - `error`: the loss of a sequence, averaged over batch and epoch.
    - `alignment`: the cosine between the synthetic and the true gradient ∂L_{>t}/∂s_t, at s_1 … s_{T−1}.
    """

    error: Any  # [epochs]
    alignment: Any  # [epochs, T − 1]


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


@eqx.filter_jit
def start(run: Run, v: Varied) -> State:
    """The initial states of a group, stacked; `run` is any of its members."""

    def one(v: Varied) -> State:
        key = jax.random.fold_in(jax.random.key(0), v.seed)
        task_key, network_key, key = jax.random.split(key, 3)
        fixed = run.variant == "fixed"
        task = toy.Toy(1 if fixed else 3, run.length, run.batch_size, key=task_key)
        network = toy.network(run.units, "linear" if fixed else "tanh", key=network_key)
        synthesiser = LinearSynthesiser(network.state_size)
        return State(network, synthesiser, _ADAM.init(_parts(network, synthesiser)), task, key)

    return jax.vmap(one)(v)


@eqx.filter_jit
def advance(run: Run, state: State, v: Varied, epochs: int) -> tuple[State, Metrics]:
    """Some epochs of every run of a group; `run` is any of its members."""
    return jax.vmap(lambda state, v: jax.lax.scan(lambda s, _: _epoch(run, v, s), state, length=epochs))(state, v)


def _epoch(run: Run, v: Varied, state: State) -> tuple[State, Metrics]:
    """The batches of an epoch, the alignment measured at the first of every few."""
    size = MEASURE_EVERY if run.batches % MEASURE_EVERY == 0 else run.batches

    def block(state: State, _):
        xs, ys, weights = state.task.batch(jax.random.fold_in(state.key, 1))
        alignment = jnp.zeros(run.length - 1)
        if run.rule in ("bplambda", "nstep"):
            alignment = align(state.network, state.synthesiser, xs, ys, weights)
        state, errors = jax.lax.scan(lambda s, _: _batch(run, v, s), state, length=size)
        return state, Metrics(jnp.mean(errors), alignment)

    state, metrics = jax.lax.scan(block, state, length=run.batches // size)
    return state, jax.tree.map(lambda m: jnp.mean(m, axis=0), metrics)


def _batch(run: Run, v: Varied, state: State) -> tuple[State, Float[Array, ""]]:
    """One batch: gradients added up over the sequence, one optimiser step at its end."""
    key, now = jax.random.split(state.key)
    modules = state.network, state.synthesiser
    gradients, info = sequence_gradients(*modules, _RULES[run.rule](v), *state.task.batch(now))
    directions, optimiser = _ADAM.update(_parts(*gradients), state.optimiser)
    plastic = run.variant == "plastic"
    rates = Parts(v.network_rate if plastic else 0.0, v.readout_rate if plastic else 0.0, v.synthesiser_rate)
    new = jax.tree.map(
        lambda rate, part, step: jax.tree.map(lambda p, d: p - rate * d, part, step),
        rates,
        _parts(*modules),
        directions,
    )
    network = eqx.tree_at(lambda n: (n.cell, n.readout), state.network, (new.cell, new.readout))
    return State(network, new.synthesiser, optimiser, state.task, key), info.loss


class Parts(NamedTuple):
    """What has a learning rate of its own."""

    cell: Any
    readout: Any
    synthesiser: Any


def _parts(network: Any, synthesiser: Any) -> Any:
    return Parts(network.cell, network.readout, synthesiser)


def align(network: Network, synthesiser, xs, ys, weights) -> Float[Array, " T-1"]:
    """The cosine between g(s_t; θ) and the true ∂L_{>t}/∂s_t at s_1 … s_{T−1}, averaged over the batch."""
    unrolled = unroll(network, network.zero_state(xs.shape[1]), xs, ys, weights)
    true = unrolled.back(unrolled.loss_gradients, jnp.ones(()))[1:]
    synthetic = jax.vmap(jax.vmap(synthesiser))(unrolled.states[1:-1])
    return jnp.mean(optax.cosine_similarity(synthetic, true, epsilon=1e-30), axis=1)
