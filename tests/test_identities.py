"""Every identity of `bplambda verify`, on problems of its own; and the figures behind Theorem 3.1."""

import jax
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import bplambda as bp
from bplambda.verify import identities, reference
from bplambda.verify.problems import CELLS, problem
from bplambda.verify.theorem import draw, theorem

seeds = st.integers(0, 2**32 - 1)
unit = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


@pytest.mark.parametrize("identity", identities.IDENTITIES, ids=lambda identity: identity.error.__name__)
def test_identity(identity):
    for seed in (1, 2):
        assert identity.error(seed) <= identity.bound


@given(seed=seeds, lam=unit, gamma=unit, alpha=st.floats(0, 0.3))
def test_lemmas_at_any_step_size(seed, lam, gamma, alpha):
    p = problem(seed, "lstm", hidden=2, steps=5, batch=1)
    (run,) = identities.trajectories(p)
    theta = np.concatenate([p.synthesiser.weight, p.synthesiser.bias[:, None]], axis=1)
    online = reference.accumulate_online(run, theta, lam, gamma, alpha)
    assert identities.largest(identities.lemma_errors(run, online, lam, gamma)) < 1e-10


def true_online_and_online(seed, name, lam, gamma, alpha) -> tuple[float, float]:
    """How far the two are from each other, and their largest number."""
    p = problem(seed, name, batch=3)
    a, info_a = p.gradients(bp.TrueOnlineBPLambda(lam, gamma, 0.5, alpha))
    b, info_b = p.gradients(bp.OnlineLambdaSG(lam, gamma, 0.5, alpha))
    a, b = (a, info_a[:-1]), (b, info_b[:-1])  # the rest: one has TD errors, the other targets
    return identities.distance(a, b), max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(b))


@given(seed=seeds, name=st.sampled_from(CELLS), lam=unit, gamma=unit, alpha=st.floats(1e-3, 0.2))
def test_true_online_is_online_at_any_step_size(seed, name, lam, gamma, alpha):
    error, largest = true_online_and_online(seed, name, lam, gamma, alpha)
    assume(largest < 1e4)  # else float64 itself is not exact to 1e-10: see the next test
    assert error < 1e-10


def test_true_online_is_online_where_both_grow_without_bound():
    error, largest = true_online_and_online(29, "linear", 0.0, 0.0, 0.125)
    assert largest > 1e9
    assert error < 1e-13 * largest


def test_theorem():
    found = theorem(seed=3)
    assert abs(found.slope - 1) < 0.1
    assert np.all(np.diff(found.accumulate) < 0), "the ratio falls as α does"
    assert np.max(found.true_online) < 1e-10
    assert np.min(found.literal) > 0.1, "with the paper's literal restart it stays"
    assert abs(found.literal_slope) < 0.5


def test_theorem_is_drawn(tmp_path):
    draw(theorem(seed=3), tmp_path / "new" / "theorem.png")
    assert (tmp_path / "new" / "theorem.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_trace_is_caught():
    """The comparison can fail: a trace that decays too slowly is found."""
    p = problem(1, "rnn")
    assert identities.error_of_engine(p, bp.BPLambda(0.7, 0.9, 0.3), 1) < 1e-10
    wrong, _ = p.gradients(bp.BPLambda(1.0, 0.9, 0.3), 1)
    wanted, _ = identities.algorithm_1(p, bp.BPLambda(0.7, 0.9, 0.3))
    assert identities.distance(reference.synthesiser_parameters(wrong.synthesiser), wanted) > 1e-3
