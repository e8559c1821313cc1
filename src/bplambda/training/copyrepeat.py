"""Training on copy-repeat: one compiled program for each level of its curriculum, left at the batch that solves it."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from ..config import Run
from ..tasks import copyrepeat
from ._base import Curves, Learned, Trainer, Varied, begin, learn

SOLVED = 0.15  # bits


class State(NamedTuple):
    """`level`: of the curriculum."""

    learned: Learned
    level: Int[Array, ""]
    key: PRNGKeyArray


@eqx.filter_jit
def start(run: Run, v: Varied, data: None = None) -> State:
    def one(v: Varied) -> State:
        network, key = jax.random.split(jax.random.fold_in(jax.random.key(0), v.seed))
        return State(begin(copyrepeat.network(run.units, key=network)), jnp.array(0), key)

    return jax.vmap(one)(v)


def advance(run: Run, state: State, v: Varied, data: None, epochs: int) -> tuple[State, Curves]:
    """The curves: `error`, in bits, averaged over an epoch; `level`, at its end.

    The runs of a group are soon at different levels, with sequences of different lengths: each trains alone.
    """

    def one(i: int) -> tuple[State, Curves]:
        mine, v_i = jax.tree.map(lambda a: a[i], (state, v))
        return _alone(run, mine, v_i, epochs)

    runs = [one(i) for i in range(len(v.seed))]
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(state for state, _ in runs))
    return states, {name: np.stack([curves[name] for _, curves in runs]) for name in ("error", "level")}


def _alone(run: Run, state: State, v: Varied, epochs: int) -> tuple[State, Curves]:
    batches = epochs * run.batches
    bits, levels = [np.zeros(0)], [np.zeros(0, int)]
    while (left := batches - sum(map(len, bits))) > 0:
        level = int(state.level)
        state, curve, used = _until_solved(run, level, state, v, batches, jnp.array(left))
        bits.append(np.asarray(curve)[: int(used)])
        levels.append(np.full(int(used), level))
        levels[-1][-1] = int(state.level)
    by_epoch = [np.concatenate(parts).reshape(epochs, run.batches) for parts in (bits, levels)]
    return state, {"error": by_epoch[0].mean(axis=1), "level": by_epoch[1][:, -1]}


@eqx.filter_jit
def _until_solved(run: Run, level: int, state: State, v: Varied, most: int, left: Int[Array, ""]):
    """Batches of one level, until one of them solves it or none is left.

    **Returns:** the state, at the next level if it was reached; the bits of each batch; how many there were.
    """
    at = copyrepeat.level(level)

    def unsolved(loop):
        _, bits, used = loop
        last = bits[jnp.maximum(used - 1, 0)]
        return (used < left) & ((used == 0) | (last >= SOLVED))

    def batch(loop):
        state, bits, used = loop
        key, now = jax.random.split(state.key)
        learned, info = learn(run, v, state.learned, copyrepeat.batch(at, run.batch_size, key=now))
        # The loss is the sum over the target steps, so that the gradient of a step is the same at every level.
        return State(learned, state.level, key), bits.at[used].set(info.loss / at.targets / math.log(2)), used + 1

    begin = state, jnp.zeros(most), jnp.array(0)
    state, bits, used = jax.lax.while_loop(unsolved, batch, begin)
    solved = bits[used - 1] < SOLVED
    return state._replace(level=state.level + solved), bits, used


def summary(run: Run, curves: Curves) -> dict[str, Any]:
    level = int(curves["level"][-1])
    return {"error": float(curves["error"][-1]), "level": level, "solved_length": solved_length(level)}


def solved_length(level: int) -> int:
    """The length of the last level that was solved; 0 if none was."""
    return copyrepeat.level(level - 1).length if level else 0


TRAINER = Trainer(
    lambda run: None, start, advance, lambda s: s.learned, summary, chunk=5, together=1, microseconds=1000.0
)
