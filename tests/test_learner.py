"""The streaming learner: against the rules it is made of, and whatever a stream may throw at it."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bplambda as bp
from bplambda import checkpoints, traces
from bplambda.checkpoints import CheckpointError
from bplambda.learner._steps import _clipped

pytestmark = pytest.mark.usefixtures("plain_jax")

STEPS = 23
KEY = jax.random.key(0)


def make_network(units=5, cell=eqx.nn.GRUCell, outputs=1, loss=bp.losses.squared_error):
    first, second = jax.random.split(jax.random.key(1))
    return bp.Network(cell(2, units, key=first), eqx.nn.Linear(units, outputs, key=second), loss)


def stream(steps=STEPS, seed=2, batch=()):
    rng = np.random.default_rng(seed)
    xs, ys = rng.normal(size=(steps, *batch, 2)), rng.normal(size=(steps, *batch, 1))
    return xs.astype(np.float32), ys.astype(np.float32)


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


def assert_close(a, b, rtol=1e-4, atol=1e-6):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


MAKERS = {
    "accumulate": lambda: bp.Learner(make_network(), bp.BPLambda(0.9, 0.95)),
    "every 4": lambda: bp.Learner(make_network(), bp.BPLambda(0.9, 0.95), update_every=4),
    "deferred": lambda: bp.Learner(make_network(32), bp.BPLambda(0.9, 0.95)),
    "deferred, every 3": lambda: bp.Learner(make_network(32), bp.BPLambda(0.9, 0.95), update_every=3),
    "lstm": lambda: bp.Learner(make_network(3, eqx.nn.LSTMCell), bp.BPLambda()),
    "true-online": lambda: bp.Learner(make_network(), bp.TrueOnlineBPLambda()),
    "truncated": lambda: bp.Learner(make_network(), bp.TruncatedBPTT(3)),
    "no BPTT": lambda: bp.Learner(make_network(), bp.NoBPTT()),
    "n-step": lambda: bp.Learner(make_network(), bp.NStepSG(3), update_every=6),
    "rolling": lambda: bp.Learner(make_network(), bp.TruncatedBPTT(3), rolling=True),
}


@functools.cache
def made(name: str) -> bp.Learner:
    """One of each for all tests: it is compiled once."""
    return MAKERS[name]()


@pytest.fixture(params=MAKERS)
def learner(request):
    return made(request.param)


@pytest.mark.parametrize("name", MAKERS)
def test_step_and_run_agree_bit_for_bit(name, optimised):
    learner, (xs, ys) = MAKERS[name](), stream()
    weights = np.ones(STEPS, np.float32)
    weights[[3, 4, 11]] = 0
    state = begin = learner.init(KEY)
    infos = []
    for x, y, weight in zip(xs, ys, weights, strict=True):
        predicted = learner.predict(state, x)
        state, info = learner.step(state, x, y if weight else None)
        np.testing.assert_allclose(predicted, info.prediction, rtol=1e-5)
        infos.append(info)
    together, found = learner.run(begin, xs, ys, weights)
    assert_same(state, together)
    assert_same(jax.tree.map(lambda *a: jnp.stack(a), *infos), found)
    assert int(state.steps) == STEPS
    assert np.sum(found.updated) == int(state.updates) > 0
    assert not np.any(found.skipped)
    in_pieces = begin
    for piece in (slice(0, 1), slice(1, 14), slice(14, STEPS)):
        in_pieces, _ = learner.run(in_pieces, xs[piece], ys[piece], weights[piece])
    assert_same(state, in_pieces)


@pytest.mark.parametrize("batch", [None, 3])
def test_a_step_is_the_rule_s_window_and_an_optimiser_step(batch):
    network, rule = make_network(), bp.BPLambda(0.8, 0.9, 0.5)
    learner = bp.Learner(network, rule, optax.adam(1e-2), optax.sgd(1e-2), batch_size=batch)
    xs, ys = stream(6, batch=() if batch is None else (batch,))
    state, infos = learner.run(learner.init(KEY), xs, ys)

    synthesiser = bp.LinearSynthesiser(5)
    adam = optax.adam(1e-2)
    adam_state = adam.init(eqx.filter(network, eqx.is_inexact_array))
    carry = rule.init(network, synthesiser, batch or 1)
    if batch is None:
        xs, ys = xs[:, None], ys[:, None]
    window_of = eqx.filter_jit(rule.window)
    for t in range(6):
        gradients, carry, info = window_of(network, synthesiser, carry, bp.Window(xs[t : t + 1], ys[t : t + 1]))
        steps, adam_state = adam.update(gradients.network, adam_state)
        network = eqx.apply_updates(network, steps)
        synthesiser = jax.tree.map(lambda p, g: p - 1e-2 * g, synthesiser, gradients.synthesiser)
        np.testing.assert_allclose(infos.loss[t], info.loss, rtol=1e-4)
        np.testing.assert_allclose(infos.td_error[t] ** 2, np.mean(np.sum(info.errors**2, axis=-1)), rtol=1e-3)
        np.testing.assert_allclose(infos.network_gradient[t], optax.tree.norm(gradients.network), rtol=1e-3)
    assert_close(learner.modules(state), (network, synthesiser))
    assert_close(state.carry, carry)


def adding_up():
    """An optimiser that changes nothing and adds up what it is given."""

    def init(params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(updates, state, params=None):
        return init(updates), jax.tree.map(jnp.add, state, updates)

    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize("every", [2, 6, 24])
def test_updates_every_few_steps_have_the_same_gradients_if_parameters_are_held(every):
    synthesiser = jax.tree.map(lambda p: p + 0.1, bp.LinearSynthesiser(5))
    xs, ys = stream(24)

    def totals(every):
        learner = bp.Learner(
            make_network(), bp.BPLambda(0.9), adding_up(), adding_up(), update_every=every, synthesiser=synthesiser
        )
        return learner.run(learner.init(KEY), xs, ys)[0].optimisers

    assert_close(totals(every), totals(1), rtol=1e-3, atol=1e-4)


def test_a_rolling_window_by_hand():
    """The newest loss through the last three inputs, replayed with the weights as they now are."""
    network, n, rate = make_network(), 3, 0.05
    learner = bp.Learner(network, bp.TruncatedBPTT(n), optax.sgd(rate), rolling=True)
    xs, ys = stream(8)
    state, infos = learner.run(learner.init(KEY), xs, ys)

    def replay(network, start, inputs):
        states = [start]
        for x in inputs:
            states.append(network.cell(x, states[-1]))
        return states

    start, inputs = jnp.zeros(5), []
    for t in range(8):
        inputs = [*inputs, xs[t]][-n:]
        last = replay(network, start, inputs)[-1]
        np.testing.assert_allclose(infos.prediction[t], network.readout(last), rtol=1e-4, atol=1e-6)

        def loss(network, start=start, inputs=inputs, y=ys[t]):
            return network.loss(network.readout(replay(network, start, inputs)[-1]), y)

        gradient = eqx.filter_grad(loss)(network)
        if len(inputs) == n:
            start = replay(network, start, inputs)[1]
        network = eqx.apply_updates(network, jax.tree.map(lambda g: -rate * g, gradient))
    assert_close(learner.modules(state)[0], network)


def test_no_target_moves_the_state_but_teaches_the_network_nothing():
    learner = bp.Learner(make_network(), bp.NoBPTT(), optax.sgd(0.1))
    state = learner.init(KEY)
    after, info = learner.step(state, np.ones(2))
    assert_same(state.network, after.network)
    assert np.any(after.now != state.now)
    assert info.loss == 0


def test_nothing_is_compiled_after_the_first_step(learner, compilations):
    xs, ys = stream(8)
    state, _ = learner.step(learner.init(KEY), xs[0], ys[0])
    others = ((xs[0], None), (list(map(float, xs[1])), [0.5]), (jnp.asarray(xs[2]), ys[2].astype(np.float64)))

    def go_on():
        for x, y in (*zip(xs, ys, strict=True), *others):
            learner.step(state, x, y)

    assert compilations(go_on) == 0


@pytest.mark.parametrize("bad", ["nan in x", "inf in x", "nan in y"])
def test_a_bad_step_is_as_if_it_had_never_been(learner, bad):
    xs, ys = stream()
    x, y = np.ones(2, np.float32), np.ones(1, np.float32)
    (x if "x" in bad else y)[0] = np.nan if "nan" in bad else np.inf
    with_it = learner.run(learner.init(KEY), np.insert(xs, 9, x, axis=0), np.insert(ys, 9, y, axis=0))
    without = learner.run(learner.init(KEY), xs, ys)
    state = with_it[0]._replace(steps=without[0].steps, skipped=without[0].skipped)
    assert_same(state, without[0])
    assert int(with_it[0].skipped) == 1
    np.testing.assert_array_equal(np.flatnonzero(with_it[1].skipped), [9])
    assert np.all(np.isfinite(with_it[1].prediction))


def test_a_target_that_is_not_looked_at_may_be_anything():
    learner = bp.Learner(make_network(), bp.BPLambda())
    xs, ys = stream(5)
    ys[2] = np.nan
    _, infos = learner.run(learner.init(KEY), xs, ys, [1, 1, 0, 1, 1])
    assert not np.any(infos.skipped)


def relative_error(prediction, target):
    return jnp.sum(((prediction - target) / target) ** 2)


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (bp.BPLambda(), {}),
        (bp.BPLambda(), {"update_every": 2}),
        (bp.TrueOnlineBPLambda(alpha=1e-3), {}),
        (bp.TruncatedBPTT(3), {"rolling": True}),
        (bp.NStepSG(2), {}),
    ],
    ids=str,
)
def test_a_loss_that_is_not_defined_without_a_target(rule, settings):
    """No target stands for zero somewhere inside, where this loss is not a number."""
    learner = bp.Learner(make_network(loss=relative_error), rule, **settings)
    state = learner.init(KEY)
    for y in ([2.0], None, [1.0], None, None, [3.0]):
        before, (state, info) = state, learner.step(state, [1.0, 2.0], y)
        assert not info.skipped
        assert np.any(state.now != before.now)
    assert int(state.updates) > 0


@pytest.mark.parametrize("settings", [{}, {"clip": 1.0}, {"update_every": 4}], ids=str)
@pytest.mark.parametrize("units", [16, 32], ids=["moved", "deferred"])
def test_a_trace_that_has_grown_too_large_begins_anew(units, settings):
    """Or each later step would meet it, and none could be learned from."""
    weights = 3 * jax.random.normal(KEY, (units, units)) / np.sqrt(units)
    cell = eqx.tree_at(lambda c: c.weight_hh, bp.RNNCell(1, units, key=KEY), weights)
    network = bp.Network(cell, eqx.nn.Linear(units, 1, key=KEY), bp.losses.squared_error)
    learner = bp.Learner(network, bp.BPLambda(1.0, 1.0), **settings)
    xs = np.random.default_rng(0).normal(size=(1024, 1)).astype(np.float32)
    state, skipped = learner.init(KEY), []
    for _ in range(3):
        before, (state, infos) = state, learner.run(state, xs, np.roll(xs, 2))
        skipped.append(int(infos.skipped.sum()))
        assert np.any(state.now != before.now)
    assert sum(skipped) > 0, "or this test would show nothing"
    assert max(skipped) < 100
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state._replace(key=state.steps)))


@pytest.mark.parametrize("name", ["deferred", "deferred, every 3"])
def test_a_large_trace_is_deferred_and_learns_the_same(name, monkeypatch):
    """Also where steps are skipped on the way, and the trace catches up after one of them."""
    xs, ys = stream(40)
    xs[[7, 8, 9, 20], 0] = np.nan

    def learned():
        learner = MAKERS[name]()
        state, infos = learner.run(learner.init(KEY), xs, ys)
        return state, infos

    deferred, said = learned()
    assert isinstance(deferred.carry.memory, traces.Deferred)
    monkeypatch.setattr(traces, "LARGE", 2**62)
    plain, expected = learned()
    assert not isinstance(plain.carry.memory, traces.Deferred)
    assert int(said.skipped.sum()) == 4
    assert_close(said, expected)
    assert_close((deferred.network, deferred.synthesiser), (plain.network, plain.synthesiser))
    with jax.enable_x64(False):
        up_to_date = traces.caught_up(deferred.carry.memory, deferred.synthesiser).trace
    assert_close(up_to_date, plain.carry.memory, rtol=1e-3, atol=1e-5)


def test_a_trace_that_was_saved_before_it_was_deferred_goes_on(tmp_path):
    learner, (xs, ys) = made("deferred"), stream(30)
    state, _ = learner.run(learner.init(KEY), xs[:13], ys[:13])
    assert isinstance(state.carry.memory, traces.Deferred)
    trace = traces.caught_up(state.carry.memory, state.synthesiser).trace
    older = state._replace(carry=state.carry._replace(memory=trace))
    configuration = learner._configuration(str(jax.random.key_impl(state.key)))
    checkpoints.save(tmp_path / "older.npz", older, configuration)
    loaded = learner.load(tmp_path / "older.npz")
    assert isinstance(loaded.carry.memory, traces.Deferred)
    expected, found = (learner.run(s, xs[13:], ys[13:])[1] for s in (state, loaded))
    assert_close(found, expected)
    checkpoints.save(tmp_path / "other.npz", older, configuration | {"update_every": 2})
    with pytest.raises(CheckpointError, match=r"saved by another learner: update_every is 2 in the file, 1 here"):
        learner.load(tmp_path / "other.npz")


def test_a_trace_that_is_moved_at_every_update_anyway_is_not_deferred():
    for learner in (
        bp.Learner(make_network(32), bp.BPLambda(), clip_trace=1.0),
        bp.Learner(make_network(32), bp.BPLambda(), update_every=8),
    ):
        assert not isinstance(learner.init(KEY).carry.memory, traces.Deferred)


@pytest.mark.parametrize("name", ["accumulate", "every 4"])
def test_a_trace_is_kept_where_it_is_not_what_overflows(name):
    """The target is so large that Adam's squares of the network's gradient are not finite, and nothing else."""
    learner, (xs, ys) = made(name), stream(8)
    state, _ = learner.run(learner.init(KEY), xs, ys)
    after, infos = learner.run(state, xs[:4], np.array([[0], [0], [1e19], [0]], np.float32))
    assert int(infos.skipped.sum()) == 1
    for one, other in zip(jax.tree.leaves(state.carry.memory), jax.tree.leaves(after.carry.memory), strict=True):
        assert name == "accumulate" or np.array_equal(one, other)
        assert np.any(other != 0)


def test_a_trace_in_half_precision_is_clipped_by_its_norm():
    """Its squares are beyond what float16 can hold; the norm itself is not, and within the limit."""
    trace = {"a": jnp.full((2, 3, 4), 300.0, jnp.float16), "b": jnp.ones((2, 3), jnp.float16)}
    assert_same(_clipped(trace, 2000.0), trace)
    clipped = _clipped(trace, 10.0)
    assert clipped["a"].dtype == jnp.float16
    np.testing.assert_allclose(np.linalg.norm(np.asarray(clipped["a"][0], float)), 10, rtol=1e-2)


def test_counters_do_not_turn_negative():
    learner, (xs, ys) = made("accumulate"), stream(2)
    most = jnp.array(2**31 - 2, jnp.int32)
    state = learner.init(KEY)._replace(steps=most, updates=most, skipped=most)
    state, _ = learner.run(state, xs, ys)
    state, _ = learner.step(state, [np.nan, 0.0], [0.0])
    state, _ = learner.step(state, [np.nan, 0.0], [0.0])
    assert [int(state.steps), int(state.updates), int(state.skipped)] == 3 * [2**31 - 1]


def test_lengths_share_programs(optimised):
    """A chunk may be of any length without a wait for the compiler, and its numbers are those of single steps."""
    xs, ys = stream(13)
    for update_every in (1, 3):
        learner = bp.Learner(make_network(), bp.BPLambda(), update_every=update_every)
        state = one_by_one = learner.init(KEY)
        begin = 0
        for count in (5, 8):
            state, infos = learner.run(state, xs[begin : begin + count], ys[begin : begin + count])
            assert infos.loss.shape == (count,)
            for t in range(begin, begin + count):
                one_by_one, info = learner.step(one_by_one, xs[t], ys[t])
                assert_same(info, jax.tree.map(lambda a, t=t, begin=begin: a[t - begin], infos))
            begin += count
        assert_same(state, one_by_one)
        for count in (6, 7):
            learner.run(state, xs[:count], ys[:count])
        programs: Any = learner._run
        assert programs._cache_size() == 1
        assert learner.run(state, jnp.asarray(xs[:7]), jnp.asarray(ys[:7]))[1].loss.shape == (7,)


def test_half_precision_learns():
    half = jax.tree.map(lambda a: a.astype(jnp.float16) if eqx.is_inexact_array(a) else a, make_network())
    xs, ys = stream(20)
    for rule in (bp.BPLambda(0.5, 0.5), bp.NoBPTT()):
        learner = bp.Learner(half, rule)
        state, infos = learner.run(learner.init(KEY), xs, ys)
        assert not np.any(infos.skipped)
        assert int(state.updates) == 20


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_checkpoint_in_half_precision(dtype, tmp_path):
    half = jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, make_network())
    learner = bp.Learner(half, bp.BPLambda(0.5, 0.5), optax.adam(1e-2, eps=1e-4, mu_dtype=jnp.bfloat16))
    xs, ys = stream(6)
    state, _ = learner.run(learner.init(KEY), xs, np.asarray(jnp.asarray(ys, dtype)))
    learner.save(tmp_path / "half.npz", state)
    again = learner.load(tmp_path / "half.npz")
    assert jax.tree.map(lambda a: a.dtype, again) == jax.tree.map(lambda a: a.dtype, state)
    assert_same(again, state)


def test_a_gradient_in_half_precision_is_clipped_by_its_norm():
    """Its square would be too large for a float16, and a step by something / infinity no step at all."""
    half = jax.tree.map(lambda p: p.astype(jnp.float16), make_network())
    learner = bp.Learner(half, bp.NoBPTT(), optax.sgd(1.0), clip=1.0)
    state = learner.init(KEY)
    after, info = learner.step(state, [1.0, 1.0], [200.0])
    assert info.updated
    assert 256 < float(info.network_gradient) < 65504
    moved = jax.tree.map(lambda a, b: np.asarray(a, float) - np.asarray(b, float), after.network, state.network)
    np.testing.assert_allclose(optax.tree.norm(moved), 1, rtol=1e-2)


def test_clipping_what_has_no_trace():
    learner = bp.Learner(make_network(), bp.NStepSG(2), clip_trace=1.0)
    xs, ys = stream(6)
    assert int(learner.run(learner.init(KEY), xs, ys)[0].updates) == 3


def test_a_first_sample_that_does_not_fit_does_no_harm():
    network = bp.Network(Plain(jnp.eye(2)), eqx.nn.Linear(2, 1, key=KEY), bp.losses.squared_error)
    learner = bp.Learner(network, bp.BPLambda())
    state = learner.init(KEY)
    with pytest.raises(ValueError, match="the cell, a Plain, does not take an input of"):
        learner.step(state, np.ones(3, np.float32), np.zeros(1, np.float32))
    learner.step(state, np.ones(2, np.float32), np.zeros(1, np.float32))


def test_a_gradient_that_overflows_is_skipped_and_parameters_stay_finite(learner):
    xs, ys = stream()
    ys[7] = 1e30
    state, infos = learner.run(learner.init(KEY), xs, ys)
    assert int(state.skipped) == np.sum(infos.skipped) >= 1
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((state.network, state.synthesiser)))
    assert np.isfinite(infos.loss).all()
    assert infos.loss[7] > 1e38, "and not 0, as if all were well"
    after, _ = learner.run(state, xs[:6], ys[:6])
    assert int(after.updates) > int(state.updates), "and it goes on"


def test_a_reset_forgets_the_sequence_and_keeps_what_was_learned(learner):
    xs, ys = stream()
    state, _ = learner.run(learner.init(KEY), xs[:11], ys[:11])
    fresh = learner.reset(state)
    assert_same(fresh.network, state.network)
    assert_same(fresh.optimisers, state.optimisers)
    begin = learner.init(KEY)
    assert_same((fresh.carry, fresh.now, fresh.recent), (begin.carry, begin.now, begin.recent))


@pytest.mark.parametrize("name", ["deferred", "every 4", "n-step", "rolling"])
def test_a_state_may_be_given_away(name):
    learner, (xs, ys) = MAKERS[name](), stream(5)
    step, run = (jax.jit(function, donate_argnums=0) for function in (learner.step, learner.run))
    state = learner.init(KEY)
    for x, y in zip(xs, ys, strict=True):
        state, _ = step(state, x, y)
    given, _ = run(learner.reset(state), xs, ys)
    state = learner.init(KEY)
    for x, y in zip(xs, ys, strict=True):
        state, _ = learner.step(state, x, y)
    kept, _ = learner.run(learner.reset(state), xs, ys)
    assert_close(given.network, kept.network)


def test_learners_under_vmap():
    xs, ys = stream()

    def learn(lam, key):
        learner = bp.Learner(make_network(), bp.BPLambda(lam), update_every=2)
        state, infos = learner.run(learner.init(key), xs, ys)
        return infos.loss, state.network

    lams, keys = jnp.array([0.0, 0.5, 1.0]), jax.random.split(KEY, 3)
    together = jax.vmap(learn)(lams, keys)
    for i in range(3):
        assert_close(jax.tree.map(lambda a, i=i: a[i], together), learn(lams[i], keys[i]), rtol=1e-3)


def test_gradients_and_traces_can_be_clipped():
    xs, ys = stream()
    plain = optax.sgd(1.0)
    learner = bp.Learner(make_network(), bp.BPLambda(1.0, 1.0), plain, plain, clip=1e-3, clip_trace=0.5)
    state = learner.init(KEY)
    for x, y in zip(xs, 10 * ys, strict=True):
        before = state
        state, info = learner.step(state, x, y)
        assert info.network_gradient > 1e-3
        for name in ("network", "synthesiser"):
            moved = jax.tree.map(jnp.subtract, getattr(state, name), getattr(before, name))
            assert optax.tree.norm(moved) < 1.1e-3
        assert 0 < optax.tree.norm(state.carry.memory) < 0.501


def test_classes_and_other_shapes():
    network = make_network(outputs=3, loss=bp.losses.softmax_cross_entropy)
    learner = bp.Learner(network, bp.BPLambda(), update_every=2)
    state = learner.init(KEY)
    for y in (0, 2, None, np.int64(1)):
        state, info = learner.step(state, [0.0, 1.0], y)
    assert info.prediction.shape == (3,)
    assert int(state.updates) == 2
    one_hot = bp.Learner(network, bp.BPLambda(), example=(np.zeros(2, np.float32), np.zeros(3, np.float32)))
    one_hot.step(one_hot.init(KEY), [0.0, 1.0], [0.2, 0.3, 0.5])


class Plain(eqx.Module):
    """A cell that does not tell its input."""

    weight: jax.Array
    hidden_size: int = eqx.field(static=True, default=2)

    def __call__(self, x, h):
        return jnp.tanh(self.weight @ h + x)


def test_no_fraction_is_cut_off():
    """Where the first numbers of a stream happen to be whole."""
    network = bp.Network(Plain(jnp.eye(2)), eqx.nn.Linear(2, 1, key=KEY), bp.losses.squared_error)
    learner = bp.Learner(network, bp.BPLambda())
    state, _ = learner.step(learner.init(KEY), [1, 2], [1])
    learner.step(state, [3.0, -1.0], [2.0])
    for x, y in (([0.9, 0.1], [1]), ([1, 2], [0.5]), ([np.nan, 1.0], [1]), (jnp.array([0.5, 0.5]), [1])):
        with pytest.raises(ValueError, match=r"whole numbers as were shown first.*example=\(x, y\)"):
            learner.step(state, x, y)
    with pytest.raises(ValueError, match=r"xs is .*whole numbers"):
        learner.run(state, np.full((3, 2), 0.5), np.ones((3, 1), int))
    told = bp.Learner(network, bp.BPLambda(), example=([0.0, 0.0], [0.0]))
    floats = bp.Learner(network, bp.BPLambda())
    before = [
        learner.step(learner.init(KEY), x, y)[0] for learner, x, y in ((told, [1, 2], [1]), (floats, [1.0, 2.0], [1.0]))
    ]
    assert_same(*(learner.step(s, [0.9, 0.1], [0.5])[1] for learner, s in zip((told, floats), before, strict=True)))
    with pytest.raises(ValueError, match=r"weights is .*left out where there are no targets"):
        floats.run(before[1], np.ones((3, 2)), None, np.ones(3))
    classes = bp.Learner(make_network(outputs=3, loss=bp.losses.softmax_cross_entropy), bp.BPLambda())
    classes.step(classes.init(KEY), [0.0, 1.0], 2.0)
    with pytest.raises(ValueError, match=r"y is .*whole numbers"):
        classes.step(classes.init(KEY), [0.0, 1.0], 1.5)


def test_a_class_that_is_not_known_is_skipped():
    """Neither NaN nor an index that is no class stops the others, or is learned as another class."""
    learner = bp.Learner(make_network(outputs=3, loss=bp.losses.softmax_cross_entropy), bp.BPLambda())
    xs, state = stream(6)[0], learner.init(KEY)
    for labels in ([0, 1, np.nan, 2, 1, 0], [0, 1, -1, 2, 1, 0], [0, 1, 3, 2, 1, 0]):
        after, infos = learner.run(state, xs, labels)
        np.testing.assert_array_equal(np.flatnonzero(infos.skipped), [2])
        assert infos.loss[2] == 0
        rest = [0, 1, 3, 4, 5]
        assert_same(after.network, learner.run(state, xs[rest], np.array(labels)[rest])[0].network)
    _, info = learner.step(state, xs[0], np.nan)
    assert info.skipped
    # Where no loss is wanted, it does not matter what the label is.
    weights = np.array([1.0, 1, 0, 1, 1, 1])
    unwanted, infos = learner.run(state, xs, [0, 1, np.nan, 2, 1, 0], weights)
    assert not infos.skipped.any()
    assert_same(unwanted, learner.run(state, xs, [0, 1, 2, 2, 1, 0], weights)[0])


class Masked(eqx.Module):
    weight: jax.Array
    mask: jax.Array

    def __call__(self, x, h):
        return jnp.tanh((self.weight * self.mask) @ h + x)


def test_a_checkpoint_knows_constants_and_what_is_read_out(tmp_path):
    def made_with(mask, output):
        network = bp.Network(
            Masked(jnp.eye(2), mask), eqx.nn.Linear(2, 1, key=KEY), bp.losses.squared_error, output, state=jnp.zeros(2)
        )
        return bp.Learner(network, bp.BPLambda(), example=(np.zeros(2), np.zeros(1)))

    def turned(h):
        return h[::-1]

    def as_it_is(h):
        return h

    learner = made_with(jnp.eye(2) > 0, as_it_is)
    learner.save(tmp_path / "state.npz", learner.init(KEY))
    made_with(jnp.eye(2) > 0, as_it_is).load(tmp_path / "state.npz")
    for other in (made_with(jnp.ones((2, 2)) > 0, as_it_is), made_with(jnp.eye(2) > 0, turned)):
        with pytest.raises(CheckpointError, match="saved by another learner"):
            other.load(tmp_path / "state.npz")


def test_without_compilation():
    """As people look for an error: every step on its own, in Python."""
    xs, ys = stream(3)
    learner = bp.Learner(make_network(), bp.BPLambda())
    wanted = learner.run(learner.init(KEY), xs, ys)[0]
    with jax.disable_jit():
        found = learner.run(learner.init(KEY), xs, ys)[0]
    assert_close(found.network, wanted.network)


def test_keys_of_both_kinds(tmp_path):
    learner = bp.Learner(make_network(), bp.BPLambda())
    new, old = learner.init(jax.random.key(7)), learner.init(jax.random.PRNGKey(7))
    assert_same(new, old)
    learner.save(tmp_path / "a folder" / "that is not there" / "old.npz", old)
    assert_same(learner.load(tmp_path / "a folder" / "that is not there" / "old.npz"), new)
    wrongs: tuple[Any, ...] = (0, 1.5, jnp.zeros(2))
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"key is .*learner.init\(jax.random.key\(0\)\)"):
            learner.init(wrong)


def test_an_optimiser_that_is_none():
    wrongs: tuple[dict[str, Any], ...] = ({"optimiser": 1e-3}, {"synthesiser_optimiser": "adam"})
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"optimiser is .* such as optax.adam\(1e-3\)"):
            bp.Learner(make_network(), bp.BPLambda(), **wrong)


class Named(eqx.Module):
    """A cell whose input is a dictionary."""

    weight: jax.Array
    hidden_size: int = eqx.field(static=True, default=3)

    def __call__(self, x, h):
        return jnp.tanh(self.weight @ h + x["a"] + x["b"])


def test_a_cell_that_does_not_tell_its_input():
    network = bp.Network(Named(jnp.eye(3)), eqx.nn.Linear(3, 1, key=KEY), bp.losses.squared_error)
    x = {"a": np.ones(3, np.float32), "b": np.float32(2.0)}
    with pytest.raises(ValueError, match="example=\\(x, y\\)"):
        bp.Learner(network, bp.BPLambda(), update_every=2).init(KEY)
    shown = bp.Learner(network, bp.BPLambda(), update_every=2, example=(x, np.zeros(1, np.float32)))
    for learner in (bp.Learner(network, bp.BPLambda()), shown):
        _, info = learner.step(learner.init(KEY), x, [1.0])
        assert info.loss > 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda it, s: it.step(s, np.zeros(3), [0.0]), r"x is 'float32\[3\]', but must be of float32\[2\]"),
        (lambda it, s: it.step(s, np.zeros((1, 2)), [0.0]), r"x is 'float32\[1, 2\]'"),
        (lambda it, s: it.step(s, np.zeros(2), 0.0), r"y is 'float32\[\]', but must be of float32\[1\]"),
        (lambda it, s: it.step(s, ["a", "b"], [0.0]), "x is .*'a'.*, but must be an array of numbers"),
        (lambda it, s: it.run(s, np.zeros((4, 2)), np.zeros((3, 1))), r"ys is 'float32\[3, 1\]'"),
        (lambda it, s: it.run(s, np.zeros((0, 2)), np.zeros((0, 1))), "at least one step"),
        (lambda it, s: it.run(s, np.zeros((4, 2)), np.zeros((4, 1)), np.ones(3)), "weights is"),
        (lambda it, s: it.predict(s, np.zeros(5)), r"x is 'float32\[5\]'"),
    ],
)
def test_wrong_shapes_are_refused_before_anything_is_compiled(call, words, monkeypatch):
    learner = bp.Learner(make_network(), bp.BPLambda())
    state = learner.init(KEY)
    for name in ("_step", "_run", "_predict"):
        monkeypatch.setattr(learner, name, lambda *args: pytest.fail("it went on"))
    with pytest.raises(ValueError, match=words):
        call(learner, state)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"rule": bp.BPTT()}, "rule is 'BPTT', but must be"),
        ({"rule": bp.TruncatedBPTT(3), "update_every": 4}, "update_every is 4, but must be a multiple of n = 3"),
        ({"rule": bp.TrueOnlineBPLambda(), "update_every": 2}, "update_every is 2, but must be 1"),
        ({"rule": bp.BPLambda(), "update_every": 0}, "update_every is 0"),
        ({"rule": bp.BPLambda(), "batch_size": 0}, "batch_size is 0"),
        ({"rule": bp.BPLambda(), "rolling": True}, "rolling is True"),
        ({"rule": bp.BPLambda(), "clip": 0.0}, "clip is 0.0"),
    ],
)
def test_wrong_settings_are_refused(kwargs, words):
    with pytest.raises(ValueError, match=words):
        bp.Learner(make_network(), **kwargs)


class Blind(bp.Rule):
    """A rule of somebody's own: no step sees another."""

    needs_synthesiser = False
    streams = True

    def fits(self, window, steps):
        return True

    def window(self, network, synthesiser, carry, window):
        return bp.TruncatedBPTT(1).window(network, synthesiser, carry, window)


