"""How a cell that the library does not know is taken apart all the same: by the equations that JAX traces it to."""

from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jaxtyping import Array, PyTree

from .cells import WHOLE, Factors, factors

# What weights may do to a state, and what may then happen to it until the last weight has been there: nothing whose
# derivative asks for more than the weights and the state.
_ADDS = {"add", "neg", "sub"}
_MOVES = {"broadcast_in_dim", "concatenate", "convert_element_type", "reshape", "slice", "split", "squeeze"}
_MOVES |= {"transpose"}
_MULTIPLIES = {"conv_general_dilated", "div", "dot_general", "mul"}

# What treats each number by itself, and does not say how many there are.
_BY_NUMBER = {"abs", "add", "cos", "div", "exp", "integer_pow", "log", "logistic", "max", "min", "mul", "neg", "sign"}
_BY_NUMBER |= {"sin", "sqrt", "square", "sub", "tanh"}


def taken_apart(cell: Any, x: PyTree, s: PyTree) -> Factors:
    """The parts of any cell, for an input and a state of such shapes; `WHOLE` if it has none."""
    known = factors(cell)
    return known if known is not WHOLE else _by_equations(cell, x, s) or WHOLE


def _by_equations(cell: Any, x: PyTree, s: PyTree) -> Factors | None:
    """`inputs` is what does not ask for the state; `products`, what leads from the state to where it meets weights for
    the last time; `combine`, the rest. `None` if more than products lies on that way, as between two layers, one on
    top of the other: its derivatives would need what no part saves."""
    arrays, static = eqx.partition(cell, eqx.is_array)
    traced, after = jax.make_jaxpr(lambda a, x, s: eqx.combine(a, static)(x, s), return_shape=True)(arrays, x, s)
    whole = jax.make_jaxpr(lambda *given: _inlined(traced.jaxpr, traced.consts, given))(*traced.in_avals)
    equations, results = whole.jaxpr.eqns, set(_variables(whole.jaxpr.outvars))
    n, m = len(jax.tree.leaves(arrays)), len(jax.tree.leaves(s))
    of_cell, of_x, of_s = whole.jaxpr.invars[:n], whole.jaxpr.invars[n:-m], whole.jaxpr.invars[-m:]

    by_x, by_s = _after(of_x, equations), _after(of_s, equations)
    weights = _after(of_cell, equations) - by_x - by_s
    waiting = [e for e in equations if by_s.intersection(e.outvars)]  # for the state
    met = [v for e in waiting if weights.intersection(_variables(e.invars)) for v in e.outvars]
    since, until = _after(met, equations), _before(met, equations)
    first = [e for e in waiting if until.intersection(e.outvars)]
    last = [e for e in waiting if not until.intersection(e.outvars)]

    def is_simple(e: JaxprEqn) -> bool:
        read, name = _variables(e.invars), e.primitive.name
        if since.intersection(read):
            return name in _ADDS | _MOVES
        return name in _ADDS | _MOVES | _MULTIPLIES or not weights.intersection(read)

    def read_by(equations: Sequence[JaxprEqn]) -> set[Var]:
        return results.union(*(_variables(e.invars) for e in equations))

    # What is split up later on passes from part to part in one piece.
    whence = {v: e.invars[0] for e in equations if e.primitive.name == "split" for v in e.outvars}
    everything = [*whole.jaxpr.invars, *(v for e in equations for v in e.outvars)]
    passed = (read_by(waiting) & by_x) - by_s | (results & weights)
    i = list(dict.fromkeys(whence.get(v, v) for v in everything if v in passed))
    p = [v for e in first for v in e.outvars if v in read_by(last)]
    is_real = all(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in i + p)
    if whole.effects or not is_real or not all(is_simple(e) for e in first):
        return None

    inputs, products = (_part(whole, *ends) for ends in (([*of_cell, *of_x], i), ([*of_cell, *i, *of_s], p)))
    combine = _part(whole, [*i, *p, *of_s], whole.jaxpr.outvars)
    return Factors(
        inputs=lambda cell, x, count: _run(inputs, (cell, x)),
        products=lambda cell, i, s: _run(products, (cell, i, s)),
        combine=lambda i, p, s: jax.tree.unflatten(jax.tree.structure(after), _run(combine, (i, p, s))),
        by_number=_goes_by_number(combine.jaxpr),
    )


def _inlined(jaxpr: Jaxpr, constants: Sequence[Array], given: Sequence[Array]) -> list[Array]:
    """The outcome of a program; what it calls as a compiled program of its own becomes a part of it."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *given], strict=True))

    def read(atoms: Sequence[Var | Literal]) -> list[Array]:
        return [a.val if isinstance(a, Literal) else values[a] for a in atoms]

    for e in jaxpr.eqns:
        if e.primitive.name == "jit":
            found = _inlined(e.params["jaxpr"].jaxpr, e.params["jaxpr"].consts, read(e.invars))
        else:
            inside = list(dict.fromkeys(_variables(e.invars)))
            alone = jaxpr.replace(constvars=[], invars=inside, outvars=e.outvars, eqns=[e])
            found = jaxpr_as_fun(ClosedJaxpr(alone, []))(*read(inside))
        values |= zip(e.outvars, found, strict=True)
    return read(jaxpr.outvars)


def _part(whole: ClosedJaxpr, given: Sequence[Var], wanted: Sequence[Var | Literal]) -> ClosedJaxpr:
    """What leads from some variables of a program to others."""
    needed = _before(_variables(wanted), whole.jaxpr.eqns, given)
    equations = [e for e in whole.jaxpr.eqns if needed.intersection(e.outvars)]
    constants = {v: c for v, c in zip(whole.jaxpr.constvars, whole.consts, strict=True) if v in needed}
    part = whole.jaxpr.replace(constvars=list(constants), invars=given, outvars=wanted, eqns=equations)
    return ClosedJaxpr(part, list(constants.values()))


def _run(part: ClosedJaxpr, given: PyTree) -> list[Array]:
    return jaxpr_as_fun(part)(*jax.tree.leaves(eqx.filter(given, eqx.is_array)))


def _goes_by_number(jaxpr: Jaxpr) -> bool:
    """Whether arrays of any one shape may go through it, each number by itself."""
    used = [*_variables(jaxpr.outvars), *(v for e in jaxpr.eqns for v in [*_variables(e.invars), *e.outvars])]
    has_one_shape = len({v.aval.shape for v in used}) == 1  # pyrefly: ignore[missing-attribute]
    is_made_of_arrays = not jaxpr.constvars and len(_variables(jaxpr.outvars)) == len(jaxpr.outvars)
    return has_one_shape and is_made_of_arrays and all(e.primitive.name in _BY_NUMBER for e in jaxpr.eqns)


def _variables(atoms: Iterable[Var | Literal]) -> list[Var]:
    return [a for a in atoms if not isinstance(a, Literal)]


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
