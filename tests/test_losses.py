"""Losses against their definitions, where a careless form would go wrong: at zero and far out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bplambda import losses

LOGITS = [-800.0, -50.0, -10.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 10.0, 50.0, 800.0]


@pytest.mark.parametrize("bit", [0.0, 0.3, 1.0])
def test_sigmoid_cross_entropy(bit):
    z = np.array(LOGITS)
    expected = bit * np.logaddexp(0, -z) + (1 - bit) * np.logaddexp(0, z)
    with np.errstate(over="ignore"):
        slope = (1 - bit) / (1 + np.exp(-z)) - bit / (1 + np.exp(z))
    for dtype, rtol in ((jnp.float64, 1e-13), (jnp.float32, 1e-5)):
        both = jax.value_and_grad(lambda z: losses.sigmoid_cross_entropy(z, jnp.full_like(z, bit)))
        value, gradient = jax.vmap(both)(jnp.asarray(z, dtype))
        tiny = 1e-300 if dtype == jnp.float64 else 1e-36
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=tiny)
        np.testing.assert_allclose(gradient, slope, rtol=rtol, atol=tiny)


def test_what_is_not_a_class_has_no_loss():
    """And not that of another class, as an index from the end, or of a fraction cut off, would have."""
    z = jnp.array([0.0, 1.0, 2.0])
    for target in (-1, 3, 1.7, np.nan):
        assert np.isnan(losses.softmax_cross_entropy(z, jnp.asarray(target)))
    for target in (1, 1.0):
        expected = np.log(np.exp([0, 1, 2]).sum()) - 1
        np.testing.assert_allclose(losses.softmax_cross_entropy(z, jnp.asarray(target)), expected)
