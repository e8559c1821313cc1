"""Wrong input gets a ValueError that names the argument, its value and what is allowed, before anything is compiled."""

from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bplambda as bp
from bplambda.verify.problems import problem

P = problem(1, "gru")
XS, YS, WEIGHTS = P.xs, P.ys, P.weights


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """A wrong call must be refused by its shapes alone."""

    def refuse(*args, **kwargs):
        raise AssertionError("a wrong input reached the compiler")

    monkeypatch.setattr("bplambda.sequence._sequence_gradients", refuse)


def gradients(network=P.network, synthesiser=P.synthesiser, rule=None, xs=XS, ys=YS, weights=WEIGHTS, window=None):
    return bp.sequence_gradients(network, synthesiser, rule or bp.BPLambda(), xs, ys, weights, window)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bp.BPLambda(lam=1.5), ["lam", "1.5", "between 0 and 1"]),
        (lambda: bp.BPLambda(lam=-0.1), ["lam", "-0.1", "between 0 and 1"]),
        (lambda: bp.BPLambda(lam=float("nan")), ["lam", "nan", "between 0 and 1"]),
        (lambda: bp.BPLambda(lam=jnp.array([0.5, 2.0])), ["lam", "[0.5, 2.0]", "between 0 and 1"]),
        (lambda: bp.BPLambda(gamma=1.01), ["gamma", "1.01", "between 0 and 1"]),
        (lambda: bp.BPLambda(scale=float("inf")), ["scale", "inf", "finite"]),
        (lambda: bp.OfflineLambdaSG(lam=2), ["lam", "2.0", "between 0 and 1"]),
        (lambda: bp.TrueOnlineBPLambda(alpha=0.0), ["alpha", "0.0", "greater than 0"]),
        (lambda: bp.TrueOnlineBPLambda(lam=7.0), ["lam", "7.0", "between 0 and 1"]),
        (lambda: bp.OnlineLambdaSG(alpha=-1.0), ["alpha", "-1.0", "greater than 0"]),
        (lambda: bp.TruncatedBPTT(0), ["n is 0, but", "at least 1"]),
        (lambda: bp.TruncatedBPTT(2.5), ["n is 2.5, but", "whole number"]),
        (lambda: bp.NStepSG(-3), ["n is -3, but", "at least 1"]),
        (lambda: bp.NStepSG(True), ["n is True, but", "whole number"]),
        (lambda: bp.NStepSG(3, gamma=-1), ["gamma", "-1.0", "between 0 and 1"]),
        (lambda: bp.LinearSynthesiser(0), ["size", "0", "at least 1"]),
        (lambda: bp.MLPSynthesiser(3, 0, 1, key=jax.random.key(0)), ["width", "0", "at least 1"]),
        (lambda: bp.RNNCell(0, 3, key=jax.random.key(0)), ["input_size", "0", "at least 1"]),
        (lambda: bp.RNNCell(2, 3, "sine", key=jax.random.key(0)), ["activation", "'sine'", "relu"]),
    ],
)
def test_hyperparameters(make, words):
    with pytest.raises(ValueError, match=r".+") as error:
        make()
    for word in words:
        assert word in str(error.value)


SMALL = bp.LinearSynthesiser(2)


