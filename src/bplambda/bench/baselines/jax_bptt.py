"""Full BPTT as a JAX user writes it: a scan, and `jax.grad` of the loss."""

import equinox as eqx
import jax
import jax.numpy as jnp

from ...network import Network


def jax_bptt(network: Network, xs, ys, weights):
    """**Returns:** the loss and its gradient, batch average."""

    def loss(network):
        def step(state, x):
            state = jax.vmap(network.cell)(x, state)
            return state, jax.vmap(network.readout)(network.output(state))

        _, predictions = jax.lax.scan(step, network.zero_state(xs.shape[1]), xs)
        losses = jax.vmap(jax.vmap(network.loss))(predictions, ys)
        return jnp.sum(weights @ losses) / xs.shape[1]

    return eqx.filter_value_and_grad(loss)(network)