def test_a_rule_of_one_s_own():
    xs, ys = stream()
    learners = (bp.Learner(make_network(), rule, optax.sgd(0.1)) for rule in (Blind(), bp.NoBPTT()))
    found, wanted = (learner.run(learner.init(KEY), xs, ys)[0] for learner in learners)
    assert_same(found.network, wanted.network)


def test_a_synthesiser_of_another_size_is_refused():
    with pytest.raises(ValueError, match="synthesiser"):
        bp.Learner(make_network(5), bp.BPLambda(), synthesiser=bp.LinearSynthesiser(4))


@pytest.mark.parametrize("name", MAKERS)
def test_a_checkpoint_goes_on_bit_for_bit(name, tmp_path):
    xs, ys = stream()
    learner = made(name)
    state, _ = learner.run(learner.init(jax.random.key(7)), xs[:10], ys[:10])
    learner.save(tmp_path / "state.npz", state)
    another = MAKERS[name]()
    loaded = another.load(tmp_path / "state.npz")
    assert_same(state, loaded)
    assert_same(learner.run(state, xs[10:], ys[10:]), another.run(loaded, xs[10:], ys[10:]))
    assert os.listdir(tmp_path) == ["state.npz"]


def test_a_checkpoint_keeps_the_kind_of_its_key(tmp_path):
    learner = made("accumulate")
    state = learner.init(jax.random.key(3, impl="rbg"))
    learner.save(tmp_path / "state.npz", state)
    assert_same(learner.load(tmp_path / "state.npz"), state)


