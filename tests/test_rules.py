"""The contract: carries, windows, what info holds, vmap and jit, memory."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bplambda as bp
from bplambda import cells, traces
from bplambda import unroll as unrolling
from bplambda.unroll import silent_steps, unroll
from bplambda.verify.identities import all_rules, distance
from bplambda.verify.problems import CELLS, problem
from in_one_piece import in_one_piece  # pyrefly: ignore[missing-import]

LSTM = problem(1, "lstm")


def compiled(function):
    """A program of its own, whatever has been changed since the last: operation by operation takes much longer."""
    return eqx.filter_jit(lambda *args: function(*args))


def rule_name(rule):
    return type(rule).__name__ + str(getattr(rule, "n", ""))


@pytest.mark.parametrize("rule", all_rules(1), ids=rule_name)
def test_info_and_gradients_have_the_shapes_they_promise(rule):
    p = LSTM
    gradients, info = p.gradients(rule)
    steps, batch, size = 7, 2, p.network.state_size
    assert size == 6
    assert info.loss.shape == ()
    assert info.predictions.shape == (steps, batch, 2)
    assert info.states.shape == info.synthetic.shape == (steps, batch, size)
    assert not np.any(info.synthetic[-1]), "no synthetic gradient at the end"
    for found, module in ((gradients.network, p.network), (gradients.synthesiser, p.synthesiser)):
        assert jax.tree.structure(found) == jax.tree.structure(module)
        assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, module)


@pytest.mark.parametrize("rule", all_rules(1), ids=rule_name)
def test_loss_and_predictions_are_those_of_the_network(rule):
    p = LSTM
    _, info = p.gradients(rule)
    states, loss = p.network.zero_state(2), 0.0
    for t in range(7):
        states = jax.vmap(p.network.cell)(p.xs[t], states)
        predictions = jax.vmap(p.network.readout)(states[0])
        np.testing.assert_allclose(info.predictions[t], predictions, atol=1e-12)
        np.testing.assert_allclose(info.states[t], jnp.concatenate(states, axis=-1), atol=1e-12)
        loss += float(jnp.mean(p.weights[t] * jax.vmap(p.network.loss)(predictions, p.ys[t])))
    np.testing.assert_allclose(info.loss, loss, atol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_jacobians_and_their_products(name):
    p = problem(2, name)
    network, steps = p.network, len(p.xs)
    unrolled = compiled(unroll)(network, network.zero_state(2), p.xs, p.ys, p.weights)
    jacobians, transport = (compiled(f)() for f in (unrolled.jacobians, lambda: unrolled.transport(0.7)))

    def after(s, xs):
        return network.flatten(jax.lax.scan(lambda s, x: (network.cell(x, s), None), network.unflatten(s), xs)[0])

    for t in (0, steps - 1):
        step, rest = (
            compiled(jax.vmap(jax.jacobian(after), in_axes=(0, 1)))(unrolled.states[t], xs)
            for xs in (p.xs[t : t + 1], p.xs[t:])
        )
        np.testing.assert_allclose(jacobians[t], step, atol=1e-12)
        np.testing.assert_allclose(transport[t], 0.7 ** (steps - t) * rest, atol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_a_known_cell_is_what_an_unknown_one_would_be(name, monkeypatch):
    """Cells that are taken apart for speed, against the same cells as they are."""
    p = problem(4, name)
    fast = [eqx.filter_jit(lambda rule: p.gradients(rule))(rule) for rule in all_rules(4)]
    monkeypatch.setattr("bplambda.timeloop.taken_apart", in_one_piece)
    jax.clear_caches()
    slow = [eqx.filter_jit(lambda rule: p.gradients(rule))(rule) for rule in all_rules(4)]
    assert distance(fast, slow) < 1e-12


@pytest.mark.parametrize("make", [eqx.nn.LSTMCell, eqx.nn.GRUCell])
def test_cells_without_bias(make, getkey):
    network = bp.Network(make(2, 3, use_bias=False, key=getkey()), eqx.nn.Linear(3, 2, key=getkey()), LSTM.network.loss)
    found, _ = bp.sequence_gradients(network, None, bp.BPTT(), LSTM.xs, LSTM.ys)

    def loss(network):
        def step(state, at):
            state = jax.vmap(network.cell)(at[0], state)
            return state, jnp.mean(jax.vmap(network.loss)(jax.vmap(network.readout)(network.output(state)), at[1]))

        return jnp.sum(jax.lax.scan(step, network.zero_state(2), (LSTM.xs, LSTM.ys))[1])

    assert distance(found.network, compiled(jax.grad(loss))(network)) < 1e-12


class Oscillator(eqx.Module):
    """A cell of a kind the library has never seen: a nested state, of several shapes, and a mask of integers."""

    w: jax.Array
    mask: jax.Array

    def __call__(self, x, state):
        position = state["p"] + 0.1 * state["v"]["inner"]
        force = jnp.tanh(self.w @ position.reshape(-1) + x)
        velocity = state["v"]["inner"] * self.mask.astype(x.dtype) + force.reshape(2, 2)
        return {"p": position, "v": {"inner": velocity}}


@pytest.mark.parametrize("rule", all_rules(1), ids=rule_name)
def test_any_cell_with_any_pytree_as_its_state(rule, getkey):
    state = {"p": jnp.zeros((2, 2)), "v": {"inner": jnp.zeros((2, 2))}}
    cell = Oscillator(jax.random.normal(getkey(), (4, 4)), jnp.array([[1, 0], [1, 1]]))
    readout = eqx.nn.Linear(4, 2, key=getkey())
    network = bp.Network(cell, readout, bp.losses.squared_error, lambda s: s["v"]["inner"].reshape(-1), state=state)
    assert network.state_size == 8
    synthesiser = jax.tree.map(lambda a: jax.random.normal(getkey(), a.shape), bp.LinearSynthesiser(8))
    xs, ys = jax.random.normal(getkey(), (6, 3, 4)), jax.random.normal(getkey(), (6, 3, 2))
    gradients, _ = bp.sequence_gradients(network, synthesiser, rule, xs, ys)
    assert gradients.network.cell.mask is None
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients.network))
    if isinstance(rule, bp.BPLambda):
        one_by_one, _ = bp.sequence_gradients(network, synthesiser, rule, xs, ys, window=1)
        assert distance(gradients, one_by_one) < 1e-12


@pytest.mark.parametrize("rule", all_rules(1), ids=rule_name)
def test_a_sequence_starts_afresh_after_the_last(rule):
    p, window_of = LSTM, compiled(rule.window)
    size = rule.window_size(7)

    def sequence(carry):
        total = None
        for start in range(0, 7, size):
            data = (a[start : start + size] for a in (p.xs, p.ys, p.weights))
            window = bp.Window(*data, last=start + size == 7)
            gradients, carry, _ = window_of(p.network, p.synthesiser, carry, window)
            total = gradients if total is None else jax.tree.map(jnp.add, total, gradients)
        return total, carry

    first, carry = sequence(rule.init(p.network, p.synthesiser, 2))
    assert distance(carry, rule.init(p.network, p.synthesiser, 2)) == 0
    second, _ = sequence(carry)
    assert distance(first, second) == 0


def test_hyperparameters_may_be_traced_and_mapped():
    p, lams = LSTM, jnp.array([0.0, 0.5, 1.0])
    mapped = jax.vmap(lambda lam: p.gradients(bp.BPLambda(lam, 0.9, 0.1), window=2)[0])(lams)
    for i, lam in enumerate(lams):
        alone, _ = p.gradients(bp.BPLambda(lam, 0.9, 0.1), window=2)
        assert distance(jax.tree.map(lambda a, i=i: a[i], mapped), alone) < 1e-12


def test_truncation_may_be_mapped_and_cut_into_windows():
    p = problem(1, "gru")
    for make in (bp.TruncatedBPTT, lambda n: bp.NStepSG(n, 0.8, 0.5)):
        mapped = jax.vmap(lambda n, make=make: p.gradients(make(n))[0])(jnp.arange(1, 9))
        for n in range(1, 9):
            alone = jax.tree.map(lambda a, n=n: a[n - 1], mapped)
            assert distance(alone, p.gradients(make(n))[0]) < 1e-12
            assert distance(alone, p.gradients(make(n), window=n)[0]) < 1e-12
        assert distance(p.gradients(make(2))[0], p.gradients(make(2), window=4)[0]) < 1e-12


def test_another_lambda_does_not_compile_again():
    traces = []

    @eqx.filter_jit
    def gradients(rule):
        traces.append(rule)
        return LSTM.gradients(rule)

    for lam in (0.1, 0.2, 0.3):
        gradients(bp.BPLambda(lam, 0.9, 1.0))
    assert len(traces) == 1


def test_networks_may_be_mapped(getkey):
    """Seeds under one vmap: the same as one after the other."""
    p = problem(1, "gru")

    def make(key):
        readout = eqx.nn.Linear(3, 2, key=key)
        return bp.Network(eqx.nn.GRUCell(2, 3, key=key), readout, bp.losses.squared_error)

    def gradients(network):
        return p._replace(network=network).gradients(bp.BPLambda(1.0, 0.9, 1.0), window=3)[0]

    keys = jax.random.split(getkey(), 3)
    mapped = jax.vmap(gradients)(jax.vmap(make)(keys))
    for i in range(3):
        assert distance(jax.tree.map(lambda a, i=i: a[i], mapped), gradients(make(keys[i]))) < 1e-12


def test_targets_without_a_loss_are_not_looked_at():
    p = LSTM
    hidden = p._replace(ys=jnp.where(p.weights[..., None] == 0, jnp.nan, p.ys))
    assert np.any(np.isnan(hidden.ys))
    for rule in (bp.BPTT(), bp.BPLambda(0.5, 0.9, 1.0)):
        assert distance(p.gradients(rule), hidden.gradients(rule)) == 0


def test_weights_of_time_alone():
    p, weights = LSTM, jnp.array([0, 1, 0, 2, 0.5, 0, 1])
    rule = bp.BPLambda(0.5, 0.9, 1.0)
    a = p._replace(weights=weights).gradients(rule)
    b = p._replace(weights=jnp.broadcast_to(weights[:, None], (7, 2))).gradients(rule)
    assert distance(a, b) == 0


@pytest.mark.parametrize("rule", all_rules(3), ids=rule_name)
def test_weights_that_are_known_while_compiling(rule):
    """As a NumPy array they tell where nothing need be read out; a target there may be anything, as elsewhere."""
    p = LSTM
    weights = np.linspace(-1.0, 2.0, len(p.xs))
    weights[: len(weights) // 2] = 0.0
    ys = p.ys.at[0].set(jnp.nan)

    def gradients(network, weights):
        return bp.sequence_gradients(network, p.synthesiser, rule, p.xs, ys, weights)

    known = eqx.filter_jit(lambda network: gradients(network, weights))(p.network)
    traced = gradients(p.network, weights)
    assert distance(known, traced) < 1e-12
    assert known[1].predictions.shape == traced[1].predictions.shape


@pytest.mark.parametrize("name", CELLS)
def test_where_nothing_is_read_out_the_gradient_is_the_same(name):
    p, weights = problem(5, name), np.array([0.0, 0.0, 1.0, 0.0, 2.0])
    xs, ys = p.xs[:5], p.ys[:5]

    def gradients(network, weights):
        carry = bp.Carry(network.zero_state(xs.shape[1]), None)
        return bp.BPLambda().window(network, p.synthesiser, carry, bp.Window(xs, ys, weights, last=True))[0]

    known = eqx.filter_jit(lambda network: gradients(network, weights))(p.network)
    assert distance(known, eqx.filter_jit(gradients)(p.network, jnp.asarray(weights))) < 1e-12


def test_other_weights_do_not_compile_again(monkeypatch):
    """Called from Python, not even as NumPy arrays."""
    p, traced = problem(9, "rnn"), []
    forward = unrolling.forward
    monkeypatch.setattr(unrolling, "forward", lambda *args: traced.append(args) or forward(*args))
    rule, steps = bp.BPLambda(), len(p.xs)
    losses = [bp.sequence_gradients(p.network, p.synthesiser, rule, p.xs, p.ys, w)[1].loss for w in np.eye(steps)]
    assert len(traced) == 1
    assert len(set(map(float, losses))) == steps


def test_where_nothing_is_read_out():
    assert silent_steps(None) == silent_steps(jnp.zeros(3)) == silent_steps(np.ones(3)) == 0
    assert silent_steps(np.array([0.0, 0.0, 1.0, 0.0])) == 2
    assert silent_steps(np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])) == 1
    assert silent_steps(np.zeros(3)) == 2, "something is left to take the shape of"
    p = LSTM

    # Compiled without its info, a program reads out what has a loss alone: the products of 2 steps, not of 7.
    def cost(weights):
        def gradients(network, xs):
            window = bp.Window(xs, p.ys, weights, last=True)
            return bp.BPLambda().window(network, p.synthesiser, bp.Carry(network.zero_state(2), None), window)[0]

        found = jax.jit(lambda n, xs: jax.tree.leaves(gradients(n, xs))).lower(p.network, p.xs).compile()
        return (found.cost_analysis() or {})["flops"]

    few = np.array([0.0] * 5 + [1.0] * 2)
    assert cost(few) < cost(np.ones(7))


def test_scale_reaches_the_network_and_nothing_else():
    p = LSTM
    full, half = (p.gradients(bp.BPLambda(0.5, 0.9, scale))[0] for scale in (1.0, 0.5))
    assert distance(full.synthesiser, half.synthesiser) == 0
    assert distance(full.network.cell, half.network.cell) > 1e-3
    none, _ = p.gradients(bp.BPLambda(0.5, 0.9, 0.0))
    assert distance(none.network, p.gradients(bp.NoBPTT())[0].network) < 1e-12


def temporary_bytes(lowered) -> int:
    """The peak of the temporary memory of a program, as XLA plans it."""
    analysis = lowered.compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def test_one_step_at_a_time_needs_memory_that_does_not_grow():
    rule = bp.BPLambda(0.9, 0.9, 1.0)
    network = jax.tree.map(lambda a: a.astype("float32"), problem(1, "gru").network)
    synthesiser = bp.LinearSynthesiser(3, "float32")

    @jax.jit
    def stream(xs, ys):
        def step(carry, at):
            x, y = at
            gradients, carry, info = rule.window(network, synthesiser, carry, bp.Window(x[None], y[None]))
            return carry, (info.loss, jnp.sum(gradients.network.cell.bias))

        return jax.lax.scan(step, rule.init(network, synthesiser, 1), (xs, ys))

    def temporary(steps):
        xs, ys = (jax.ShapeDtypeStruct((steps, 1, 2), "float32") for _ in range(2))
        return temporary_bytes(stream.lower(xs, ys))

    assert temporary(1_000) == temporary(100_000) > 0


@pytest.mark.parametrize("synthesiser", ["linear", "mlp"])
@pytest.mark.parametrize("last", [False, jnp.array(False), jnp.array(True)], ids=["goes on", "goes on?", "ends?"])
def test_traces_are_moved_one_by_one_as_they_are_all_at_once(synthesiser, last, monkeypatch):
    p = problem(3, "lstm", batch=3, synthesiser=synthesiser)
    rule = bp.BPLambda(0.8, 0.9, 1.0)
    zero = rule.init(p.network, p.synthesiser, 3)
    assert not isinstance(zero.memory, traces.Deferred), "it is small"
    memory = jax.tree.map(lambda e: jax.random.normal(jax.random.key(e.ndim), e.shape), zero.memory)
    found = []
    for large in (0, 2**62):
        monkeypatch.setattr(traces, "LARGE", large)
        window = bp.Window(p.xs[:3], p.ys[:3], p.weights[:3], last=last)
        found.append(compiled(rule.window)(p.network, p.synthesiser, zero._replace(memory=memory), window))
    assert distance(*found) < 1e-12
    assert bool(optax.tree.norm(found[0][1].memory) == 0) == bool(last)


@pytest.mark.parametrize("synthesiser", ["linear", "conditional"])
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_a_deferred_trace_is_the_trace(name, synthesiser, monkeypatch):
    """Windows of many sizes, one after the other, some of which find no room; θ changes in between."""
    p = problem(3, name, hidden=12, batch=3, steps=20)
    size = p.network.state_size
    g = p.synthesiser if synthesiser == "linear" else bp.ConditionalSynthesiser(size, conditions=1)
    rule = bp.BPLambda(0.8, 0.9, 1.0)

    def found(large):
        monkeypatch.setattr(traces, "LARGE", large)
        window_of = compiled(rule.window)
        theta, carry, start, total = g, rule.init(p.network, g, 3), 0, []
        assert isinstance(carry.memory, traces.Deferred) == (large == 0)
        for i, steps in enumerate((1, 1, 1, 1, 2, 1, 3, 1, 1, 2, 1, 1, 1, 1, 2)):
            now = slice(start, start + steps)
            last = jnp.array(i == 11)
            window = bp.Window(p.xs[now], p.ys[now], p.weights[now], last=last)
            gradients, carry, _ = window_of(p.network, theta, carry, window)
            theta = jax.tree.map(lambda t, d: t - 0.1 * d, theta, gradients.synthesiser)
            total.append(gradients)
            start += steps
        return total

    assert distance(found(0), found(2**62)) < 1e-12


def test_the_end_of_a_sequence_forgets_a_deferred_trace_that_is_not_finite(monkeypatch):
    p, rule = problem(3, "gru", hidden=12, batch=3, steps=20), bp.BPLambda(0.8, 0.9, 1.0)
    monkeypatch.setattr(traces, "LARGE", 0)
    fresh, window_of = rule.init(p.network, p.synthesiser, 3), compiled(rule.window)
    assert isinstance(fresh.memory, traces.Deferred)
    broken = jax.tree.map(lambda e: jnp.full_like(e, jnp.inf), fresh.memory.trace)
    carry = fresh._replace(memory=traces.from_now_on(fresh.memory, broken))
    window = bp.Window(p.xs[:1], p.ys[:1], p.weights[:1], last=jnp.array(True))
    gradients, carry, _ = window_of(p.network, p.synthesiser, carry, window)
    assert not np.all(np.isfinite(gradients.synthesiser.weight)), "it is not hidden"
    for t in range(1, 10):  # it catches up every 3 steps
        window = bp.Window(p.xs[t : t + 1], p.ys[t : t + 1], p.weights[t : t + 1])
        wanted, fresh, _ = window_of(p.network, p.synthesiser, fresh, window)
        found, carry, _ = window_of(p.network, p.synthesiser, carry, window)
        assert distance(found, wanted) < 1e-12


@pytest.mark.parametrize("known", [True, False], ids=["known", "traced"])
@pytest.mark.parametrize("wrong", [1.0, np.nan])
def test_a_sequence_knows_nothing_of_the_one_before(wrong, known, monkeypatch):
    """Whatever the sizes of their windows: there is room for 3 steps in the deferred trace."""
    monkeypatch.setattr(traces, "LARGE", 0)
    p, rule = problem(3, "gru", hidden=12, batch=3, steps=8), bp.BPLambda(0.8, 0.9, 1.0)
    wanted, _ = bp.sequence_gradients(p.network, p.synthesiser, rule, p.xs, p.ys, p.weights)
    window_of = compiled(rule.window)

    def sequence(carry, xs, sizes):
        start, total = 0, []
        for steps in sizes:
            now, last = slice(start, start + steps), start + steps == len(xs)
            window = bp.Window(xs[now], p.ys[now], p.weights[now], last=last if known else jnp.array(last))
            gradients, carry, _ = window_of(p.network, p.synthesiser, carry, window)
            total.append(gradients)
            start += steps
        return jax.tree.map(lambda *parts: sum(parts), *total), carry

    sizes = ([1] * 8, [4] * 2, [2, 1, 5])
    for first, second in itertools.product(sizes, sizes):
        fresh = rule.init(p.network, p.synthesiser, 3)
        before, carry = sequence(fresh, p.xs.at[1].multiply(wrong), first)
        assert bool(np.all(np.isfinite(before.synthesiser.weight))) == np.isfinite(wrong), "it is not hidden"
        found, _ = sequence(carry, p.xs, second)
        assert distance(found, wanted) < 1e-12


def test_a_synthesiser_that_is_not_linear_is_not_deferred(monkeypatch):
    """∇g would be another one by then. A subclass of a linear one need not be linear."""
    monkeypatch.setattr(traces, "LARGE", 0)

    class Squashed(bp.LinearSynthesiser):
        def __init__(self):
            super().__init__(6)

        def __call__(self, state):
            return jnp.tanh(super().__call__(state))

    for g in (Squashed(), problem(3, "lstm", synthesiser="mlp").synthesiser):
        memory = bp.BPLambda().init(LSTM.network, g, 2).memory
        assert not isinstance(memory, traces.Deferred)
    assert isinstance(bp.BPLambda().init(LSTM.network, bp.LinearSynthesiser(6), 2).memory, traces.Deferred)


def test_a_deferred_trace_costs_less_by_a_power_of_the_size():
    """Operations of a step of a stream, as XLA counts them: of a loop, those of one turn."""
    network, synthesiser = network_and_synthesiser(eqx.nn.GRUCell, 2, 64, 1, bp.losses.squared_error)
    rule = bp.BPLambda(1.0, 0.9, 1.0)

    def step(network, synthesiser, carry, x, y):
        return rule.window(network, synthesiser, carry, bp.Window(x, y))

    carry = jax.eval_shape(lambda n, g: rule.init(n, g, 1), network, synthesiser)
    assert carry.memory.most == 16
    x, y = (jax.ShapeDtypeStruct((1, 1, n), float) for n in (2, 1))

    def operations(carry):
        costs = jax.jit(step).lower(network, synthesiser, carry, x, y).compile().cost_analysis()
        assert costs is not None
        return costs["flops"]

    moved, deferred = operations(carry._replace(memory=carry.memory.trace)), operations(carry)
    catching_up = 2 * 64**4 + 2 * 16 * 64**3 * 2
    assert moved > 2 * 64**4
    assert deferred - catching_up < 0.1 * moved


def test_large_traces_are_moved_in_their_place():
    network, synthesiser = network_and_synthesiser(eqx.nn.GRUCell, 2, 64, 1, bp.losses.squared_error)
    data = (jax.ShapeDtypeStruct((8, 16, n), float) for n in (2, 1))

    @jax.jit
    def gradients(network, synthesiser, xs, ys):
        return bp.sequence_gradients(network, synthesiser, bp.BPLambda(1.0, 0.9, 1.0), xs, ys, window=1)[0]

    trace = 8 * 16 * 64 * 64 * 65
    # A fourth of it for the steps that it has to catch up with, and for their products.
    assert trace < temporary_bytes(gradients.lower(network, synthesiser, *data)) < 1.8 * trace


def network_and_synthesiser(cell, inputs: int, units: int, outputs: int, loss):
    """The shapes of a network and of its synthesiser."""

    def make():
        readout = eqx.nn.Linear(units, outputs, key=jax.random.key(0))
        network = bp.Network(cell(inputs, units, key=jax.random.key(0)), readout, loss)
        return network, bp.LinearSynthesiser(network.state_size)

    return jax.eval_shape(make)


def test_a_whole_sequence_never_forms_a_trace():
    """LSTM of 100 units, batch 100: the trace alone would be 3.2 GB."""
    network, synthesiser = network_and_synthesiser(eqx.nn.LSTMCell, 10, 100, 9, bp.losses.sigmoid_cross_entropy)
    data = (jax.ShapeDtypeStruct((28, 100, n), float) for n in (10, 9))

    @jax.jit
    def gradients(network, synthesiser, xs, ys):
        return bp.sequence_gradients(network, synthesiser, bp.BPLambda(1.0, 0.9, 1.0), xs, ys)[0]

    assert temporary_bytes(gradients.lower(network, synthesiser, *data)) < 200e6


def told(name, seed=3, matrices=1):
    """A problem; and the same, with hints 0 to 3 for a conditional synthesiser."""
    p = problem(seed, name)
    network = bp.Network(
        bp.Told(p.network.cell),
        p.network.readout,
        p.network.loss,
        lambda s: p.network.output(s[0]),
        state=(p.network.zero_state(), jnp.zeros(1)),
    )
    rng = np.random.default_rng(seed)
    steps, batch = p.weights.shape
    hints = jnp.asarray(rng.integers(0, 4, size=(steps, batch, 1)), float)
    weights = p.synthesiser.weight, jnp.asarray(0.3 * rng.normal(size=p.synthesiser.weight.shape))
    weight, bias = jnp.stack(weights[:matrices], axis=1), jnp.asarray(rng.normal(size=(4, p.network.state_size)))
    g = bp.ConditionalSynthesiser(network.state_size, 4, matrices)
    g = eqx.tree_at(lambda g: (g.weight, g.bias), g, (weight, bias))
    return p, p._replace(network=network, synthesiser=g, xs=(p.xs, hints))  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_hints_that_make_no_difference(name):
    """With one bias for all conditions, a conditional synthesiser is a linear one."""
    plain, p = told(name)
    same = jnp.broadcast_to(plain.synthesiser.bias, p.synthesiser.bias.shape)
    p = p._replace(synthesiser=eqx.tree_at(lambda g: g.bias, p.synthesiser, same))
    rule = bp.BPLambda(0.8, 0.9)
    (network, g), info = plain.gradients(rule)
    (network_told, g_told), info_told = p.gradients(rule)
    assert distance((network.cell, network.readout), (network_told.cell.cell, network_told.readout)) < 1e-12
    assert distance((g.weight, g.bias), (g_told.weight[:, 0], jnp.sum(g_told.bias, axis=0))) < 1e-12
    np.testing.assert_allclose(info_told.synthetic[..., :-1], info.synthetic, atol=1e-12)
    assert not np.any(info_told.synthetic[..., -1])


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize("window", [1, 3])
def test_a_synthesiser_that_is_told_has_an_exact_trace_too(name, window):
    _, p = told(name, matrices=2)
    whole, pieces = p.gradients(bp.BPLambda(0.8, 0.9))[0], p.gradients(bp.BPLambda(0.8, 0.9), window)[0]
    assert distance(whole, pieces) < 1e-12
    assert np.all(np.any(whole.synthesiser.bias, axis=1)), "every condition learns"
    assert np.all(np.any(whole.synthesiser.weight, axis=(0, 2))), "so does every matrix"


def test_a_matrix_for_each_condition_modulo_their_number():
    _, p = told("gru", matrices=2)
    g = p.synthesiser
    state = jnp.asarray(np.random.default_rng(0).normal(size=p.network.state_size - 1))
    for k in range(4):
        expected = g.weight[:, k % 2] @ state + g.bias[k]
        np.testing.assert_allclose(g(jnp.append(state, float(k))), np.append(expected, 0.0), atol=1e-14)


def test_a_loss_may_be_undefined_where_it_has_no_weight():
    """Neither its value nor its slope there is looked at."""

    def relative_error(prediction, target):
        return jnp.sum(((prediction - target) / target) ** 2)

    p = LSTM
    network = bp.Network(p.network.cell, p.network.readout, relative_error)
    weights = jnp.array([0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 1.0])
    ys = jnp.where(weights[:, None, None] == 0, jnp.nan, p.ys)
    for rule in (bp.BPLambda(0.5, 0.9), bp.TruncatedBPTT(3), bp.NStepSG(2)):
        found = bp.sequence_gradients(network, p.synthesiser, rule, p.xs, ys, weights)
        one = bp.sequence_gradients(network, p.synthesiser, rule, p.xs, jnp.where(jnp.isnan(ys), 1.0, ys), weights)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found))
        assert distance(found, one) < 1e-12

    def loss(network):
        def step(state, at):
            x, y, weight = at
            state = jax.vmap(network.cell)(x, state)
            each = jax.vmap(relative_error)(jax.vmap(network.readout)(state[0]), y)
            return state, weight * jnp.mean(each)

        targets = jnp.where(jnp.isnan(ys), 1.0, ys)
        return jnp.sum(jax.lax.scan(step, network.zero_state(2), (p.xs, targets, weights))[1])

    found = bp.sequence_gradients(network, None, bp.BPTT(), p.xs, ys, weights)[0].network
    assert distance(found, compiled(jax.grad(loss))(network)) < 1e-10


def test_a_synthesiser_is_arrays_and_nothing_else():
    """So that plain jit, vmap and Optax take it."""
    p = LSTM
    size = p.network.state_size
    mlp = bp.MLPSynthesiser(size, 4, 2, key=jax.random.key(0))
    synthesisers: tuple[Any, ...] = bp.LinearSynthesiser(size), mlp
    for synthesiser in synthesisers:
        modules: Any = p.network, synthesiser
        optax.adam(1e-3).init(modules)
        jitted = jax.jit(lambda g: bp.sequence_gradients(p.network, g, bp.BPLambda(), p.xs, p.ys)[0].synthesiser)
        assert jax.tree.structure(jitted(synthesiser)) == jax.tree.structure(synthesiser)


@pytest.mark.parametrize("known", [True, False])
def test_long_sums_in_half_precision(known):
    """Windows of one step, or a cell that is taken as a whole: what comes late is not rounded away."""

    class Hidden(eqx.Module):
        cell: eqx.nn.GRUCell
        hidden_size: int = eqx.field(static=True, default=4)

        def __call__(self, x, h):
            return self.cell(x, h)

    keys = jax.random.split(jax.random.key(3), 4)
    cell = eqx.nn.GRUCell(2, 4, key=keys[0])
    cell = cell if known else Hidden(cell)
    network = bp.Network(cell, eqx.nn.Linear(4, 1, key=keys[1]), bp.losses.squared_error)
    xs, ys = jax.random.normal(keys[2], (600, 4, 2)), 1 + jax.random.normal(keys[3], (600, 4, 1))

    def with_dtype(tree, dtype):
        return jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, tree)

    rounded = with_dtype((network, xs, ys), jnp.bfloat16)

    def gradients(problem):
        network, xs, ys = problem
        rule = bp.TruncatedBPTT(1)
        return bp.sequence_gradients(network, None, rule, xs, ys, window=1 if known else None)[0].network

    found, exact = gradients(rounded), gradients(with_dtype(rounded, jnp.float64))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        assert a.dtype == jnp.bfloat16
        assert jnp.linalg.norm(a.astype(b.dtype) - b) < 0.05 * jnp.linalg.norm(b)


@pytest.mark.parametrize("cell", [eqx.nn.GRUCell, eqx.nn.LSTMCell])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_nearly_closed_gate_in_half_precision(cell, dtype):
    """Where 1 − tanh is rounded to nothing, a gate would be shut, and nothing could open it again."""
    made = cell(2, 4, dtype=dtype, key=jax.random.key(0))
    made = eqx.tree_at(lambda c: c.bias, made, jnp.full_like(made.bias, -7.0))
    x, h = jnp.ones(2, dtype), jnp.ones(4, dtype)
    state = h if cell is eqx.nn.GRUCell else (h, h)
    parts = cells.factors(made)
    assert parts is not None

    def gates(step):
        def summed(bias, state):
            new = step(eqx.tree_at(lambda c: c.bias, made, bias), x, state)
            return sum(jnp.sum(part) for part in jax.tree.leaves(new))

        return compiled(jax.grad(summed, argnums=(0, 1)))(made.bias, state)

    found, expected = gates(parts.step), gates(lambda c, x, s: c(x, s))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(*(np.asarray(v, float) for v in (a, b)), rtol=0.05, atol=1e-6)


def test_targets_need_a_synthesiser():
    p = LSTM
    with pytest.raises(ValueError, match="synthesiser is None, but must be a synthesiser"):
        bp.synthetic_gradient_targets(p.network, None, bp.BPTT(), p.xs, p.ys)
    rules = bp.BPLambda(0.3, 0.5), bp.DataParallel(bp.BPLambda(0.3, 0.5), 1)
    one, wrapped = (bp.synthetic_gradient_targets(p.network, p.synthesiser, rule, p.xs, p.ys) for rule in rules)
    assert distance(one, wrapped) == 0


def test_a_cell_within_another_has_its_gradient():
    class Wrapped(eqx.Module):
        cell: eqx.nn.GRUCell
        hidden_size: int = eqx.field(static=True, default=3)

        def __call__(self, x, h):
            return self.cell(x, h)

    p = problem(4, "gru")
    network = bp.Network(Wrapped(p.network.cell), p.network.readout, p.network.loss)
    for rule in (bp.BPLambda(0.5, 0.9), bp.BPTT()):
        window = unrolled_gradients(rule, network, p)
        assert distance(window.cell.cell, unrolled_gradients(rule, p.network, p).cell) < 1e-12


def unrolled_gradients(rule, network, p):
    carry = bp.Carry(network.zero_state(p.xs.shape[1]), None)
    window = bp.Window(p.xs, p.ys, p.weights, last=True)
    return compiled(rule.window)(network, p.synthesiser, carry, window)[0].network


@pytest.mark.parametrize("at", [(0.0, 0.5), (0.5, 0.0), (1.0, 1.0)])
def test_targets_have_a_derivative_at_the_ends_of_lambda_and_gamma(at):
    p = problem(5, "gru", steps=4)

    def total(lam, gamma):
        targets = bp.synthetic_gradient_targets(p.network, p.synthesiser, bp.BPLambda(lam, gamma), p.xs, p.ys)
        return sum(jnp.sum(a) for a in targets)

    # Of polynomials, inwards from where they are still defined.
    step = 1e-6
    inwards = [step if number < 1 else -step for number in at]
    wanted = [(total(at[0] + inwards[0], at[1]) - total(*at)) / inwards[0]]
    wanted += [(total(at[0], at[1] + inwards[1]) - total(*at)) / inwards[1]]
    np.testing.assert_allclose(jax.grad(total, (0, 1))(*at), np.array(wanted), rtol=1e-4, atol=1e-4)