class Squashed(bp.LinearSynthesiser):
    """No longer linear."""

    def __call__(self, state):
        return jnp.tanh(super().__call__(state))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"xs": XS[..., :1]}, ["xs", "GRUCell", "float64[1]"]),
        ({"xs": XS[:, 0]}, ["xs", "GRUCell", "float64[]"]),
        ({"xs": XS[:0], "ys": YS[:0], "weights": WEIGHTS[:0]}, ["xs", "[0, 2, 2]", "at least one time-step"]),
        ({"xs": XS[:, :0], "ys": YS[:, :0], "weights": WEIGHTS[:, :0]}, ["xs", "[7, 0, 2]", "at least one example"]),
        ({"xs": jnp.zeros(7)}, ["xs", "[7]", "time first, then batch"]),
        ({"xs": np.full((7, 2, 2), "a")}, ["xs", "U1", "numbers"]),
        ({"xs": ()}, ["xs", "nothing", "time first, then batch"]),
        ({"xs": XS.astype(complex)}, ["complex128"]),
        ({"ys": YS[:3]}, ["ys", "[3, 2, 2]", "[7, 2, ...]"]),
        ({"ys": YS[..., :1, None]}, ["ys", "[1, 1]"]),
        ({"ys": YS[..., :1]}, ["ys", "float64[2]", "float64[1]"]),
        ({"ys": YS[:, :1]}, ["ys", "[7, 1, 2]", "[7, 2, ...]"]),
        ({"weights": WEIGHTS[:3]}, ["weights", "[3, 2]", "[7] or [7, 2]"]),
        ({"weights": np.array(1.0)}, ["weights", "[]", "[7] or [7, 2]"]),
        ({"rule": bp.BPLambda(lam=np.ones(7))}, ["lam", "[7]", "one number"]),
        ({"rule": bp.OfflineLambdaSG(scale=np.ones(3))}, ["scale", "[3]", "one number"]),
        ({"rule": bp.NStepSG(3, scale=np.ones(3))}, ["scale", "[3]", "one number"]),
        ({"rule": bp.TruncatedBPTT(np.arange(1, 8))}, ["n is", "[7]", "one number"]),
        ({"rule": bp.OnlineLambdaSG(alpha=np.full(3, 0.1))}, ["alpha", "[3]", "one number"]),
        ({"weights": WEIGHTS[..., None]}, ["weights", "[7, 2, 1]", "[7] or [7, 2]"]),
        ({"synthesiser": SMALL}, ["synthesiser", "3"]),
        ({"synthesiser": None}, ["synthesiser", "None", "LinearSynthesiser"]),
        ({"synthesiser": cast(Any, Squashed)(3), "rule": bp.TrueOnlineBPLambda()}, ["Squashed", "linear"]),
        ({"synthesiser": jnp.zeros(3)}, ["synthesiser", "callable"]),
        ({"synthesiser": bp.LinearSynthesiser(3, "float32")}, ["synthesiser", "float64"]),
        ({"window": 0}, ["window", "0", "at least 1"]),
        ({"window": 2.0}, ["window", "2.0", "whole number"]),
        ({"window": 2, "rule": bp.BPTT()}, ["window is 2, but", "7"]),
        ({"window": 2, "rule": bp.TruncatedBPTT(3)}, ["window is 2, but must be 7, or a multiple of 3, or left out"]),
        ({"window": 2, "rule": bp.TrueOnlineBPLambda()}, ["window is 2, but", "1"]),
        ({"rule": "bplambda"}, ["rule is 'str', but", "BPLambda()"]),
        ({"rule": bp.BPLambda}, ["rule is 'the class BPLambda', but", "BPLambda()"]),
        ({"network": P.network.cell}, ["network", "GRUCell", "bplambda.Network"]),
    ],
)
def test_data(arguments, words):
    with pytest.raises(ValueError, match=r".+") as error:
        gradients(**arguments)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda network, xs: bp.alignment(network, P.synthesiser, xs, YS),
        lambda network, xs: bp.synthetic_gradient_targets(network, P.synthesiser, bp.BPLambda(), xs, YS),
        lambda network, xs: bp.gradcheck(network, bp.BPLambda(), xs, YS),
    ],
)
def test_data_of_what_is_beside_a_rule(call):
    for xs in (jnp.ones(5), None, 1.0):
        with pytest.raises(ValueError, match=r"xs .+ time first, then batch"):
            call(P.network, xs)
    with pytest.raises(ValueError, match=r"network is 'GRUCell', but must be a bplambda.Network"):
        call(P.network.cell, XS)


