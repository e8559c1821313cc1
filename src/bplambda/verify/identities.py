"""Each identity that the library rests on, as a function from a seed to an error that should vanish."""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..gradcheck import gradcheck
from ..rules._base import Rule, Window
from ..rules.bplambda import BPLambda
from ..rules.bptt import BPTT, TruncatedBPTT
from ..rules.nstep import NStepSG
from ..rules.offline import OfflineLambdaSG
from ..rules.online import OnlineLambdaSG
from ..rules.true_online import TrueOnlineBPLambda
from ..synthesiser import LinearSynthesiser
from ..targets import synthetic_gradient_targets
from ..traces import Deferred
from . import reference
from .problems import CELLS, CellName, Problem, problem
from .theorem import Theorem, theorem


class Identity(NamedTuple):
    """What is claimed, where the paper has it, and the largest error that counts as rounding."""

    claim: str
    where: str
    bound: float
    error: Callable[[int], float]


IDENTITIES: list[Identity] = []


def identity(claim: str, where: str, bound: float = 1e-10):
    def register(error: Callable[[int], float]):
        IDENTITIES.append(Identity(claim, where, bound, error))
        return error

    return register


def distance(a, b) -> float:
    """The largest difference between the arrays of two pytrees."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return largest(np.max(np.abs(np.asarray(x, float) - np.asarray(y, float))) for x, y in pairs)


def largest(errors: Iterable[float]) -> float:
    """NaN if there is one: Python's `max` may hide it."""
    return float(np.max(list(errors)))


def hyperparameters(seed: int) -> tuple[float, float, float]:
    """Random λ, γ and scale."""
    lam, gamma, scale = np.random.default_rng([seed, 1]).uniform(size=3)
    return float(lam), float(gamma), float(scale)


def trajectories(p: Problem) -> list[reference.Trajectory]:
    """The reference's own forward pass and derivatives, example by example."""
    xs, ys, weights = (np.asarray(a) for a in (p.xs, p.ys, p.weights))
    return [reference.trajectory(p.network, xs[:, b], ys[:, b], weights[:, b]) for b in range(xs.shape[1])]


