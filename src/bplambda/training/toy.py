"""Training on the toy task: all seeds and all hyper-parameters of a grid in one compiled program."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..alignment import cosines
from ..config import Run
from ..tasks import toy
from ._base import Curves, Learned, Trainer, Varied, begin, learn, of_each

SOLVED, LAST = 0.025, 20  # the paper's criterion: error below this, averaged over the last epochs
MEASURE_EVERY = 10  # batches between two measurements of the alignment


class State(NamedTuple):
    learned: Learned
    task: toy.Toy
    key: PRNGKeyArray


@eqx.filter_jit
def start(run: Run, v: Varied, data: None = None) -> State:
    def one(v: Varied) -> State:
        network_key, key = jax.random.split(jax.random.fold_in(jax.random.key(0), v.seed))
        fixed = run.variant == "fixed"
        network = toy.network(run.units, "linear" if fixed else "tanh", key=network_key)
        return State(begin(network), toy.Toy(1 if fixed else 3, run.length, run.batch_size), key)

    return jax.vmap(one)(v)


def advance(run: Run, state: State, v: Varied, data: None, epochs: int) -> tuple[State, Curves]:
    """The curves: `error`, the squared distance to the target, averaged over batch and epoch; `alignment`, the cosine
    between the synthetic and the true gradient ∂L_{>t}/∂s_t, at s_1 … s_{T−1}."""
    state, (error, alignment) = _advance(run, state, v, epochs)
    return state, {"error": np.asarray(error), "alignment": np.asarray(alignment)}


@eqx.filter_jit
def _advance(run: Run, state: State, v: Varied, epochs: int):
    return of_each(lambda s, v: jax.lax.scan(lambda s, _: _epoch(run, v, s), s, length=epochs), state, v)


def _epoch(run: Run, v: Varied, state: State):
    """The batches of an epoch, the alignment measured at the first of every few."""
    size = MEASURE_EVERY if run.batches % MEASURE_EVERY == 0 else run.batches

    def block(state: State, _):
        batch = state.task.batch(jax.random.fold_in(state.key, 1))
        alignment = jnp.zeros(run.length - 1)
        if run.has_synthesiser:
            alignment = cosines(state.learned.network, state.learned.synthesiser, *batch)
        state, errors = jax.lax.scan(lambda s, _: _batch(run, v, s), state, length=size)
        return state, (jnp.mean(errors), alignment)

    state, curves = jax.lax.scan(block, state, length=run.batches // size)
    return state, jax.tree.map(lambda m: jnp.mean(m, axis=0), curves)


def _batch(run: Run, v: Varied, state: State) -> tuple[State, Float[Array, ""]]:
    key, now = jax.random.split(state.key)
    learned, info = learn(run, v, state.learned, state.task.batch(now))
    return State(learned, state.task, key), toy.OUTPUTS * info.loss


def summary(run: Run, curves: Curves) -> dict[str, Any]:
    error = float(np.mean(curves["error"][-LAST:]))
    late = curves["alignment"][-max(1, run.epochs // 10) :]
    return {"error": error, "solved": error < SOLVED, "alignment": float(np.mean(late)) if run.length > 1 else 0.0}


TRAINER = Trainer(
    lambda run: None, start, advance, lambda s: s.learned, summary, chunk=5, together=32, microseconds=7.0
)
