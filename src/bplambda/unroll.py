"""One window, run forward once, with all that its backward passes need.

Only two things wait for the step before or after them: the states, and cotangents on their way back. Everything else
(inputs' products, losses, parameter gradients) is done for all time-steps and examples at once, in large products.
"""

import dataclasses
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree

from .cells import Nested, wide
from .network import Network
from .shapes import checked
from .timeloop import Layout, Pullbacks, forward, over_time_and_batch, parameters, turning


def ended(last: bool | Bool[Array, ""], tree: PyTree[Array]) -> PyTree[Array]:
    """`tree`, or zeros where the sequence has ended."""
    if isinstance(last, bool):
        return jax.tree.map(jnp.zeros_like, tree) if last else tree
    return jax.tree.map(lambda x: jnp.where(last, jnp.zeros_like(x), x), tree)


def nothing_yet(tree: Any) -> Any:
    """Zeros to add to, in float32 at least."""
    return jax.tree.map(lambda p: jnp.zeros(p.shape, wide(p.dtype)), tree)


def more(total: Any, tree: Any) -> Any:
    """A sum that began with `nothing_yet`, and one more."""
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, tree)


def as_precise_as(tree: Any, total: Any) -> Any:
    """Such a sum, in the precision of what it is a sum of."""
    return jax.tree.map(lambda p, a: a.astype(p.dtype), tree, total)


class Unrolled(eqx.Module):
    """A window that has been run forward. In time order, s_0 is the state that enters and s_K the one that leaves.

    What is as large as the window's states stays in the parts that the network's own state has, and becomes one vector
    only where a synthesiser must see it so: each change between the two is a copy.

    - `before`: s_0 … s_{K-1}; `end`: s_K.
    - `loss_gradients`: ℓ_1 … ℓ_K, of each loss by its own state, like `before`.
    """

    network: Network
    xs: PyTree[Array]
    before: PyTree[Array]
    end: PyTree[Array]
    loss: Float[Array, ""]
    predictions: PyTree[Array]
    loss_gradients: PyTree[Array]
    readout_gradient: Any
    pullbacks: Pullbacks

    @property
    def sizes(self) -> tuple[int, int, int]:
        """K, B and S."""
        steps, batch = jax.tree.leaves(self.before)[0].shape[:2]
        return steps, batch, self.network.state_size

    @property
    def held(self) -> Layout:
        return Layout(self.network, self.pullbacks.parts.by_number)

    @property
    def states(self) -> Float[Array, "K+1 B S"]:
        """s_0 … s_K."""
        return jnp.concatenate([self.network.flatten(self.before), self.network.flatten(self.end)[None]])

    def received(self, beside: Float[Array, "K B S"]) -> PyTree[Array]:
        """ℓ_t, and what comes beside it, at the states s_1 … s_K."""
        return jax.tree.map(jnp.add, self.loss_gradients, self.network.unflatten(beside))

    def back(self, cotangents: PyTree[Array], decay: Float[Array, ""] | Float[Array, " K"]) -> Float[Array, "K B S"]:
        """u_t = Jᵀ_{t+1} (c_{t+1} + d_{t+1} u_{t+1}) for the states s_0 … s_{K-1}, with u_K = 0.

        The only pass back in time that there is: decay d = 1 is backpropagation, γ a discount, γλ the λ-weighting,
        and 0 at a step truncates there.
        """
        held, (steps, batch, _) = self.held, self.sizes
        turn = turning(self.network.cell, steps, batch)
        kept = turn(self.pullbacks.constant)

        def step(u, at):
            c, d, varying = at
            r = jax.tree.map(lambda c, u: c + d * u, c, u)
            u = dataclasses.replace(self.pullbacks, constant=turn(kept)).back(varying, r)
            return u, u

        cotangents = held.together(cotangents, lead=1)
        start = jax.tree.map(lambda c: jnp.zeros_like(c[0]), cotangents)
        d = jnp.broadcast_to(decay, steps)
        _, u = lax.scan(step, start, (cotangents, d, self.pullbacks.varying), reverse=True)
        return self.network.flatten(held.apart(u, lead=1))

    def future(self, cotangents: PyTree[Array], decay: Float[Array, " K"]) -> Float[Array, "K B S"]:
        """d_t u_t at the states s_1 … s_K, as in `back`: what reaches each of them from later steps."""
        u = self.back(cotangents, decay)
        return decay[:, None, None] * jnp.concatenate([u[1:], jnp.zeros_like(u[:1])])

    def jacobians(self) -> Float[Array, "K B S S"]:
        """J_{t+1} = ∂s_{t+1}/∂s_t for the states s_0 … s_{K-1}."""
        steps, batch, size = self.sizes
        matrix, held = self.pullbacks.parts.matrix, self.held
        if matrix is None:

            def one_row(varying, row):
                return held.apart(self.pullbacks.back(varying, held.together(row)))

            rows = jnp.broadcast_to(jnp.eye(size, dtype=self.network.dtype), (batch, size, size))
            one_step = jax.vmap(one_row, in_axes=(None, 1), out_axes=1)
            back = jax.vmap(one_step, in_axes=(0, None), axis_size=steps)
            return self.network.flatten(back(self.pullbacks.varying, self.network.unflatten(rows)))

        # Unit by unit: the rows of all units of a part of the state at once, since none of them sees another's.
        def local(varying, cotangent):
            combine, _, _ = self.pullbacks.at(varying)
            _, dp, direct = combine(held.together(cotangent))
            return dp, self.network.flatten(held.apart(direct))

        zero = self.network.zero_state(batch)
        parts, structure = jax.tree.flatten(zero)
        units = size // len(parts)
        weights = matrix(self.network.cell).reshape(-1, units, size)
        rows = []
        for i, part in enumerate(parts):
            cotangent = jax.tree.unflatten(structure, [*parts[:i], jnp.ones_like(part), *parts[i + 1 :]])
            dp, direct = jax.vmap(local, in_axes=(0, None), axis_size=steps)(self.pullbacks.varying, cotangent)
            dp = dp.reshape(steps, batch, -1, units, 1)
            through = sum(dp[:, :, gate] * weights[gate][None, None] for gate in range(len(weights)))
            diagonal = jnp.eye(units, dtype=direct.dtype).reshape(1, 1, units, 1, units)
            direct = diagonal * direct.reshape(steps, batch, 1, -1, units)
            rows.append(through + direct.reshape(steps, batch, units, size))
        return jnp.concatenate(rows, axis=2)

    def transport(self, decay) -> Float[Array, "K B S S"]:
        """P_t = decay^{K−t} ∂s_K/∂s_t for the states s_0 … s_{K-1}."""
        jacobians = decay * self.jacobians()
        if len(jacobians) == 1:
            return jacobians

        def step(later, jacobian):
            both = later @ jacobian
            return both, both

        last = jacobians[-1]
        _, earlier = lax.scan(step, last, jacobians[:-1], reverse=True)
        return jnp.concatenate([earlier, last[None]])

    def gradient(self, cotangents: PyTree[Array]) -> Network:
        """Σ_t c_tᵀ ∂s_t/∂Ψ, Ψ acting at step t alone, for c_1 … c_K; with the readout's gradient; batch average.

        All steps at once: one large product for each of the cell's weights.
        """

        def local(varying, c):
            combine, _, _ = self.pullbacks.at(varying)
            di, dp, _ = combine(c)
            return di, dp

        parts, held = self.pullbacks.parts, self.held
        learned, rebuild = parameters(self.network.cell)
        steps, batch, _ = self.sizes
        is_tall = jax.tree.map(lambda w: w.ndim == 2 and steps * batch > w.shape[0] > w.shape[1], learned)

        def widened(tree: Any) -> Any:
            return jax.tree.map(lambda w, tall: w.T if tall else w, tree, is_tall)

        def made_of(cell: Any) -> PyTree[Array]:
            return over_time_and_batch(lambda x: parts.inputs(cell, x, steps * batch))(self.xs)

        def weighted(p: Any) -> tuple[PyTree[Array], PyTree[Array]]:
            cell = rebuild(widened(p))
            inputs = made_of(cell)
            # The gradient by the inputs of a nested step is that by all that they do in it, products among it.
            at = (
                (made_of(self.network.cell), self.pullbacks.met) if isinstance(parts, Nested) else (inputs, self.before)
            )
            products = over_time_and_batch(partial(parts.products, cell))(*at)
            return held.together((eqx.filter(inputs, eqx.is_inexact_array), products), lead=1)

        # Products are faster on a CPU if they are wider than tall, and the compiler would turn them round again.
        _, pull = jax.vjp(weighted, widened(learned))
        (total,) = pull(jax.vmap(local)(self.pullbacks.varying, held.together(cotangents, lead=1)))
        mean = jax.tree.map(lambda d: d / batch, widened(lax.optimization_barrier(total)))
        empty = eqx.filter(self.network, eqx.is_inexact_array)
        return eqx.tree_at(lambda n: (n.cell, n.readout), empty, (mean, self.readout_gradient))