def test_inputs_that_would_change_the_precision():
    single = jax.tree.map(lambda a: a.astype("float32"), P.network)
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    try:
        with pytest.raises(ValueError, match=r"xs.*float64.*float32.*convert"):
            gradients(network=single, synthesiser=bp.LinearSynthesiser(3, "float32"))
    finally:
        jax.config.update("jax_numpy_dtype_promotion", "strict")


class Growing(eqx.Module):
    """Its state changes shape."""

    hidden_size: int = 3

    def __call__(self, x, h):
        return jnp.concatenate([h, h])


class Counting(eqx.Module):
    """Its state holds an integer."""

    hidden_size: int = 3

    def __call__(self, x, state):
        return state[0], state[1] + 1


class Rounding(eqx.Module):
    """Its state becomes integers."""

    hidden_size: int = 3

    def __call__(self, x, h):
        return jnp.round(h).astype(int)


def network_of(cell, **kwargs):
    return bp.Network(cell, eqx.nn.Linear(3, 2, key=jax.random.key(0)), bp.losses.squared_error, **kwargs)


@pytest.mark.parametrize("cell", [Growing(), Rounding()])
def test_cells_that_do_not_keep_their_state(cell):
    with pytest.raises(ValueError, match=r"cell turns a state of float64\[3\] into .*must keep"):
        gradients(network_of(cell))


def test_states_of_integers():
    with pytest.raises(ValueError, match=r"state is .*int64.*float arrays"):
        network_of(Counting(), state=(jnp.zeros(3), jnp.array(0)))


def test_states_with_an_empty_part():
    with pytest.raises(ValueError, match=r"state is .*float64\[0\].*at least one number"):
        network_of(Counting(), state=(jnp.zeros(3), jnp.zeros(0)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_a_cell_is_asked_in_its_own_precision(dtype):
    """Also where nothing is promoted silently."""
    cell = eqx.nn.LSTMCell(2, 3, dtype=dtype, key=jax.random.key(0))
    assert network_of(cell).state_size == 6
    assert network_of(cell).dtype == dtype


def test_a_cell_that_does_not_tell_its_state():
    with pytest.raises(ValueError, match=r"state is not given.*hidden_size.*state="):
        network_of(lambda x, h: h)


def test_readouts_and_losses_that_do_not_fit():
    cell, readout = P.network.cell, P.network.readout
    wide = eqx.nn.Linear(5, 2, key=jax.random.key(0))
    with pytest.raises(ValueError, match="readout does not fit"):
        gradients(bp.Network(cell, wide, bp.losses.squared_error))
    with pytest.raises(ValueError, match=r"loss is .*float64\[2\].*one float for one example"):
        gradients(bp.Network(cell, readout, lambda prediction, y: prediction - y))
    with pytest.raises(ValueError, match="loss is 3, but must be callable"):
        bp.Network(cell, readout, cast(Callable, 3))


def test_windows():
    one_by_one = bp.TrueOnlineBPLambda()
    with pytest.raises(ValueError, match=r"window is .*7 steps.*one step"):
        one_by_one.window(P.network, P.synthesiser, one_by_one.init(P.network, P.synthesiser, 2), bp.Window(XS, YS))
    rule = bp.TruncatedBPTT(2)
    carry = rule.init(P.network, None, 2)
    with pytest.raises(ValueError, match=r"window is 'tuple'.*bplambda.Window"):
        rule.window(P.network, None, carry, cast(bp.Window, (XS, YS)))
    three = jnp.zeros((2, 3, 2))
    with pytest.raises(ValueError, match=r"carry.state is .*\[2, 3\].*3 examples"):
        rule.window(P.network, None, carry, bp.Window(three, three))
    with pytest.raises(ValueError, match=r"batch_size is 0.*at least 1"):
        rule.init(P.network, None, 0)


def test_true_online_wants_a_linear_synthesiser():
    mlp = problem(1, "gru", synthesiser="mlp").synthesiser
    with pytest.raises(ValueError, match=r"synthesiser is .*MLP.*LinearSynthesiser"):
        bp.TrueOnlineBPLambda().init(P.network, mlp, 2)
