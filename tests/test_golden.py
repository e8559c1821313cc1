"""BPTT and truncated BPTT against PyTorch's autograd (data/make_golden.py) and finite differences."""

from functools import partial
from operator import attrgetter
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jrandom
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import bplambda as bp

CELLS = {
    "rnn": partial(bp.RNNCell, activation="tanh"),
    "rnn_linear": partial(bp.RNNCell, activation="linear"),
    "rnn_relu": partial(bp.RNNCell, activation="relu"),
    "gru": eqx.nn.GRUCell,
    "lstm": eqx.nn.LSTMCell,
}
RULES = {
    "bptt": bp.BPTT(),
    "tbptt1": bp.TruncatedBPTT(1),
    "tbptt2": bp.TruncatedBPTT(2),
    "tbptt3": bp.TruncatedBPTT(3),
}
CASES = [(cell, "squared_error") for cell in CELLS]
CASES += [("lstm", "softmax_cross_entropy"), ("lstm", "sigmoid_cross_entropy")]


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parent / "data" / "golden.npz", allow_pickle=False) as file:
        return dict(file)


def part(golden, prefix):
    """All that the file has under `prefix`, by the rest of its name."""
    return {key.removeprefix(prefix): value for key, value in golden.items() if key.startswith(prefix)}


def make_network(golden, cell, loss):
    arrays = part(golden, f"{cell}/{loss}/parameters/")
    outputs, hidden_size = arrays["readout.weight"].shape
    _, input_size = arrays["cell.weight_ih"].shape
    key1, key2 = jrandom.split(jrandom.key(0))
    network = bp.Network(
        CELLS[cell](input_size, hidden_size, key=key1),
        eqx.nn.Linear(hidden_size, outputs, key=key2),
        getattr(bp.losses, loss),
    )
    return eqx.tree_at(attrgetter(*arrays), network, tuple(map(jnp.asarray, arrays.values())))


def make_data(golden, loss):
    return jnp.asarray(golden["xs"]), jnp.asarray(golden[f"ys/{loss}"]), jnp.asarray(golden["weights"])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("cell", "loss"), CASES)
def test_agrees_with_pytorch(golden, cell, loss, rule):
    network = make_network(golden, cell, loss)
    gradients, info = bp.sequence_gradients(network, None, RULES[rule], *make_data(golden, loss))
    leaves = jax.tree_util.tree_leaves_with_path(gradients.network)
    found = {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves} | {"loss": info.loss}
    expected = part(golden, f"{cell}/{loss}/{rule}/")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == jnp.float64
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


def total_loss(network, xs, ys, weights):
    """The loss of whole sequences in plain Python, one step at a time."""
    state, total = network.zero_state(xs.shape[1]), 0.0
    for x, y, weight in zip(xs, ys, weights, strict=True):
        state = jax.vmap(network.cell)(x, state)
        predictions = jax.vmap(network.readout)(network.output(state))
        total += weight * jnp.mean(jax.vmap(network.loss)(predictions, y))
    return total


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_agrees_with_finite_differences(golden, cell):
    network, data = make_network(golden, cell, "squared_error"), make_data(golden, "squared_error")
    gradients, _ = bp.sequence_gradients(network, None, bp.BPTT(), *data)
    found, _ = ravel_pytree(gradients.network)
    parameters, static = eqx.partition(network, eqx.is_inexact_array)
    vector, rebuild = ravel_pytree(parameters)

    @jax.jit
    @jax.vmap
    def loss_at(vector):
        return total_loss(eqx.combine(rebuild(vector), static), *data)

    eps = 1e-6
    shifts = eps * jnp.eye(vector.size)
    expected = (loss_at(vector[None] + shifts) - loss_at(vector[None] - shifts)) / (2 * eps)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=5e-8)