def test_the_functions_of_a_readout_are_part_of_its_checkpoint(tmp_path):
    def learner(activation):
        readout = eqx.nn.MLP(5, 1, 4, 1, activation, key=KEY)
        return bp.Learner(bp.Network(eqx.nn.GRUCell(2, 5, key=KEY), readout, bp.losses.squared_error), bp.BPLambda())

    learner(jnp.tanh).save(tmp_path / "state.npz", learner(jnp.tanh).init(KEY))
    learner(jnp.tanh).load(tmp_path / "state.npz")
    with pytest.raises(CheckpointError, match=r"readout.activation is 'tanh' in the file, 'relu' here"):
        learner(jax.nn.relu).load(tmp_path / "state.npz")


def test_the_state_of_another_learner_is_not_saved(tmp_path):
    other = bp.Learner(make_network(4), bp.BPLambda())
    with pytest.raises(ValueError, match=r"state must be a state of this learner: .*\[12, 2\] there, .*\[15, 2\] here"):
        made("accumulate").save(tmp_path / "state.npz", other.init(KEY))
    assert os.listdir(tmp_path) == []


def test_an_example_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"the cell, a GRUCell, does not take an input of"):
        bp.Learner(make_network(), bp.BPLambda(), example=(np.ones(3, np.float32), np.zeros(1, np.float32)))


