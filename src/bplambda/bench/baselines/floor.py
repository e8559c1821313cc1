"""The floor: the products that BP(1) over a whole sequence cannot do without, and nothing else.

Forward: the inputs' product, for all steps at once; the recurrent one, step by step; the readout and the synthesiser.
Back: the recurrent one again, step by step; the readout's into the state; the gradients of all weights, over all steps
and examples at once. There are no gates and no losses, and nothing is saved from step to step: what the next step
gets is the sum over the gates of the product, on the way back its repetition for each gate.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..problems import Sizes
from ..programs import program


def floor(sizes: Sizes) -> Callable[[], list[jax.Array]]:
    """**Returns:** a function without arguments that does the products of a task's gradient, in one program."""
    gates, rows, wide = sizes.gates, sizes.steps * sizes.batch, sizes.gates * sizes.units
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), float)

    def products(xs, dz, h, s, d, w_ih, w_hh, w_out, theta):
        def forward(h, _):
            return jnp.sum((h @ w_hh.T).reshape(sizes.batch, gates, sizes.units), axis=1), None

        def back(h, _):
            return jnp.tile(h, (1, gates)) @ w_hh, None

        seen = h[: sizes.seen]
        there, _ = lax.scan(forward, h[: sizes.batch], length=sizes.steps)
        again, _ = lax.scan(back, h[: sizes.batch], length=sizes.steps)
        ahead = xs @ w_ih.T, seen @ w_out.T, s @ theta.T, d @ w_out
        return there, again, *ahead, dz.T @ xs, dz.T @ h, d.T @ seen, s.T @ s

    data = drawn(rows, sizes.inputs), drawn(rows, wide), drawn(rows, sizes.units), drawn(rows, sizes.state)
    # Orthogonal: over any number of steps, numbers neither vanish nor overflow.
    w_hh = jnp.tile(jnp.linalg.qr(drawn(sizes.units, sizes.units))[0], (gates, 1)) / gates
    weights = drawn(wide, sizes.inputs), w_hh, drawn(sizes.outputs, sizes.units), drawn(sizes.state, sizes.state)
    return program(products, *data, drawn(sizes.seen, sizes.outputs), *weights)


def flops(sizes: Sizes) -> int:
    """Multiplications and additions of the floor."""
    rows = sizes.steps * sizes.batch
    cell = rows * sizes.gates * sizes.units * (2 * sizes.inputs + 3 * sizes.units)
    return 2 * (cell + 3 * sizes.seen * sizes.units * sizes.outputs + 2 * rows * sizes.state**2)
