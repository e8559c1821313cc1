"""Full BPTT as a JAX user writes it: a scan, and `jax.grad` of the loss."""

import equinox as eqx
import jax
import jax.numpy as jnp

from ...network import Network
from ...unroll import silent_steps


def jax_bptt(network: Network, xs, ys, weights):
    """**Returns:** the loss and its gradient, batch average. The readout only where there is a loss."""
    silent = silent_steps(weights)

    def loss(network):
        def step(state, x):
            state = jax.vmap(network.cell)(x, state)
            return state, network.output(state)

        _, outputs = jax.lax.scan(step, network.zero_state(xs.shape[1]), xs)
        predictions = jax.vmap(jax.vmap(network.readout))(outputs[silent:])
        losses = jax.vmap(jax.vmap(network.loss))(predictions, ys[silent:])
        return jnp.sum(weights[silent:] @ losses) / xs.shape[1]

    return eqx.filter_value_and_grad(loss)(network)
