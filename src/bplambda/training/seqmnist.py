"""Training on sequential MNIST: the images on the device once, all else in one compiled program."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from ..cells import Told, factors
from ..config import Run
from ..data import data_folder, load_mnist
from ..network import Network
from ..synthesiser import ConditionalSynthesiser
from ..tasks import seqmnist
from ._base import Curves, Learned, Trainer, Varied, begin, learn, of_each

VALIDATION = 5  # one training image in so many is held out
CHUNK = 1000  # images that are classified at once


class Digits(NamedTuple):
    """Images with their labels."""

    images: UInt8[Array, "n 28 28"]
    labels: UInt8[Array, " n"]

    def __getitem__(self, which) -> "Digits":  # pyrefly: ignore[bad-override]
        return Digits(self.images[which], self.labels[which])


class Data(NamedTuple):
    train: Digits
    test: Digits


class State(NamedTuple):
    """`order`: of the training images; the last of them are for validation."""

    learned: Learned
    order: Int[Array, " n"]
    key: PRNGKeyArray


def data(run: Run) -> Data:
    """The images, from the folder that BPLAMBDA_DATA names, or from the user's own."""
    found = load_mnist(data_folder(), checksum=run.data == "mnist")
    if found.name != run.data:
        raise ValueError(f"The images in {data_folder()} are not those of this run: {found.name}, not {run.data}.")
    if run.batches > batches(len(found.train_labels), run.batch_size):
        raise ValueError(f"{len(found.train_labels)} images do not make {run.batches} batches of {run.batch_size}.")
    pairs = (found.train_images, found.train_labels), (found.test_images, found.test_labels)
    return Data(*(Digits(jnp.asarray(images), jnp.asarray(labels)) for images, labels in pairs))


def batches(images: int, batch_size: int) -> int:
    """The batches in an epoch, of the images that are not held out."""
    return (images - images // VALIDATION) // batch_size


@eqx.filter_jit
def start(run: Run, v: Varied, data: Data) -> State:
    def one(v: Varied) -> State:
        network, order, key = jax.random.split(jax.random.fold_in(jax.random.key(0), v.seed), 3)
        plain = seqmnist.network(run.units, run.length, key=network)
        learned = begin(plain)
        if run.synthesiser == "conditional":
            told = seqmnist.told(plain)
            conditions = seqmnist.CLASSES * run.length
            learned = begin(told, ConditionalSynthesiser(told.state_size, conditions, matrices=seqmnist.CLASSES))
        return State(learned, jax.random.permutation(order, len(data.train.labels)), key)

    return jax.vmap(one)(v)


def advance(run: Run, state: State, v: Varied, data: Data, epochs: int) -> tuple[State, Curves]:
    """The curves: `loss`, in training; `error`, the share of validation images that are wrong; `test_error`."""
    state, curves = _advance(run, state, v, data, epochs)
    return state, {name: np.asarray(c) for name, c in zip(("loss", "error", "test_error"), curves, strict=True)}


@eqx.filter_jit
def _advance(run: Run, state: State, v: Varied, data: Data, epochs: int):
    return of_each(lambda s, v: jax.lax.scan(lambda s, _: _epoch(run, v, data, s), s, length=epochs), state, v)


def _epoch(run: Run, v: Varied, data: Data, state: State):
    key, now = jax.random.split(state.key)
    held_out = len(state.order) // VALIDATION
    shuffled = jax.random.permutation(now, state.order[:-held_out])
    batches = shuffled[: run.batches * run.batch_size].reshape(run.batches, run.batch_size)

    def batch(learned: Learned, which):
        digits = data.train[which]
        xs, ys, weights = seqmnist.batch(*digits, run.length)
        if run.synthesiser == "conditional":
            xs = xs, seqmnist.hints(digits.labels, run.length)
        learned, info = learn(run, v, learned, (xs, ys, weights))
        return learned, info.loss

    learned, losses = jax.lax.scan(batch, state.learned, batches)
    error = _error(learned.network, data.train[state.order[-held_out:]], run.length)
    return State(learned, state.order, key), (jnp.mean(losses), error, _error(learned.network, data.test, run.length))


def _error(network: Network, digits: Digits, length: int) -> Float[Array, ""]:
    """The share of images that are classified wrongly. Nobody is told anything."""
    is_told, parts = isinstance(network.cell, Told), factors(network.cell)
    assert parts is not None  # it is an LSTM

    def wrong(digit: Digits):
        def step(state, x):
            return parts.step(network.cell, (x, jnp.zeros(1)) if is_told else x, state), None

        xs = seqmnist.pieces(digit.images[None], length)[:, 0]
        state, _ = jax.lax.scan(step, network.zero_state(), xs)
        return jnp.argmax(network.readout(network.output(state))) != digit.labels

    return jnp.mean(jax.lax.map(wrong, digits, batch_size=min(CHUNK, len(digits.labels))).astype(float))


def summary(run: Run, curves: Curves) -> dict[str, Any]:
    best = int(np.argmin(curves["error"]))
    return {
        "error": float(curves["error"][best]),
        "best_epoch": best + 1,
        "validation_accuracy": 100 * (1 - float(curves["error"][best])),
        "test_accuracy": 100 * (1 - float(curves["test_error"][best])),
    }


TRAINER = Trainer(data, start, advance, lambda s: s.learned, summary, chunk=1, together=5, microseconds=100.0)
