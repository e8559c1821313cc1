"""Losses of one example: `loss(prediction, target) -> scalar`."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


def squared_error(prediction: Float[Array, "..."], target: Float[Array, "..."]) -> Float[Array, ""]:
    """Σᵢ (ŷᵢ − yᵢ)², the squared distance."""
    _same_shape(prediction, target)
    return jnp.sum((prediction - target) ** 2)


def mean_squared_error(prediction: Float[Array, "..."], target: Float[Array, "..."]) -> Float[Array, ""]:
    """The mean over i of (ŷᵢ − yᵢ)²."""
    _same_shape(prediction, target)
    return jnp.mean((prediction - target) ** 2)


def softmax_cross_entropy(
    prediction: Float[Array, " classes"], target: Int[Array, ""] | Float[Array, " classes"]
) -> Float[Array, ""]:
    """−Σᵢ yᵢ log softmax(ŷ)ᵢ in nats; `target` is the index of a class or a distribution over the classes.

    NaN for what is not the index of a class.
    """
    if jnp.ndim(target) == 0:
        target = jnp.asarray(target)
        index = target.astype(int)
        loss = optax.softmax_cross_entropy_with_integer_labels(prediction, index)
        is_class = (index.astype(target.dtype) == target) & (index >= 0) & (index < len(prediction))
        return jnp.where(is_class, loss, jnp.nan)
    _same_shape(prediction, target)
    return -jnp.sum(target * jax.nn.log_softmax(prediction))


def sigmoid_cross_entropy(prediction: Float[Array, "..."], target: Float[Array, "..."]) -> Float[Array, ""]:
    """Binary cross-entropy of the logits ŷ against bits y, in nats, averaged over the outputs."""
    _same_shape(prediction, target)
    # −y log σ(ŷ) − (1 − y) log σ(−ŷ), with one exponential instead of four. (The slope of |ŷ| would be wrong at 0.)
    unlikely = jnp.exp(jnp.minimum(prediction, -prediction))
    return jnp.mean(jnp.maximum(prediction, 0) - prediction * target + jnp.log1p(unlikely))


def _same_shape(prediction, target) -> None:
    """Broadcasting would hide a target of the wrong shape."""
    if jnp.shape(prediction) != jnp.shape(target):
        raise ValueError(
            f"the target is of shape {jnp.shape(target)}, but must be as the prediction, {prediction.shape}."
        )
