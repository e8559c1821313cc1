"""Training: the task, the compiled program, and the measurements."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bplambda as bp
from bplambda.config import Run
from bplambda.tasks import toy
from bplambda.training import varied
from bplambda.training.toy import advance, start
from bplambda.verify.problems import problem

SMALL = Run(length=6, units=8, epochs=4, batches=20)


def test_the_toy_task(plain_jax):
    task = toy.Toy(3, length=7, batch_size=50)
    xs, ys, weights = task.batch(jax.random.key(2))
    assert xs.shape == (7, 50, 10)
    assert ys.shape == (7, 50, 2)
    np.testing.assert_array_equal(weights, [0, 0, 0, 0, 0, 0, 1])
    assert set(np.unique(xs[0])) == {0.0, 1.0}
    assert not np.any(xs[1:])
    np.testing.assert_allclose(np.linalg.norm(ys[-1], axis=-1), 1, rtol=1e-6)
    distances = np.linalg.norm(task.targets - np.roll(task.targets, 1, axis=0), axis=-1)
    np.testing.assert_allclose(distances, np.sqrt(3), rtol=1e-5)
    for x, y in zip(xs[0], ys[-1], strict=True):
        (pair,) = np.flatnonzero((task.inputs == x).all(axis=1) & np.isclose(task.targets, y).all(axis=1))
        assert pair in (0, 1, 2)
    assert len({tuple(y) for y in np.asarray(ys[-1]).tolist()}) == 3, "all pairs come up"


@pytest.mark.parametrize("rule", ["bplambda", "nstep", "truncated", "bptt"])
def test_runs_under_one_vmap_are_what_they_are_alone(rule, plain_jax):
    runs = [dataclasses.replace(SMALL, rule=rule, seed=s, lam=lam, n=n) for s, lam, n in ((0, 0.0, 1), (1, 0.5, 3))]
    v = varied(runs)
    _, together = advance(runs[0], start(runs[0], v), v, None, 4)
    for i, run in enumerate(runs):
        v = varied([run])
        _, alone = advance(run, start(run, v), v, None, 4)
        np.testing.assert_allclose(together["error"][i], alone["error"][0], rtol=1e-4)


def test_a_batch_is_an_adam_step_on_the_rule_s_gradients(plain_jax):
    """One batch of the compiled program, against the same written out."""
    run = dataclasses.replace(SMALL, batches=1, network_rate=0.01, readout_rate=0.02, synthesiser_rate=0.03)
    v = varied([run])
    before = start(run, v)
    one = jax.tree.map(lambda a: a[0], before)
    after, _ = advance(run, start(run, v), v, None, 1)
    _, now = jax.random.split(one.key)
    rule = bp.BPLambda(run.lam, run.gamma, run.scale)
    gradients, _ = bp.sequence_gradients(one.learned.network, one.learned.synthesiser, rule, *one.task.batch(now))
    for name, rate in (("cell", 0.01), ("readout", 0.02)):
        part, gradient = getattr(one.learned.network, name), getattr(gradients.network, name)
        adam = optax.adam(rate, b1=0.9, b2=0.98, eps=1e-9)
        steps, _ = adam.update(gradient, adam.init(part))
        wanted = optax.apply_updates(part, steps)
        found = jax.tree.map(lambda a: a[0], getattr(after.learned.network, name))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    # The paper's synthesiser is of gradients B times smaller: so are its own gradients, and B times larger our steps.
    part, gradient = one.learned.synthesiser, jax.tree.map(lambda d: d / run.batch_size, gradients.synthesiser)
    adam = optax.adam(0.03, b1=0.9, b2=0.98, eps=1e-9)
    steps, _ = adam.update(gradient, adam.init(part))
    wanted = optax.apply_updates(part, jax.tree.map(lambda step: run.batch_size * step, steps))
    for a, b in zip(jax.tree.leaves(after.learned.synthesiser), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a[0], b, atol=1e-6)


def test_a_cosine_halves_the_rates_halfway(plain_jax):
    run = dataclasses.replace(SMALL, epochs=1, batches=2)
    first, usual, cosine = (
        advance(r, start(r, varied([r])), varied([r]), None, 1)[0].learned.network.cell.weight_hh
        for r in (dataclasses.replace(run, batches=1), run, dataclasses.replace(run, schedule="cosine"))
    )
    np.testing.assert_allclose(cosine - first, (usual - first) / 2, atol=1e-6)
    assert np.max(np.abs(usual - first)) > 1e-4


def test_a_fixed_network_stays_as_it_is(plain_jax):
    run = dataclasses.replace(SMALL, variant="fixed")
    v = varied([run])
    after, curves = advance(run, start(run, v), v, None, 4)
    for a, b in zip(
        jax.tree.leaves(after.learned.network), jax.tree.leaves(start(run, v).learned.network), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert np.any(after.learned.synthesiser.weight)
    assert curves["alignment"].shape == (1, 4, 5)
    assert curves["alignment"][0, -1].mean() > curves["alignment"][0, 0].mean()


def test_the_network_learns(plain_jax):
    run = Run(length=5, units=16, epochs=10)
    v = varied([run])
    _, curves = advance(run, start(run, v), v, None, 10)
    assert curves["error"][0, 0] > 0.5
    assert curves["error"][0, -1] < 0.1


def test_alignment_against_cosines_by_hand():
    p = problem(1, "rnn", losses_at="last")
    weights = jnp.zeros(7).at[-1].set(1.0)
    found = bp.alignment(p.network, p.synthesiser, p.xs, p.ys, weights)
    exact = bp.BPLambda(1.0, 1.0)
    true = bp.synthetic_gradient_targets(p.network, p.synthesiser, exact, p.xs, p.ys, weights).lam[1:]
    _, info = bp.sequence_gradients(p.network, p.synthesiser, exact, p.xs, p.ys, weights)
    synthetic = info.synthetic[:-1]
    norms = np.linalg.norm(true, axis=-1) * np.linalg.norm(synthetic, axis=-1)
    wanted = (np.sum(true * synthetic, axis=-1) / norms).mean(axis=1)
    np.testing.assert_allclose(found, wanted, atol=1e-10)
    silent = bp.alignment(p.network, bp.LinearSynthesiser(3), p.xs, p.ys, weights)
    np.testing.assert_array_equal(silent, 0, "a synthesiser that says nothing is not aligned")


def test_the_alignment_of_gradients_that_are_hardly_there(plain_jax):
    """In float32, the square of a gradient through a hundred steps is zero."""
    network = toy.network(30, "tanh", key=jax.random.key(0))
    xs, ys, weights = toy.Toy(3, 100, 10).batch(jax.random.key(1))
    bias = jax.random.normal(jax.random.key(2), (30,))
    g = eqx.tree_at(lambda g: g.bias, bp.LinearSynthesiser(30), bias)
    true = bp.synthetic_gradient_targets(network, g, bp.BPLambda(1.0, 1.0), xs, ys, weights).lam[1:]
    true, bias = np.asarray(true, float), np.asarray(bias, float)
    assert np.linalg.norm(true[0], axis=-1).max() < 1e-15
    cosines = true @ bias / np.linalg.norm(true, axis=-1) / np.linalg.norm(bias)
    np.testing.assert_allclose(bp.alignment(network, g, xs, ys, weights), cosines.mean(axis=1), atol=1e-4)


def test_a_synthesiser_that_learned_the_true_gradient_is_aligned():
    """With a loss at every step too. What is true here: the gradient, by jax.grad, of what is still to come."""
    p = problem(2, "lstm")
    steps = 1 + len(bp.alignment(p.network, p.synthesiser, p.xs, p.ys))
    assert steps == len(p.xs)

    def later(flat, t, b):
        state, total = p.network.unflatten(flat), 0.0
        for tau in range(t, steps):
            state = p.network.cell(p.xs[tau, b], state)
            total += p.network.loss(p.network.readout(p.network.output(state)), p.ys[tau, b])
        return total

    _, info = bp.sequence_gradients(p.network, p.synthesiser, bp.BPLambda(), p.xs, p.ys)
    found = bp.alignment(p.network, p.synthesiser, np.asarray(p.xs), np.asarray(p.ys))
    for t in (1, steps - 1):
        true = np.array([jax.grad(later)(info.states[t - 1, b], t, b) for b in range(p.xs.shape[1])])
        guess = np.array([p.synthesiser(s) for s in info.states[t - 1]])
        cosine = np.sum(true * guess, axis=1) / np.linalg.norm(true, axis=1) / np.linalg.norm(guess, axis=1)
        np.testing.assert_allclose(found[t - 1], cosine.mean(), atol=1e-10)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"synthesiser": bp.LinearSynthesiser(2)}, "synthesiser"),
        ({"xs": np.ones((7, 2, 9))}, "xs"),
        ({"ys": 1.0}, "ys"),
    ],
)
def test_alignment_of_what_does_not_fit(change, words):
    p = problem(1, "rnn")
    arguments = {"network": p.network, "synthesiser": p.synthesiser, "xs": p.xs, "ys": p.ys} | change
    with pytest.raises(ValueError, match=words):
        bp.alignment(**arguments)


@pytest.mark.parametrize(
    ("setting", "words"),
    [({"lam": 2.0}, "lam is 2.0"), ({"length": 0}, "length is 0"), ({"network_rate": -1.0}, "rate")],
)
def test_wrong_settings(setting, words):
    with pytest.raises(ValueError, match=words):
        Run(**setting)