def test_what_a_cell_is_told_once_and_for_all_is_part_of_its_checkpoint(tmp_path):
    def learner(activation):
        cell = bp.RNNCell(2, 5, activation, key=KEY)
        return bp.Learner(bp.Network(cell, eqx.nn.Linear(5, 1, key=KEY), bp.losses.squared_error), bp.BPLambda())

    learner("tanh").save(tmp_path / "state.npz", learner("tanh").init(KEY))
    learner("tanh").load(tmp_path / "state.npz")
    with pytest.raises(CheckpointError, match=r"cell.activation is 'tanh' in the file, 'relu' here"):
        learner("relu").load(tmp_path / "state.npz")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: bp.Learner(make_network(), bp.BPLambda(0.5)), "rule.lam is 1.0 in the file, 0.5 here"),
        (lambda: bp.Learner(make_network(), bp.NStepSG(2)), "rule is 'BPLambda' in the file, 'NStepSG' here"),
        (lambda: bp.Learner(make_network(6), bp.BPLambda()), "cell.hidden_size is 5 in the file, 6 here"),
        (lambda: bp.Learner(make_network(cell=eqx.nn.LSTMCell), bp.BPLambda()), "cell is 'GRUCell' in the file"),
        (lambda: bp.Learner(make_network(), bp.BPLambda(), optax.sgd(0.1)), "another network or optimiser"),
        (lambda: bp.Learner(make_network(), bp.BPLambda(), update_every=2), "update_every is 1 in the file, 2 here"),
        (lambda: bp.Learner(make_network(loss=relative_error), bp.BPLambda()), "loss is 'squared_error' in the file"),
    ],
)
def test_a_checkpoint_of_another_learner_is_refused(other, words, tmp_path):
    learner = bp.Learner(make_network(), bp.BPLambda())
    learner.save(tmp_path / "state.npz", learner.init(KEY))
    with pytest.raises(CheckpointError, match=words):
        other().load(tmp_path / "state.npz")


