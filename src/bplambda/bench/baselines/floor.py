"""The floor: the products that BP(1) over a whole sequence cannot do without, and nothing else.

Forward: the inputs' product, for all steps at once; the recurrent one, step by step; the readout and the synthesiser.
Back: the recurrent one again, step by step; the readout's into the state; the gradients of all weights, over all steps
and examples at once. There are no gates and no losses, and nothing is saved from step to step: what the next step
gets is the sum over the gates of the product, on the way back its repetition for each gate.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ..problems import Sizes


def floor(sizes: Sizes) -> Callable[[], list[jax.Array]]:
    """**Returns:** a function without arguments that does the products of a task's gradient, in one program."""
    gates, size, seen = sizes.gates, sizes.state, sizes.seen
    rows, wide = sizes.steps * sizes.batch, gates * sizes.units
    keys = iter(jax.random.split(jax.random.key(0), 16))

    def drawn(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape)

    # The same on the way there and back, and of norm 1: numbers that neither vanish nor overflow.
    recurrent = jnp.tile(jnp.linalg.qr(drawn(sizes.units, sizes.units))[0], (gates, 1)) / gates
    pairs = {
        "inputs": (drawn(rows, sizes.inputs), drawn(sizes.inputs, wide)),
        "readout": (drawn(seen, sizes.units), drawn(sizes.units, sizes.outputs)),
        "synthesiser": (drawn(rows, size), drawn(size, size)),
        "into the state": (drawn(seen, sizes.outputs), drawn(sizes.outputs, sizes.units)),
        "of weight_ih": (drawn(wide, rows), drawn(rows, sizes.inputs)),
        "of weight_hh": (drawn(wide, rows), drawn(rows, sizes.units)),
        "of the readout": (drawn(sizes.outputs, seen), drawn(seen, sizes.units)),
        "of the synthesiser": (drawn(size, rows), drawn(rows, size)),
    }
    h = drawn(sizes.batch, sizes.units)

    @jax.jit
    def products(recurrent, pairs, h):
        def forward(h, _):
            gates_of = (h @ recurrent.T).reshape(sizes.batch, gates, sizes.units)
            return jnp.sum(gates_of, axis=1), None

        def back(h, _):
            return jnp.tile(h, (1, gates)) @ recurrent, None

        there, _ = lax.scan(forward, h, length=sizes.steps)
        again, _ = lax.scan(back, h, length=sizes.steps)
        return [there, again, *(a @ b for a, b in pairs.values())]

    return lambda: jax.block_until_ready(products(recurrent, pairs, h))


def flops(sizes: Sizes) -> int:
    """Multiplications and additions of the floor."""
    rows = sizes.steps * sizes.batch
    cell = rows * sizes.gates * sizes.units * (2 * sizes.inputs + 3 * sizes.units)
    return 2 * (cell + 3 * sizes.seen * sizes.units * sizes.outputs + 2 * rows * sizes.state**2)