def silent_steps(weights: Any) -> int:
    """The steps before the first loss: as many as are known while compiling, which weights as a NumPy array are."""
    if not isinstance(weights, np.ndarray) or weights.ndim == 0 or weights.size == 0:
        return 0
    has_loss = np.any(weights.reshape(len(weights), -1), axis=1, keepdims=True)[:-1]
    return int(np.argmax(np.append(has_loss, True)))


def unroll(network: Network, state: PyTree[Array], xs, ys, weights) -> Unrolled:
    """Runs a window forward from `state`. Nothing is read out where there is known to be no loss."""
    silent = silent_steps(weights)
    xs, ys, weights = checked(network, state, xs, ys, weights)
    before, after, pullbacks = forward(network, state, xs)
    end = jax.tree.map(lambda s: s[-1], after)

    after_silence, ys, weights = jax.tree.map(lambda a: a[silent:], (after, ys, weights))

    # A target without a loss may be anything, even not a number, and so may the slope there: neither must reach the
    # gradient as 0 · nan.
    def where_wanted(a):
        wanted = (weights != 0).reshape(weights.shape + (1,) * (a.ndim - 2))
        return a if a.dtype == jax.dtypes.float0 else jnp.where(wanted, a, jnp.zeros_like(a))

    def predict(p, s):
        return over_time_and_batch(lambda s: rebuild(p)(network.output(s)))(s)

    readout, rebuild = parameters(network.readout)
    predictions, pull_readout = jax.vjp(predict, readout, after_silence)
    targets = jax.tree.map(where_wanted, ys)
    loss, pull_loss = jax.vjp(lambda p: over_time_and_batch(network.loss)(p, targets), predictions)
    (slopes,) = pull_loss(weights.astype(loss.dtype))
    readout_gradient, losses = pull_readout(jax.tree.map(where_wanted, slopes))
    if silent:
        losses = jax.tree.map(lambda a: jnp.pad(a, [(silent, 0)] + [(0, 0)] * (a.ndim - 1)), losses)
        predictions = predict(readout, after)  # for those who look at them all: else it is not compiled
    batch = weights.shape[1]
    return Unrolled(
        network,
        xs,
        before,
        end,
        jnp.sum(where_wanted(loss * weights)) / batch,
        predictions,
        losses,
        jax.tree.map(lambda g: g / batch, readout_gradient),
        pullbacks,
    )