def algorithm_1(p: Problem, rule: BPLambda) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Algorithm 1 in NumPy on each example, averaged over the batch, as descent directions (synthesiser, cell)."""
    theta = reference.synthesiser_parameters(p.synthesiser)
    numbers = float(rule.lam), float(rule.gamma), float(rule.scale)
    found = [reference.algorithm_1(run, theta, *numbers) for run in trajectories(p)]
    synthesiser = [-np.mean(parts, axis=0) for parts in zip(*(f[0] for f in found), strict=True)]
    return synthesiser, {k: np.mean([f[1][k] for f in found], axis=0) for k in found[0][1]}


def error_of_engine(p: Problem, rule: BPLambda, window: int) -> float:
    """The library's gradients against Algorithm 1's."""
    gradients, _ = p.gradients(rule, window)
    synthesiser, cell = algorithm_1(p, rule)
    found_cell = {k: getattr(gradients.network.cell, k) for k in cell}
    found = reference.synthesiser_parameters(gradients.synthesiser), found_cell
    return distance(found, (synthesiser, cell))


def _engine(seed: int, synthesiser) -> float:
    windows: dict[CellName, tuple[int, ...]] = {"rnn": (1, 2, 5, 7), "lstm": (1, 7), "gru": (3,)}
    rule = BPLambda(*hyperparameters(seed))
    return largest(
        error_of_engine(problem(seed, name, synthesiser=synthesiser), rule, window)
        for name, sizes in windows.items()
        for window in sizes
    )


@identity("the engine at every window size = Algorithm 1 with its trace", "Algorithm 1, Eqs. 14–16")
def engine_is_algorithm_1(seed: int) -> float:
    return _engine(seed, "linear")


@identity("the same with an MLP as synthesiser", "Algorithm 1")
def engine_with_mlp(seed: int) -> float:
    return _engine(seed, "mlp")


@identity("the same with a trace so large that it is deferred", "Algorithm 1")
def engine_with_deferred_trace(seed: int) -> float:
    p, rule = problem(seed, "gru", hidden=32, steps=19, batch=1), BPLambda(*hyperparameters(seed))
    assert isinstance(rule.init(p.network, p.synthesiser, 1).memory, Deferred), "it catches up every 8 steps"
    return error_of_engine(p, rule, window=1)


@identity("Algorithm 1 summed = regression on G^λ", "Eq. 11, offline λ-SG")
def backward_view(seed: int) -> float:
    p, (lam, gamma, scale) = problem(seed, "lstm"), hyperparameters(seed)
    theta = reference.synthesiser_parameters(p.synthesiser)
    sums = []
    for run in trajectories(p):
        g = reference.predictions(theta, run.s)
        total = [np.zeros_like(a) for a in theta]
        for t in range(len(run.J)):
            error = g[t] - reference.interim(run, g, t, len(run.J), lam, gamma)
            for part, grad in zip(total, reference.gradient_of_synthesiser(theta, run.s[t]), strict=True):
                part += np.tensordot(error, grad, 1)
        sums.append(total)
    wanted = [np.mean(parts, axis=0) for parts in zip(*sums, strict=True)]
    rules: list[tuple[Rule, int | None]] = [
        (BPLambda(lam, gamma, scale), 1),
        (OfflineLambdaSG(lam, gamma, scale), None),
    ]
    found = [reference.synthesiser_parameters(p.gradients(rule, window)[0].synthesiser) for rule, window in rules]
    return distance(found, [wanted, wanted])


@identity("targets by recursion = their defining sums", "appendix B, Eqs. 9–12")
def recursion_is_definition(seed: int) -> float:
    p, (lam, gamma, _) = problem(seed, "gru"), hyperparameters(seed)
    found = synthetic_gradient_targets(p.network, p.synthesiser, BPLambda(lam, gamma), p.xs, p.ys, p.weights)
    theta, errors = reference.synthesiser_parameters(p.synthesiser), []
    for b, run in enumerate(trajectories(p)):
        g, T = reference.predictions(theta, run.s), len(run.J)
        for t in range(T):
            recursive = np.zeros_like(run.s[0])  # Eq. 24, from the end of the sequence back to t
            for tau in reversed(range(t, T)):
                recursive = (run.dL[tau] + gamma * (lam * recursive + (1 - lam) * g[tau + 1])) @ run.J[tau]
            errors.append(distance(recursive, found.lam[t, b]))
            for k in range(1, T - t + 1):
                errors.append(distance(reference.n_step(run, g, t, k, gamma), found.n_step[k - 1, t, b]))
                interim = reference.interim(run, g, t, t + k, lam, gamma)
                errors.append(distance(interim, found.interim[t + k - 1, t, b]))
    return largest(errors)


@identity("Lemmas 1 to 5, with θ moving at every step", "appendix A")
def lemmas(seed: int) -> float:
    p, (lam, gamma, _) = problem(seed, "rnn", batch=1), hyperparameters(seed)
    (run,) = trajectories(p)
    theta = np.concatenate([p.synthesiser.weight, p.synthesiser.bias[:, None]], axis=1)
    online = reference.accumulate_online(run, theta, lam, gamma, alpha=0.1)
    return largest(lemma_errors(run, online, lam, gamma))


def lemma_errors(run: reference.Trajectory, online: reference.Online, lam: float, gamma: float) -> list[float]:
    """The error of each of the Lemmas 1 to 5 of appendix A, θ_t being `online.theta[t]` and θ_{−1} = θ_0."""
    T, S = len(run.J), run.s.shape[1]

    def g(t: int, theta_at: int) -> np.ndarray:
        """g(s_t; θ_at), zero at the end of the sequence."""
        return online.theta[max(theta_at, 0)] @ np.append(run.s[t], 1.0) if t < T else np.zeros(S)

    def D(start: int, end: int) -> np.ndarray:
        return reference.transported(run, start, end)

    def delta_prime(a: int, t: int) -> np.ndarray:
        ahead = (run.dL[t] + gamma * g(t + 1, t)) @ D(a, t + 1)
        return ahead - g(t, t - 1) @ D(a, t)

    def G(a: int, H: int) -> np.ndarray:
        return reference.interim(run, bootstraps, a, H, lam, gamma)

    bootstraps = np.array([g(t, t - 1) for t in range(T + 1)])
    pairs = [(a, t) for a in range(T) for t in range(a + 1, T + 1)]
    one = [G(a, t + 1) - G(a, t) - (lam * gamma) ** (t - a) * delta_prime(a, t) for a, t in pairs if t < T]
    two = [
        G(a, t) - G(a, a + 1) - sum((gamma * lam) ** (b - a) * delta_prime(a, b) for b in range(a + 1, t))
        for a, t in pairs
    ]
    three = [G(a, a + 1) - delta_prime(a, a) - g(a, a - 1) for a in range(T)]
    four = [
        sum((gamma * lam) ** (b - a) * delta_prime(a, b) for b in range(a, t)) - G(a, t) + g(a, a - 1) for a, t in pairs
    ]
    e, five = np.zeros((S, S, S + 1)), []
    fresh = [np.eye(S)[:, :, None] * np.append(s, 1.0) for s in run.s]
    for b in range(T):
        e = gamma * lam * np.tensordot(run.J[b - 1] if b else np.zeros((S, S)), e, 1) + fresh[b]
        five.append(e - sum((gamma * lam) ** (b - a) * np.tensordot(D(a, b), fresh[a], 1) for a in range(b + 1)))
    return [float(np.max(np.abs(np.array(lemma)))) for lemma in (one, two, three, four, five)]


@functools.cache
def measured_theorem(seed: int) -> Theorem:
    """The theorem's measurement, made once for a seed."""
    return theorem(seed)


