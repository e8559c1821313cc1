"""The gradient check: right where it should be, and honest where it is not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bplambda as bp
from bplambda.verify.identities import fitted
from bplambda.verify.problems import CELLS, problem


@pytest.mark.parametrize("name", CELLS)
def test_bptt_checks_out_against_itself(name):
    p = problem(1, name, hidden=5)
    found = bp.gradcheck(p.network, bp.BPTT(), p.xs, p.ys)
    assert found.worst.cosine == pytest.approx(1)
    assert [row.relative_norm for row in found.rows] == pytest.approx([1] * len(found.rows))
    assert not found.missing


def test_rows_against_cosines_by_hand():
    p = problem(2, "lstm")
    rule = bp.BPLambda(0.5, 0.9, 1.0)
    found = bp.gradcheck(p.network, rule, p.xs, p.ys, p.synthesiser, p.weights)
    ours, true = p.gradients(rule)[0].network.cell.weight_hh, p.gradients(bp.BPTT())[0].network.cell.weight_hh
    (row,) = (row for row in found.rows if row.name == "cell.weight_hh")
    assert row.shape == (12, 3)
    assert row.cosine == pytest.approx(float(np.sum(ours * true) / np.linalg.norm(ours) / np.linalg.norm(true)))
    assert row.relative_norm == pytest.approx(float(np.linalg.norm(ours) / np.linalg.norm(true)))
    assert found.worst == min(found.rows, key=lambda row: row.cosine)


def test_an_exact_synthesiser_is_found_exact():
    p = problem(3, "gru", hidden=12, steps=5, batch=1)
    found = bp.gradcheck(p.network, bp.BPLambda(1.0, 1.0), p.xs, p.ys, fitted(p), p.weights)
    assert found.worst.cosine == pytest.approx(1)


class Delayed(eqx.Module):
    """Its input weights act on the second half of the state, which is read out one step later."""

    weight: jax.Array
    hidden_size: int = eqx.field(static=True, default=4)

    def __call__(self, x, h):
        return jax.numpy.concatenate([h[2:], self.weight @ x])


def test_a_parameter_without_gradient_is_named(getkey):
    cell = Delayed(jax.random.normal(getkey(), (2, 2)))
    readout = eqx.nn.Linear(2, 1, key=getkey())
    network = bp.Network(cell, readout, bp.losses.squared_error, output=lambda h: h[:2])
    xs, ys = jax.random.normal(getkey(), (5, 3, 2)), jax.random.normal(getkey(), (5, 3, 1))
    found = bp.gradcheck(network, bp.NoBPTT(), xs, ys)
    assert found.missing == ("cell.weight",)
    assert found.worst.name == "cell.weight"
    assert "exactly zero where BPTT is not: cell.weight" in str(found)
    assert not bp.gradcheck(network, bp.TruncatedBPTT(2), xs, ys).missing


def test_it_reads_well():
    p = problem(1, "gru")
    text = str(bp.gradcheck(p.network, bp.BPLambda(0.5, 0.9, 0.25), p.xs, p.ys))
    assert text.startswith("BPLambda(lam=0.5, gamma=0.9, scale=0.25) against full BPTT")
    assert all(name in text for name in ("cell.weight_ih", "cell.bias_n", "readout.bias", "9×3", "worst: "))
    assert "untrained" in text
    assert "untrained" not in str(bp.gradcheck(p.network, bp.BPTT(), p.xs, p.ys))
    assert repr(bp.gradcheck(p.network, bp.BPTT(), p.xs, p.ys)).startswith("BPTT() against")


def test_a_gradient_that_is_not_a_number_is_not_called_uphill():
    p = problem(1, "gru")
    found = bp.gradcheck(p.network, bp.BPLambda(), p.xs, jax.numpy.nan * p.ys)
    assert "uphill" not in str(found)
    assert "not finite!" in str(found)
    rows = [row._replace(cosine=0.5) for row in found.rows]
    rows[1] = rows[1]._replace(cosine=float("nan"))
    assert found._replace(rows=tuple(rows)).worst.name == rows[1].name
    one = bp.gradcheck(p.network, bp.DataParallel(bp.BPLambda(0.5), 1), p.xs, p.ys)
    assert one.rule == "DataParallel(rule=BPLambda(lam=0.5, gamma=0.9, scale=1), devices=1)"


class Frozen(eqx.Module):
    weight: jax.Array
    constant: jax.Array
    hidden_size: int = 3

    def __call__(self, x, h):
        return jnp.tanh(self.weight @ h + x * jax.lax.stop_gradient(self.constant))


def test_a_constant_has_no_gradient_and_needs_none():
    cell = Frozen(jnp.eye(3), jnp.ones(3))
    network = bp.Network(cell, eqx.nn.Linear(3, 1, key=jax.random.key(0)), bp.losses.squared_error, state=jnp.zeros(3))
    found = bp.gradcheck(network, bp.NoBPTT(), jnp.ones((4, 2, 3)), jnp.zeros((4, 2, 1)))
    rows = {row.name: row for row in found.rows}
    assert rows["cell.constant"].silent
    assert not rows["cell.weight"].silent
    assert "no gradient, rightly" in str(found)
    assert found.missing == ()
