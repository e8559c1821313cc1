"""Cells that the library has never seen are taken apart by their equations, and stay what they are."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import bplambda as bp
from bplambda.cells import Nested, factors
from bplambda.equations import _nested, _traced, taken_apart
from bplambda.verify.identities import distance
from in_one_piece import in_one_piece  # pyrefly: ignore[missing-import]

H, IN, STEPS, BATCH = 3, 2, 5, 4


class Cell(eqx.Module):
    """Weights, and what a cell does with them."""

    w: dict[str, jax.Array]
    equations: Callable = eqx.field(static=True)

    def __call__(self, x, s):
        return self.equations(self.w, x, s)


class Kind(NamedTuple):
    """A cell's equations, its weights' shapes, its state; and what is to be found: parts, or parts of which the last
    treats each number by itself, so that a batch may be one long vector, or that it is nested."""

    equations: Callable[[dict[str, Any], Any, Any], Any]
    shapes: Mapping[str, tuple[int, ...]]
    found: Literal["parts", "by number", "nested"]
    state: Any = np.zeros(H)


def leaky(w, x, h):
    return 0.8 * h + 0.2 * jnp.tanh(w["hh"] @ h + w["ih"] @ x + w["b"])


def concatenated(w, x, h):
    return jnp.tanh(w["w"] @ jnp.concatenate([h, x]) + w["b"])


def gated_by_the_input(w, x, h):
    return jnp.tanh((w["hh"] @ h) * jax.nn.sigmoid(w["g"] @ x))


def gated_before_a_bias(w, x, h):
    return jnp.tanh((w["hh"] @ h) * jax.nn.sigmoid(w["g"] @ x) + w["b"])


def decaying(w, x, h):
    return jax.nn.sigmoid(w["a"]) * h + w["ih"] @ x


def normalised(w, x, h):
    h = (h - h.mean()) / jnp.sqrt(h.var() + 0.1)
    return jnp.tanh(w["hh"] @ (w["scale"] * h) + w["ih"] @ x)


def peepholes(w, x, s):
    """An LSTM whose output gate sees the new memory: weights meet what weights have made."""
    h, c = s
    i, f, g, o = jnp.split(w["hh"] @ h + w["ih"] @ x + w["b"], 4)
    c = jax.nn.sigmoid(f + w["pf"] * c) * c + jax.nn.sigmoid(i + w["pi"] * c) * jnp.tanh(g)
    return jax.nn.sigmoid(o + w["po"] * c) * jnp.tanh(c), c


def peepholes_on_the_old(w, x, s):
    h, c = s
    i, f, g, o = jnp.split(w["hh"] @ h + w["ih"] @ x + w["b"], 4)
    i, f, o = i + w["pi"] * c, f + w["pf"] * c, o + w["po"] * c
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def two_layers(w, x, s):
    lower, upper = s
    lower = jnp.tanh(w["hh"] @ lower + w["ih"] @ x)
    return lower, jnp.tanh(w["upper"] @ upper + w["between"] @ lower)


def often_repeated(w, x, h):
    return lax.fori_loop(0, 3, lambda _, h: jnp.tanh(w["hh"] @ h + w["ih"] @ x), h)


@jax.custom_vjp
def hard(w, h):
    return jnp.sign(w @ h)


hard.defvjp(lambda w, h: (hard(w, h), (w, h)), lambda kept, d: (jnp.outer(d, kept[1]), kept[0].T @ d))


def of_a_derivative_of_its_own(w, x, h):
    return 0.5 * h + 0.5 * hard(w["hh"], h) + w["ih"] @ x


def convolutional(w, x, s):
    seen = lax.conv_general_dilated(s[None], w["kernel"], (1,), "SAME")[0]
    return jnp.tanh(seen + (w["ih"] @ x)[:, None] + w["b"][:, None])


def fast_weights(w, x, s):
    """A state that is in part a matrix, which the rest is multiplied with."""
    h, fast = s
    h = jnp.tanh(w["hh"] @ h + w["ih"] @ x + fast @ h)
    return h, 0.9 * fast + 0.1 * jnp.outer(h, h)


def hyper(w, x, h):
    """Recurrent weights that are made from the input."""
    return jnp.tanh((w["hh"] + jnp.tensordot(x, w["by_x"], 1)) @ h)


CONSTANT = np.linspace(-1, 1, H * H).reshape(H, H)


def with_constants(w, x, h):
    return jnp.tanh(jnp.asarray(CONSTANT) @ (w["a"] * h) + w["ih"] @ x) + jnp.asarray(CONSTANT[0])


def compiled_on_its_own(w, x, h):
    return jax.jit(leaky)(w, x, h)


def of_weights_alone(w, x, s):
    """Parts of the state that do not ask for the state, or are what they were."""
    h, made, kept = s
    return jnp.tanh(w["hh"] @ h + w["ih"] @ x + made * kept), jnp.sin(w["b"]), kept


def rounded(w, x, h):
    """What is decided by numbers without a derivative."""
    open_ = (jnp.round(10 * h).astype(jnp.int32) % 2).astype(h.dtype)
    return jnp.tanh(open_ * (w["hh"] @ h) + w["ih"] @ x)


def reset_by_the_input(w, x, h):
    return jnp.where(x[0] > 0, 0.0, jnp.tanh(w["hh"] @ h)) + w["ih"] @ x


def normalised_after(w, x, s):
    """A second layer that sees the first by a normalisation with weights of its own."""
    lower, upper = s
    lower = jnp.tanh(w["hh"] @ lower + w["ih"] @ x)
    seen = w["scale"] * (lower - lower.mean()) / jnp.sqrt(lower.var() + 0.1) + w["b"]
    return lower, jnp.tanh(w["between"] @ jnp.concatenate([seen, upper, w["b"]]))


def looked_up(w, x, h):
    """Weights chosen by the input, and by the state that weights have made."""
    h = jnp.tanh(w["table"][(x[0] > 0).astype(int)] + w["hh"] @ h)
    return h + w["table"][jnp.argmax(h)] / (1 + w["table"][0] ** 2)


def mixed_by_the_input(w, x, s):
    """A way between two layers that the input opens, by parts of it and by a number that it makes with weights."""
    lower, upper = s
    by = jnp.split(w["by_x"] @ x, 2)
    lower = jnp.tanh(w["hh"] @ lower + by[0])
    return lower, jnp.where(x[0] > 0, jnp.tanh(w["between"] @ (by[1] * lower)), upper)


def added_before_products(w, x, s):
    """What the input makes with weights goes through a product, and then through others."""
    h, c = s
    h = jnp.tanh(w["hh"] @ (h + w["ih"] @ x))
    return h, jnp.tanh(w["between"] @ (h + w["ih"] @ x) + c)


def masked(w, x, h):
    """Among the weights one that is none."""
    return jnp.tanh(w["hh"] @ jnp.where(w["mask"] > 0, jnp.tanh(w["hh"] @ h), h) + w["ih"] @ x)


def of_fixed_decay(w, x, h):
    return 0.9 * h + w["ih"] @ x


def forgetful(w, x, h):
    return jnp.tanh(w["ih"] @ x)


def without_weights(w, x, h):
    return 0.9 * jnp.sin(h) + jnp.sum(x)


PLAIN = {"hh": (H, H), "ih": (H, IN), "b": (H,)}
PEEPHOLES = {"hh": (4 * H, H), "ih": (4 * H, IN), "b": (4 * H,), "pi": (H,), "pf": (H,), "po": (H,)}
PAIR = (np.zeros(H), np.zeros(H))
KINDS = [
    Kind(leaky, PLAIN, "by number"),
    Kind(concatenated, {"w": (H, H + IN), "b": (H,)}, "by number"),
    Kind(gated_by_the_input, {"hh": (H, H), "g": (H, IN)}, "by number"),
    Kind(gated_before_a_bias, {"hh": (H, H), "g": (H, IN), "b": (H,)}, "nested"),
    Kind(decaying, {"a": (H,), "ih": (H, IN)}, "by number"),
    Kind(normalised, {"hh": (H, H), "ih": (H, IN), "scale": (H,)}, "nested"),
    Kind(peepholes, PEEPHOLES, "nested", PAIR),
    Kind(peepholes_on_the_old, PEEPHOLES, "parts", PAIR),
    Kind(two_layers, {"hh": (H, H), "ih": (H, IN), "upper": (H, H), "between": (H, H)}, "nested", PAIR),
    Kind(often_repeated, PLAIN, "nested"),
    Kind(of_a_derivative_of_its_own, PLAIN, "nested"),
    Kind(convolutional, {"kernel": (H, H, 3), "ih": (H, IN), "b": (H,)}, "by number", np.zeros((H, 4))),
    Kind(fast_weights, PLAIN, "parts", (np.zeros(H), np.zeros((H, H)))),
    Kind(hyper, {"hh": (H, H), "by_x": (IN, H, H)}, "parts"),
    Kind(with_constants, {"a": (H,), "ih": (H, IN)}, "parts"),
    Kind(compiled_on_its_own, PLAIN, "by number"),
    Kind(of_weights_alone, PLAIN, "by number", (np.zeros(H), np.zeros(H), np.zeros(H))),
    Kind(rounded, {"hh": (H, H), "ih": (H, IN)}, "parts"),
    Kind(reset_by_the_input, {"hh": (H, H), "ih": (H, IN)}, "nested"),
    Kind(normalised_after, PLAIN | {"scale": (H,), "between": (H, 3 * H)}, "nested", PAIR),
    Kind(looked_up, {"hh": (H, H), "table": (4, H)}, "nested"),
    Kind(mixed_by_the_input, {"hh": (H, H), "between": (H, H), "by_x": (2 * H, IN)}, "nested", PAIR),
    Kind(added_before_products, PLAIN | {"between": (H, H)}, "nested", PAIR),
    Kind(masked, {"hh": (H, H), "ih": (H, IN), "mask": (H,)}, "nested"),
    Kind(of_fixed_decay, {"ih": (H, IN)}, "by number"),
    Kind(forgetful, {"ih": (H, IN)}, "by number"),
    Kind(without_weights, {}, "parts"),
]


def first_array(state):
    return jax.tree.leaves(state)[0].reshape(-1)


def network_of(kind, seed=0):
    rng = np.random.default_rng(seed)
    cell = Cell({name: jnp.asarray(rng.normal(size=shape)) for name, shape in kind.shapes.items()}, kind.equations)
    readout = eqx.nn.Linear(first_array(kind.state).size, 2, key=jax.random.key(seed))
    return bp.Network(cell, readout, bp.losses.squared_error, first_array, state=kind.state)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.equations.__name__)
def test_parts_are_found_where_there_are_some(kind):
    network = network_of(kind)
    parts = taken_apart(network.cell, jnp.zeros(IN), jax.tree.map(jnp.asarray, kind.state))
    found = "nested" if isinstance(parts, Nested) else "by number" if parts.by_number else "parts"
    assert found == kind.found


def plain_loss(network, xs, ys):
    def step(s, at):
        s = network.cell(at[0], s)
        return s, network.loss(network.readout(network.output(s)), at[1])

    def one(xs, ys):
        return jnp.sum(lax.scan(step, network.zero_state(), (xs, ys))[1])

    return jnp.mean(jax.vmap(one, in_axes=1)(xs, ys))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.equations.__name__)
def test_gradients_are_those_of_the_cell_as_it_is(kind, monkeypatch):
    network, rng = network_of(kind), np.random.default_rng(1)
    xs, ys = jnp.asarray(rng.normal(size=(STEPS, BATCH, IN))), jnp.asarray(rng.normal(size=(STEPS, BATCH, 2)))
    synthesiser = bp.LinearSynthesiser(network.state_size)
    synthesiser = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), synthesiser)

    def found():
        rules = [bp.BPTT(), bp.TruncatedBPTT(2), bp.BPLambda(0.7, 0.9, 0.5)]
        return eqx.filter_jit(lambda: [bp.sequence_gradients(network, synthesiser, r, xs, ys)[0] for r in rules])()

    taken = found()
    assert distance(taken[0].network, eqx.filter_jit(eqx.filter_grad(plain_loss))(network, xs, ys)) < 1e-12
    for other in (in_one_piece, lambda cell, x, s: _nested(_traced(cell, x, s))):
        monkeypatch.setattr("bplambda.timeloop.taken_apart", other)
        jax.clear_caches()
        assert distance(taken, found()) < 1e-12


@pytest.mark.parametrize("equations", [peepholes, normalised_after, looked_up])
def test_nested_cells_may_be_cut_into_windows(equations):
    kind = next(kind for kind in KINDS if kind.equations is equations)
    network, rng = network_of(kind), np.random.default_rng(2)
    xs, ys = jnp.asarray(rng.normal(size=(STEPS, BATCH, IN))), jnp.asarray(rng.normal(size=(STEPS, BATCH, 2)))
    synthesiser = jax.tree.map(lambda a: a + 0.1, bp.LinearSynthesiser(network.state_size))
    rule = bp.BPLambda(0.7, 0.9, 0.5)
    whole, *cut = (bp.sequence_gradients(network, synthesiser, rule, xs, ys, window=k)[0] for k in (STEPS, 1, 3))
    for gradients in cut:
        assert distance(gradients, whole) < 1e-12


def test_known_cells_have_the_parts_that_are_written_down():
    cell = eqx.nn.GRUCell(IN, H, key=jax.random.key(0))
    assert taken_apart(cell, jnp.zeros(IN), jnp.zeros(H)) is factors(cell)


def test_what_a_cell_prints_is_printed(capfd):
    class Printing(eqx.Module):
        cell: eqx.nn.GRUCell

        def __call__(self, x, h):
            jax.debug.print("saw {}", x[0])
            return self.cell(x, h)

    kind = KINDS[0]
    network = network_of(kind)
    cell = eqx.nn.GRUCell(IN, H, key=jax.random.key(0))
    plain, printing = (bp.Network(c, network.readout, network.loss, state=np.zeros(H)) for c in (cell, Printing(cell)))
    xs, ys = jnp.arange(5.0)[:, None, None] * jnp.ones((5, 1, IN)), jnp.ones((5, 1, 2))

    def gradients(network):
        return bp.sequence_gradients(network, bp.LinearSynthesiser(H), bp.BPLambda(), xs, ys)[0].network.cell

    found = gradients(printing)
    jax.effects_barrier()
    seen = dict.fromkeys(capfd.readouterr().out.splitlines())  # the first step may be there twice
    assert list(seen) == [f"saw {t}.0" for t in range(5)]
    assert distance(found.cell, gradients(plain)) < 1e-12


# What a cell may do next with two of the vectors that it has, a and b; w is a matrix and v a vector of its weights.
OPERATIONS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "product": lambda w, v, a, b: w @ a,
    "gain": lambda w, v, a, b: v * a,
    "bias": lambda w, v, a, b: a + v,
    "quotient": lambda w, v, a, b: a / (2 + v * v),
    "sum": lambda w, v, a, b: a - b,
    "gate": lambda w, v, a, b: a * jax.nn.sigmoid(b),
    "tanh": lambda w, v, a, b: jnp.tanh(a),
    "relu": lambda w, v, a, b: jax.nn.relu(a) + 0.1 * b,
    "norm": lambda w, v, a, b: (a - a.mean()) / jnp.sqrt(a.var() + 0.1),
    "both": lambda w, v, a, b: (w @ jnp.concatenate([a, b])[::2]) + jnp.split(jnp.concatenate([b, a]), 2)[0],
    "choice": lambda w, v, a, b: jnp.where(a > v, a, b),
    "decay": lambda w, v, a, b: jnp.exp(-jnp.abs(v)) * a + (1 - jnp.exp(-jnp.abs(v))) * b,
    "loop": lambda w, v, a, b: lax.fori_loop(0, 2, lambda _, h: jnp.tanh(w @ h + b), a),
}


@st.composite
def made_up_cells(draw):
    """A cell of a few operations, each on what there is by then: two vectors of state, one of the input's, what came
    before."""
    steps = draw(st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), *(st.integers(0, 9),) * 2), max_size=7))
    ends = draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))

    def equations(w, x, s):
        known = [*s, w["ih"] @ x, x[:1] * jnp.ones(H)]
        for n, (name, a, b) in enumerate(steps):
            found = OPERATIONS[name](w[f"w{n}"], w[f"v{n}"], known[-1 - a % len(known)], known[-1 - b % len(known)])
            known.append(found)
        return tuple(jnp.tanh(known[-1 - end % len(known)]) for end in ends)

    shapes = {"ih": (H, IN)} | {f"w{n}": (H, H) for n in range(len(steps))} | {f"v{n}": (H,) for n in range(len(steps))}
    return Kind(equations, shapes, "parts", PAIR)


@settings(max_examples=10, deadline=None)
@given(kind=made_up_cells(), seed=st.integers(0, 99))
def test_made_up_cells_have_their_gradients(kind, seed):
    network, rng = network_of(kind, seed), np.random.default_rng(seed)
    xs, ys = jnp.asarray(rng.normal(size=(STEPS, BATCH, IN))), jnp.asarray(rng.normal(size=(STEPS, BATCH, 2)))
    gradients, _ = bp.sequence_gradients(network, None, bp.BPTT(), xs, ys)
    assert distance(gradients.network, eqx.filter_jit(eqx.filter_grad(plain_loss))(network, xs, ys)) < 1e-10