@identity("accumulate BP(λ) → online λ-SG: |slope − 1| in α", "Theorem 3.1", bound=0.1)
def theorem_slope(seed: int) -> float:
    return abs(measured_theorem(seed).slope - 1)


@identity("with the paper's literal restart it does not: slope in α", "section 3.3", bound=0.5)
def literal_restart(seed: int) -> float:
    return measured_theorem(seed).literal_slope


@identity("true-online BP(λ) = online λ-SG, α = 0.1", "new; cf. Theorem 3.1")
def true_online_is_online(seed: int) -> float:
    p, numbers = problem(seed, "lstm", batch=3), hyperparameters(seed)
    rules = TrueOnlineBPLambda(*numbers, alpha=0.1), OnlineLambdaSG(*numbers, alpha=0.1)
    # Their errors are of different kinds: one learns from TD errors, the other regresses on targets.
    a, b = ((gradients, info[:-1]) for gradients, info in map(p.gradients, rules))
    return distance(a, b)


@identity("online λ-SG = its T² definition in NumPy", "Eq. 13")
def online_is_definition(seed: int) -> float:
    p, (lam, gamma, scale) = problem(seed, "gru", batch=1), hyperparameters(seed)
    gradients, _ = p.gradients(OnlineLambdaSG(lam, gamma, scale, alpha=0.1))
    (run,) = trajectories(p)
    theta = np.concatenate([p.synthesiser.weight, p.synthesiser.bias[:, None]], axis=1)
    final = reference.online_lambda_sg(run, theta, lam, gamma, 0.1).theta[-1]
    found = np.concatenate([gradients.synthesiser.weight, gradients.synthesiser.bias[:, None]], axis=1)
    return distance(theta - 0.1 * found, final)


def fitted(p: Problem) -> LinearSynthesiser:
    """The least-squares synthesiser of the true future gradients ∂L_{>t}/∂s_t at the states s_0 … s_{T−1}."""
    _, info = p.gradients(BPTT())
    exact = BPLambda(lam=1.0, gamma=1.0)
    targets = synthetic_gradient_targets(p.network, p.synthesiser, exact, p.xs, p.ys, p.weights).lam
    start = jnp.zeros_like(info.states[:1])
    h = np.concatenate([start, info.states[:-1]]).reshape(-1, p.network.state_size)
    h = np.concatenate([h, np.ones((len(h), 1))], axis=1)
    solution, *_ = np.linalg.lstsq(h, np.asarray(targets).reshape(len(h), -1), rcond=None)
    new = jnp.asarray(solution[:-1].T), jnp.asarray(solution[-1])
    return eqx.tree_at(lambda g: (g.weight, g.bias), LinearSynthesiser(p.network.state_size), new)


