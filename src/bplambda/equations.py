"""How a cell that the library does not know is taken apart all the same: by the equations that JAX traces it to."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jaxtyping import Array, PyTree

from .cells import Factors, Nested, factors

# What weights may do to a state, and what may then happen to it until the last weight has been there, if all of it is
# to be `products`: nothing whose derivative asks for more than the weights and the state.
_ADDS = {"add", "neg", "sub"}
_MOVES = {"broadcast_in_dim", "concatenate", "convert_element_type", "reshape", "slice", "split", "squeeze"}
_MOVES |= {"transpose"}
_MULTIPLIES = {"conv_general_dilated", "div", "dot_general", "mul"}

# What treats each number by itself, and does not say how many there are.
_BY_NUMBER = {"abs", "add", "cos", "div", "exp", "integer_pow", "log", "logistic", "max", "min", "mul", "neg", "sign"}
_BY_NUMBER |= {"sin", "sqrt", "square", "sub", "tanh"}


def taken_apart(cell: Any, x: PyTree, s: PyTree) -> Factors | Nested:
    """The parts of any cell, for an input and a state of such shapes."""
    known = factors(cell)
    if known is not None:
        return known
    traced = _traced(cell, x, s)
    return _factors(traced) or _nested(traced)


class _Traced(NamedTuple):
    """A cell's equations, in order, and what is what in them.

    - `of_cell`, `of_s`: the cell's arrays; the state.
    - `by_s`: what depends on the state. `waiting`: the equations that do.
    - `meetings`: those of them in which there are weights. `since`: what depends on one.
    - `i`: what the others give, as far as `waiting` asks for it, or the next state. `inputs` makes it from cell and x.
    """

    whole: ClosedJaxpr
    after: Any  # the structure of the next state
    of_cell: Sequence[Var]
    of_s: Sequence[Var]
    weights: set[Var]
    by_s: set[Var]
    waiting: list[JaxprEqn]
    meetings: list[JaxprEqn]
    since: set[Var]
    i: list[Var]
    inputs: ClosedJaxpr

    def run_inputs(self, cell: Any, x: PyTree, count: int) -> list[Array]:
        return _run(self.inputs, (cell, x))

    def is_simple(self, e: JaxprEqn) -> bool:
        read, name = _variables(e.invars), e.primitive.name
        if self.since.intersection(read):
            return name in _ADDS | _MOVES
        return name in _ADDS | _MOVES | _MULTIPLIES or not self.weights.intersection(read)


def _traced(cell: Any, x: PyTree, s: PyTree) -> _Traced:
    arrays, static = eqx.partition(cell, eqx.is_array)
    traced, after = jax.make_jaxpr(lambda a, x, s: eqx.combine(a, static)(x, s), return_shape=True)(arrays, x, s)
    whole = jax.make_jaxpr(lambda *given: _inlined(traced.jaxpr, traced.consts, given))(*traced.in_avals)
    equations, results = whole.jaxpr.eqns, set(_variables(whole.jaxpr.outvars))
    n, m = len(jax.tree.leaves(arrays)), len(jax.tree.leaves(s))
    of_cell, of_x, of_s = whole.jaxpr.invars[:n], whole.jaxpr.invars[n:-m], whole.jaxpr.invars[-m:]

    told = [v for e in equations if e.effects for v in e.outvars]  # by the world outside, at every step
    by_s = _after([*of_s, *told], equations)
    by_x = _after(of_x, equations) - by_s
    weights = _after(filter(_is_real, of_cell), equations) - by_x - by_s
    waiting = [e for e in equations if e.effects or by_s.intersection(_variables(e.invars))]
    meetings = [e for e in waiting if weights.intersection(_variables(e.invars)) and _real_outcome(e)]

    # What is split up later on passes from part to part in one piece.
    whence = {v: e.invars[0] for e in equations if e.primitive.name == "split" for v in e.outvars}
    everything = [*whole.jaxpr.invars, *(v for e in equations for v in e.outvars)]
    passed = results.union(_read(waiting)) & by_x | results & weights
    i = list(dict.fromkeys(whence.get(v, v) for v in everything if v in passed))
    inputs = _part(whole, [*of_cell, *of_x], i)
    since = _after([v for e in meetings for v in e.outvars], equations)
    return _Traced(whole, jax.tree.structure(after), of_cell, of_s, weights, by_s, waiting, meetings, since, i, inputs)


def _factors(t: _Traced) -> Factors | None:
    """`products` is what leads from the state to where it meets weights for the last time; `combine`, the rest. `None`
    if more than products lies on that way: its derivatives would need what no part saves."""
    until = _before([v for e in t.meetings for v in e.outvars], t.whole.jaxpr.eqns)
    first = [e for e in t.waiting if until.intersection(e.outvars)]
    last = [e for e in t.waiting if not until.intersection(e.outvars)]
    wanted = {*_read(last), *_variables(t.whole.jaxpr.outvars)}
    p = [v for e in first for v in e.outvars if v in wanted]
    given, end = [*t.i, *p, *t.of_s], t.whole.jaxpr.outvars
    asks_the_cell = _before(_variables(end), t.whole.jaxpr.eqns, given).intersection(t.of_cell)
    if t.whole.effects or asks_the_cell or not all(map(_is_real, t.i + p)) or not all(map(t.is_simple, first)):
        return None
    products, combine = _part(t.whole, [*t.of_cell, *t.i, *t.of_s], p), _part(t.whole, given, end)
    return Factors(
        t.run_inputs,
        products=lambda cell, i, s: _run(products, (cell, i, s)),
        combine=lambda i, p, s: jax.tree.unflatten(t.after, _run(combine, (i, p, s))),
        by_number=_goes_by_number(combine.jaxpr),
    )


def _nested(t: _Traced) -> Nested:
    """Each equation in which the state meets weights is one of the `products`, and gets nudges."""
    jaxpr = t.whole.jaxpr
    nudged = [v for e in t.meetings for v in _real_outcome(e)]

    def asks(e: JaxprEqn) -> list[Var]:
        """What an equation's derivatives by its weights ask for: not what the weights are added to."""
        adds = e.primitive.name in _ADDS | _MOVES
        return [v for v in _variables(e.invars) if not (adds and v in t.by_s)]

    # What weights meet before any others have been there follows from the state.
    asked = [v for e in t.meetings for v in asks(e)]
    met = [*t.of_s, *dict.fromkeys(v for v in asked if v in t.since)]

    def start(cell: Any, i: Sequence[Array], others: Sequence[Var], values: Iterable[Array]) -> dict[Var, Array]:
        names = [*jaxpr.constvars, *t.of_cell, *t.i, *others]
        arrays = jax.tree.leaves(eqx.filter(cell, eqx.is_array))
        return dict(zip(names, [*t.whole.consts, *arrays, *i, *values], strict=True))

    def products(cell: Any, i: Sequence[Array], found: Sequence[Array]) -> list[Array]:
        values = start(cell, i, met, found)
        for e in _leading_to(asked, jaxpr, [*t.i, *met]):
            values |= zip(e.outvars, _bound(jaxpr, e, values), strict=True)
        unasked = {v: jnp.zeros(_shape(v).shape, _shape(v).dtype) for v in _read(t.meetings) if v not in values}
        outcomes = [zip(e.outvars, _bound(jaxpr, e, unasked | values), strict=True) for e in t.meetings]
        return [a for outcome in outcomes for v, a in outcome if _is_real(v)]

    def step(cell: Any, i: Sequence[Array], nudges: Sequence[Array], s: PyTree) -> tuple[PyTree, list[Array]]:
        values, by = start(cell, i, t.of_s, jax.tree.leaves(s)), dict(zip(nudged, nudges, strict=True))
        effects = [v for e in t.waiting if e.effects for v in _variables(e.invars)]
        leading = {id(e) for e in _leading_to([*effects, *nudged, *_variables(jaxpr.outvars)], jaxpr, t.i)}
        for e in jaxpr.eqns:
            if id(e) in leading or e.effects:
                outcome = zip(e.outvars, _bound(jaxpr, e, values), strict=True)
                values |= {v: a + by[v] if v in by else a for v, a in outcome}
        return jax.tree.unflatten(t.after, _values(jaxpr.outvars, values)), [values[v] for v in met]

    return Nested(t.run_inputs, products, step, [_shape(v) for v in nudged])