def test_a_damaged_checkpoint_is_refused(tmp_path):
    learner = bp.Learner(make_network(), bp.BPLambda())
    path = tmp_path / "state.npz"
    with pytest.raises(CheckpointError, match="There is no checkpoint at"):
        learner.load(path)
    learner.save(path, learner.init(KEY))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        for content in (bytes(changed), whole[: rng.integers(len(whole))]):
            path.write_bytes(content)
            try:
                loaded = learner.load(path)
            except CheckpointError as error:
                assert "checkpoint" in str(error) or "saved by" in str(error)  # noqa: PT017
            else:
                assert_same(loaded, learner.init(KEY))  # a bit that means nothing
    for at in range(1, 1000):  # the directory of what is in the file, byte by byte
        changed = bytearray(whole)
        changed[-at] ^= 1 << at % 8
        path.write_bytes(changed)
        with contextlib.suppress(CheckpointError):
            checkpoints.configuration(path)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        learner.load(path)


def test_a_checkpoint_of_a_future_version_is_refused(tmp_path, monkeypatch):
    learner = bp.Learner(make_network(), bp.BPLambda())
    monkeypatch.setattr("bplambda.checkpoints.FORMAT", 99)
    learner.save(tmp_path / "state.npz", learner.init(KEY))
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="is of format 99, but this version of bplambda reads format 1"):
        learner.load(tmp_path / "state.npz")


