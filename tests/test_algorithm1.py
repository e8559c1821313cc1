"""The engine, for every window size, against Algorithm 1 written out in NumPy."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bplambda as bp
from bplambda.verify.identities import error_of_engine
from bplambda.verify.problems import CELLS, problem

BOUND = 1e-10
seeds = st.integers(0, 2**32 - 1)
unit = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


@pytest.mark.parametrize("losses_at", ["every", "last", "random"])
@pytest.mark.parametrize("synthesiser", ["linear", "mlp"])
@pytest.mark.parametrize("name", CELLS)
def test_every_window_size_is_algorithm_1(name, synthesiser, losses_at):
    p = problem(1, name, losses_at=losses_at, synthesiser=synthesiser)
    for window in (1, 2, 5, 7):
        assert error_of_engine(p, bp.BPLambda(0.7, 0.9, 0.3), window) < BOUND


@pytest.mark.parametrize("window", range(1, 7))
def test_every_remainder(window):
    assert error_of_engine(problem(2, "gru", steps=6), bp.BPLambda(0.8, 0.95, 1.0), window) < BOUND


@given(
    seed=seeds,
    name=st.sampled_from(CELLS),
    synthesiser=st.sampled_from(["linear", "mlp"]),
    losses_at=st.sampled_from(["every", "last", "random"]),
    hidden=st.integers(1, 4),
    steps=st.integers(1, 6),
    batch=st.integers(1, 3),
    window=st.integers(1, 6),
    lam=unit,
    gamma=unit,
    scale=st.floats(-1, 1),
)
def test_any_size(seed, name, synthesiser, losses_at, hidden, steps, batch, window, lam, gamma, scale):
    sizes = {"hidden": hidden, "steps": steps, "batch": batch}
    p = problem(seed, name, losses_at=losses_at, synthesiser=synthesiser, **sizes)
    assert error_of_engine(p, bp.BPLambda(lam, gamma, scale), window) < BOUND


@given(seed=seeds, name=st.sampled_from(CELLS), lam=unit, gamma=unit, scale=st.floats(-1, 1))
def test_any_hyperparameter(seed, name, lam, gamma, scale):
    assert error_of_engine(problem(seed, name), bp.BPLambda(lam, gamma, scale), window=2) < BOUND


def test_float32_agrees_with_float64():
    p = problem(3, "lstm")
    rule = bp.BPLambda(0.9, 0.9, 0.5)
    exact, _ = p.gradients(rule, window=2)
    single = jax.tree.map(lambda a: a.astype("float32"), p)
    found, info = single.gradients(rule, window=2)
    assert all(a.dtype == "float32" for a in jax.tree.leaves((found, info)))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