@identity("an exact synthesiser gives the BPTT gradient, and stays exact at λ = γ = 1", "section 3.4", bound=1e-8)
def exact_synthesiser(seed: int) -> float:
    p = problem(seed, "gru", hidden=12, steps=5, batch=1)
    p = p._replace(synthesiser=fitted(p))
    found, _ = p.gradients(BPLambda(lam=1.0, gamma=1.0, scale=1.0))
    true, _ = p.gradients(BPTT())
    return distance((found.network, found.synthesiser), (true.network, true.synthesiser))


@identity("linear RNN, final squared error: a linear synthesiser is exact", "section 4.1, Czarnecki et al.", bound=1e-8)
def linear_is_exact(seed: int) -> float:
    p = problem(seed, "linear", hidden=12, steps=10, batch=1, losses_at="last")
    p = p._replace(xs=p.xs.at[1:].set(0))
    _, info = p._replace(synthesiser=fitted(p)).gradients(BPLambda(1.0, 1.0, 1.0))
    exact = BPLambda(lam=1.0, gamma=1.0)
    true = synthetic_gradient_targets(p.network, p.synthesiser, exact, p.xs, p.ys, p.weights).lam
    return distance(info.synthetic[:-1], true[1:])


@identity("BPTT = finite differences", "Eq. 3", bound=1e-6)
def bptt_is_finite_differences(seed: int) -> float:
    p = problem(seed, "lstm")
    gradients, _ = p.gradients(BPTT())
    leaves, structure = jax.tree.flatten(p.network)
    rng, eps, errors = np.random.default_rng([seed, 2]), 1e-6, []
    for i, gradient in enumerate(jax.tree.leaves(gradients.network)):
        direction = jnp.asarray(rng.normal(size=gradient.shape))

        def loss(step, i=i, direction=direction):
            moved = [leaf + step * direction if j == i else leaf for j, leaf in enumerate(leaves)]
            return p._replace(network=jax.tree.unflatten(structure, moved)).gradients(BPTT())[1].loss

        slope = (loss(eps) - loss(-eps)) / (2 * eps)
        errors.append(abs(float(slope - jnp.sum(gradient * direction))))
    return largest(errors)


@identity("n-step SG with n ≥ T = BPTT", "section 2.3")
def nstep_is_bptt(seed: int) -> float:
    p, (_, gamma, scale) = problem(seed, "lstm"), hyperparameters(seed)
    found, _ = p.gradients(NStepSG(9, gamma, scale))
    return distance(found.network, p.gradients(BPTT())[0].network)


@identity("n-step SG with n = 1 = BP(0)", "section 3.4")
def one_step_is_lambda_zero(seed: int) -> float:
    p, (_, gamma, scale) = problem(seed, "gru"), hyperparameters(seed)
    return distance(p.gradients(NStepSG(1, gamma, scale)), p.gradients(BPLambda(0.0, gamma, scale), window=1))


@identity("no synthetic gradient at a sequence's end; state and trace fresh after it", "appendix C", bound=0.0)
def sequence_end(seed: int) -> float:
    p = problem(seed, "lstm")
    rule = BPLambda(*hyperparameters(seed))
    fresh = rule.init(p.network, p.synthesiser, p.xs.shape[1])
    carry = fresh
    for last in (False, True):
        window = Window(p.xs[:1], p.ys[:1], p.weights[:1], last)
        _, carry, info = rule.window(p.network, p.synthesiser, carry, window)
    return distance((carry, info.synthetic), (fresh, jnp.zeros_like(info.synthetic)))


def all_rules(seed: int) -> list[Rule]:
    """One of each, with random hyper-parameters."""
    numbers = hyperparameters(seed)
    sg = NStepSG(3, *numbers[1:])
    online = OnlineLambdaSG(*numbers, alpha=0.1), TrueOnlineBPLambda(*numbers, alpha=0.1)
    return [BPTT(), TruncatedBPTT(1), TruncatedBPTT(3), sg, BPLambda(*numbers), OfflineLambdaSG(*numbers), *online]


@identity("parameters that a rule leaves without a gradient where BPTT has one", "all", bound=0.0)
def no_dead_parameter(seed: int) -> float:
    dead = 0
    for name in CELLS:
        p = problem(seed, name, hidden=4)
        for rule in all_rules(seed):
            found = gradcheck(p.network, rule, p.xs, p.ys, p.synthesiser, p.weights)
            dead += len(found.missing)
    return float(dead)