SAVING = """
import sys, jax, test_learner
from pathlib import Path
from bplambda.cache import use_compilation_cache
use_compilation_cache()
learner = test_learner.made("accumulate")
state = learner.init(jax.random.key(0))
xs, ys = test_learner.stream()
while True:
    state, _ = learner.run(state, xs, ys)
    learner.save(Path(sys.argv[1]), state)
    print("saved", flush=True)
"""


def test_kill_9_while_saving_leaves_the_old_checkpoint_whole(tmp_path):
    path = tmp_path / "state.npz"
    rng = np.random.default_rng(1)
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.path.dirname(__file__)},
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "saved\n"
            time.sleep(rng.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
        state = made("accumulate").load(path)
        assert int(state.steps) % STEPS == 0
        assert int(state.steps) > 0


def test_it_learns_what_one_step_truncation_cannot():
    """Echo the input of three steps ago."""
    rng = np.random.default_rng(0)
    xs = rng.uniform(-1, 1, size=(8000, 1)).astype(np.float32)
    ys = np.roll(xs, 3, axis=0)

    def late_error(rule):
        first, second = jax.random.split(jax.random.key(3))
        network = bp.Network(
            eqx.nn.GRUCell(1, 16, key=first), eqx.nn.Linear(16, 1, key=second), bp.losses.squared_error
        )
        learner = bp.Learner(network, rule, optax.adam(3e-3), optax.adam(3e-3))
        _, infos = learner.run(learner.init(KEY), xs, ys)
        return infos.loss[-1000:].mean()

    assert late_error(bp.BPLambda(1.0, 0.9)) < 0.1 < 0.25 < late_error(bp.NoBPTT())