def _inlined(jaxpr: Jaxpr, constants: Sequence[Array], given: Sequence[Array]) -> list[Array]:
    """The outcome of a program; what it calls as a compiled program of its own becomes a part of it."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *given], strict=True))
    for e in jaxpr.eqns:
        if e.primitive.name == "jit":
            inner = e.params["jaxpr"]
            found = _inlined(inner.jaxpr, inner.consts, _values(e.invars, values))
        else:
            found = _bound(jaxpr, e, values)
        values |= zip(e.outvars, found, strict=True)
    return _values(jaxpr.outvars, values)


def _bound(jaxpr: Jaxpr, e: JaxprEqn, values: dict[Var, Array]) -> list[Array]:
    """The outcome of one equation."""
    inside = list(dict.fromkeys(_variables(e.invars)))
    alone = jaxpr.replace(constvars=[], invars=inside, outvars=e.outvars, eqns=[e])
    return jaxpr_as_fun(ClosedJaxpr(alone, []))(*_values(inside, values))


def _values(atoms: Iterable[Var | Literal], values: dict[Var, Array]) -> list[Array]:
    return [a.val if isinstance(a, Literal) else values[a] for a in atoms]


def _part(whole: ClosedJaxpr, given: Sequence[Var], wanted: Sequence[Var | Literal]) -> ClosedJaxpr:
    """What leads from some variables of a program to others."""
    equations = _leading_to(_variables(wanted), whole.jaxpr, given)
    needed = {*_variables(wanted), *_read(equations)}
    constants = {v: c for v, c in zip(whole.jaxpr.constvars, whole.consts, strict=True) if v in needed}
    part = whole.jaxpr.replace(constvars=list(constants), invars=given, outvars=wanted, eqns=equations)
    return ClosedJaxpr(part, list(constants.values()))


def _run(part: ClosedJaxpr, given: PyTree) -> list[Array]:
    return jaxpr_as_fun(part)(*jax.tree.leaves(eqx.filter(given, eqx.is_array)))


def _goes_by_number(jaxpr: Jaxpr) -> bool:
    """Whether arrays of any one shape may go through it, each number by itself."""
    used = [*_variables(jaxpr.outvars), *(v for e in jaxpr.eqns for v in [*_variables(e.invars), *e.outvars])]
    has_one_shape = len({_shape(v).shape for v in used}) == 1
    is_made_of_arrays = not jaxpr.constvars and len(_variables(jaxpr.outvars)) == len(jaxpr.outvars)
    return has_one_shape and is_made_of_arrays and all(e.primitive.name in _BY_NUMBER for e in jaxpr.eqns)


def _variables(atoms: Iterable[Var | Literal]) -> list[Var]:
    return [a for a in atoms if not isinstance(a, Literal)]


def _read(equations: Iterable[JaxprEqn]) -> list[Var]:
    return [v for e in equations for v in _variables(e.invars)]


def _shape(v: Var) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)  # pyrefly: ignore[missing-attribute]


def _is_real(v: Var) -> bool:
    return jnp.issubdtype(_shape(v).dtype, jnp.inexact)


def _real_outcome(e: JaxprEqn) -> list[Var]:
    """What an equation gives that has a gradient."""
    return [v for v in e.outvars if _is_real(v)]


def _after(start: Iterable[Var], equations: Sequence[JaxprEqn]) -> set[Var]:
    """These variables, and what depends on them."""
    found = set(start)
    for e in equations:
        if found.intersection(_variables(e.invars)):
            found.update(e.outvars)
    return found


def _before(end: Iterable[Var], equations: Sequence[JaxprEqn], given: Iterable[Var] = ()) -> set[Var]:
    """These variables, and what they depend on, as far as it is not given."""
    found, given = set(end).difference(given), set(given)
    for e in reversed(equations):
        if found.intersection(e.outvars):
            found.update(set(_variables(e.invars)) - given)
    return found


def _leading_to(end: Iterable[Var], jaxpr: Jaxpr, given: Iterable[Var]) -> list[JaxprEqn]:
    """The equations that lead from some variables to others."""
    needed = _before(end, jaxpr.eqns, given)
    return [e for e in jaxpr.eqns if needed.intersection(e.outvars)]
