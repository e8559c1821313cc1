"""The plain RNN cell, and how a known cell is taken apart so that its time loop is cheap."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.nn as jnn
import jax.numpy as jnp
import jax.random as jrandom
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .checks import require, require_int

_ACTIVATIONS: dict[str, Callable] = {"tanh": jnp.tanh, "linear": lambda z: z, "relu": jnn.relu}


class RNNCell(eqx.Module):
    """A plain recurrent cell, h′ = φ(W_ih x + W_hh h + b): the RNN of the paper's toy task.

    The weights are uniform in ±1/√H; the bias is the sum of two such draws.
    """

    weight_ih: Float[Array, "H in"]
    weight_hh: Float[Array, "H H"]
    bias: Float[Array, " H"]
    input_size: int = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __init__(self, input_size: int, hidden_size: int, activation: str = "tanh", dtype=None, *, key: PRNGKeyArray):
        """**Arguments:**

        - `input_size`: the size of the input at each time-step.
        - `hidden_size`: H, the number of units.
        - `activation`: φ, one of `"tanh"`, `"linear"`, `"relu"`.
        - `dtype`: of the weights; JAX's default float if left out.
        - `key`: a PRNG key for the weights.
        """
        require_int("input_size", input_size, minimum=1)
        require_int("hidden_size", hidden_size, minimum=1)
        require(activation in _ACTIVATIONS, "activation", activation, f"one of {sorted(_ACTIVATIONS)}")
        bound = 1 / math.sqrt(hidden_size)

        def draw(key, shape):
            return jrandom.uniform(key, shape, dtype or float, -bound, bound)

        ih, hh, b1, b2 = jrandom.split(key, 4)
        self.weight_ih = draw(ih, (hidden_size, input_size))
        self.weight_hh = draw(hh, (hidden_size, hidden_size))
        self.bias = draw(b1, (hidden_size,)) + draw(b2, (hidden_size,))
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.activation = activation

    def __call__(
        self, input: Float[Array, " in"], hidden: Float[Array, " H"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, " H"]:
        """**Arguments:** `input`, `hidden`: vectors of `input_size` and `hidden_size`; `key`: ignored.

        **Returns:** the next hidden state, a vector of `hidden_size`.
        """
        return _ACTIVATIONS[self.activation](self.weight_ih @ input + self.bias + self.weight_hh @ hidden)


BY_NAME: dict[str, Any] = {"gru": eqx.nn.GRUCell, "lstm": eqx.nn.LSTMCell, "rnn": RNNCell}


class Told(eqx.Module):
    """Wraps a cell and carries a hint in its state: the cell ignores it, the synthesiser sees it.

    The input is `(x, hint)` and the state `(state, hint)`; a hint is an array of floats. An example is the label of a
    sequence, which is known in training from the first step on (`ConditionalSynthesiser`).
    """

    cell: Any

    def __call__(self, input: PyTree, state: PyTree) -> PyTree:
        x, hint = input
        return self.cell(x, state[0]), hint


class Factors(NamedTuple):
    """A cell in three parts, `cell(x, s) = combine(i, products(cell, i, s), s)` with `i = inputs(cell, x, count)`.

    All that does not wait for the state is in `inputs`, and leaves the time loop as one product over all steps; `count`
    says over how many vectors like x, which may make another way of doing it worth while.
    All parameters sit in `inputs` and `products`, so that `combine` is cheap arithmetic, whose local derivatives
    the forward pass saves.

    Where `products` is W s, but for a constant, and `combine` works unit by unit, `matrix(cell)` gives that W: the
    Jacobian of a step is then W with its rows scaled and added up, and costs no product at all.

    Where `combine` treats each number by itself (`by_number`), it takes the numbers of a whole batch as one vector: a
    loop over rows of 30 would leave a remainder in each that is not vectorised.
    """

    inputs: Callable[[Any, PyTree, int], PyTree]
    products: Callable[[Any, PyTree, PyTree], PyTree]
    combine: Callable[[PyTree, PyTree, PyTree], PyTree]
    matrix: Callable[[Any], Float[Array, "rows S"]] | None = None
    by_number: bool = False

    def step(self, cell: Any, x: PyTree, s: PyTree) -> PyTree:
        """`cell(x, s)` from its parts: for an LSTM without derivatives, a third faster than the cell itself."""
        i = self.inputs(cell, x, 1)
        return self.combine(i, self.products(cell, i, s), s)


class Nested(NamedTuple):
    """A cell whose parameters meet what parameters have made of the state: layers on top of each other, peepholes, a
    normalisation.

    `step(cell, i, nudges, s)` gives the next state and all that parameters `met` in the step. It adds the nudges, which
    are zero, to what they make of it, `products(cell, i, met)`: so the gradient by a nudge is the gradient by a
    product, and the parameters' gradient can wait until it is had for all steps at once.
    """

    inputs: Callable[[Any, PyTree, int], PyTree]
    products: Callable[[Any, PyTree, PyTree], list[Array]]
    step: Callable[[Any, PyTree, list[Array], PyTree], tuple[PyTree, PyTree]]
    nudges: list[jax.ShapeDtypeStruct]
    matrix: None = None
    by_number: Literal[False] = False


def _by_value(function: Callable, slope: Callable) -> Callable:
    """An activation whose slope is known from its value: that alone is saved for the way back, not the slope too."""
    activation = jax.custom_vjp(function)
    activation.defvjp(lambda z: (y := function(z), y), lambda y, dy: (dy * slope(y),))
    return activation


def wide(dtype: Any) -> Any:
    """`dtype`, or float32 for a half-precision one, in which a small difference between numbers near 1 is none, a
    square overflows early, and what comes late in a long sum is rounded away."""
    return jnp.float32 if dtype.itemsize < 4 else dtype


_tanh = _by_value(jnp.tanh, lambda y: 1 - y * y)
# By way of a tanh: cheaper than an exponential.
_sigmoid = _by_value(lambda z: ((jnp.tanh(z.astype(wide(z.dtype)) / 2) + 1) / 2).astype(z.dtype), lambda y: y * (1 - y))


def _affine(cell, x, count):
    """W x + b. For many x the bias joins W as one more column: one product, and one for their gradients. The wider W is
    a copy, which for few x would cost more than it saves."""
    if cell.bias is None:
        return cell.weight_ih @ x
    if count < 4 * len(x):
        return cell.weight_ih @ x + cell.bias
    return jnp.append(x, jnp.ones((), x.dtype)) @ jnp.concatenate([cell.weight_ih.T, cell.bias[None]])


# The gates of an LSTM as one array, side by side: i, f, g, o. A sigmoid is a tanh, squeezed and moved.
_SQUEEZED, _MOVED = (0.5, 0.5, 1.0, 0.5), (0.5, 0.5, 0.0, 0.5)


def _of_gates(numbers: tuple[float, ...], like: Array) -> Array:
    """A number for each gate, for all of its units."""
    return jnp.asarray(np.repeat(np.array(numbers, like.dtype), len(like) // 4))


def _lstm_gates(i, p, c):
    """The next state, and the six local derivatives that lead back from it, of which AD alone would make eleven."""
    dtype, c = c.dtype, c.astype(wide(c.dtype))
    z = (i + p).astype(c.dtype)
    t = jnp.tanh(_of_gates(_SQUEEZED, z) * z)
    i, f, g, o = jnp.split(_of_gates(_SQUEEZED, t) * t + _of_gates(_MOVED, t), 4)
    new = f * c + i * g
    out = jnp.tanh(new)
    by_memory = g * i * (1 - i), c * f * (1 - f), i * (1 - g * g)
    found = (o * out, new), (*by_memory, out * o * (1 - o), o * (1 - out * out), f)
    return jax.tree.map(lambda a: a.astype(dtype), found)


def _lstm_back(saved, cotangents):
    *by_memory, by_output, out_by_memory, f = saved
    dh, dc = cotangents
    dc = dc + out_by_memory * dh
    dz = jnp.concatenate([*(d * dc for d in by_memory), by_output * dh])
    return dz, dz, f * dc


_lstm_unit = jax.custom_vjp(lambda i, p, c: _lstm_gates(i, p, c)[0])
_lstm_unit.defvjp(_lstm_gates, _lstm_back)


def _gru_products(cell, i, h):
    p = h @ cell.weight_hh.T
    return p if cell.bias_n is None else p.at[-cell.hidden_size :].add(cell.bias_n)


def _gru_combine(i, p, h):
    (ir, iz, in_), (pr, pz, pn) = jnp.split(i, 3), jnp.split(p, 3)
    new = _tanh(in_ + _sigmoid(ir + pr) * pn)
    return new + _sigmoid(iz + pz) * (h - new)


def _lstm_matrix(cell):
    return jnp.concatenate([cell.weight_hh, jnp.zeros_like(cell.weight_hh)], axis=1)


def _weight_hh(cell):
    return cell.weight_hh


_LSTM = Factors(
    _affine,
    lambda cell, i, s: s[0] @ cell.weight_hh.T,
    lambda i, p, s: _lstm_unit(i, p, s[1]),
    _lstm_matrix,
)
_GRU = Factors(_affine, _gru_products, _gru_combine, _weight_hh)
_RNN = {
    name: Factors(
        _affine,
        lambda cell, i, h: h @ cell.weight_hh.T,
        lambda i, p, h, phi=phi: phi(i + p),
        _weight_hh,
        by_number=True,
    )
    for name, phi in (_ACTIVATIONS | {"tanh": _tanh}).items()
}


def _told(inner: Factors | None) -> Factors | None:
    return inner and Factors(
        inputs=lambda cell, x, count: (inner.inputs(cell.cell, x[0], count), x[1]),
        products=lambda cell, i, s: inner.products(cell.cell, i[0], s[0]),
        combine=lambda i, p, s: (inner.combine(i[0], p, s[0]), i[1]),
        by_number=inner.by_number,
    )


def factors(cell) -> Factors | None:
    """The parts of a known cell, written down here; others are taken apart by their equations (`equations.py`).

    Exact types only: a subclass may have changed what the cell computes.
    """
    if type(cell) is Told:
        return _told(factors(cell.cell))
    if type(cell) is RNNCell:
        return _RNN[cell.activation]
    return {eqx.nn.LSTMCell: _LSTM, eqx.nn.GRUCell: _GRU}.get(type(cell))
