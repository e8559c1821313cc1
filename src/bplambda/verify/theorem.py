"""Theorem 3.1: accumulate BP(λ) tends to online λ-SG as the step size falls. In numbers, and as a picture."""

from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from ..rules._base import Window
from ..rules.bplambda import BPLambda
from ..rules.online import OnlineLambdaSG
from ..rules.true_online import TrueOnlineBPLambda
from ..timeloop import parameters
from . import reference
from .problems import Problem, problem

LAM, GAMMA = 0.7, 0.9
ALPHAS = np.logspace(-1, -4, 7)


class Theorem(NamedTuple):
    """‖θ − θ_λ‖ / ‖θ − θ_0‖ at each step size α, θ_λ being online λ-SG's result.

    `accumulate` and `true_online` are the library's own; `literal` is accumulate BP(λ) against online λ-SG with the
    restart that the paper writes, θ^t_0 = θ^{t−1}_{t−1}.
    """

    alphas: np.ndarray
    accumulate: np.ndarray
    true_online: np.ndarray
    literal: np.ndarray

    @property
    def slope(self) -> float:
        """The exponent of accumulate's ratio in α: the theorem says 1."""
        return _exponent(self.alphas, self.accumulate)

    @property
    def literal_slope(self) -> float:
        """The same for the literal restart: a ratio that does not fall has 0."""
        return _exponent(self.alphas, self.literal)


def _exponent(x: np.ndarray, y: np.ndarray) -> float:
    """The slope of a straight line through log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def stream(p: Problem, rule: BPLambda | TrueOnlineBPLambda, alpha):
    """θ after a sequence in windows of one step, updated by plain gradient descent after each of them."""

    def step(state, window):
        theta, carry = state
        gradients, carry, _ = rule.window(p.network, rebuild(theta), carry, window)
        theta = jax.tree.map(lambda a, d: a - alpha * d, theta, gradients.synthesiser)
        return (theta, carry), None

    theta, rebuild = parameters(p.synthesiser)
    steps, batch = p.weights.shape
    data = jax.tree.map(lambda a: a[:, None], (p.xs, p.ys, p.weights))
    start = theta, rule.init(p.network, p.synthesiser, batch)
    (theta, _), _ = jax.lax.scan(step, start, Window(*data, last=jnp.arange(steps) == steps - 1))
    return theta


@eqx.filter_jit
def _library(p: Problem, alphas):
    """θ_T − θ_0 of accumulate, true-online and online λ-SG, for all step sizes at once."""

    def one(alpha):
        numbers = (LAM, GAMMA, 1.0)
        accumulate = stream(p, BPLambda(*numbers), alpha)
        true_online = stream(p, TrueOnlineBPLambda(*numbers, alpha), alpha)
        gradients, _ = p.gradients(OnlineLambdaSG(*numbers, alpha))
        online = jax.tree.map(lambda a, d: a - alpha * d, p.synthesiser, gradients.synthesiser)
        return [jax.tree.map(jnp.subtract, theta, p.synthesiser) for theta in (accumulate, true_online, online)]

    return jax.vmap(one)(alphas)


def theorem(seed: int, alphas: np.ndarray = ALPHAS) -> Theorem:
    """Measures the theorem's ratio on a random problem (a tanh RNN of 4 units, 6 steps, one example)."""
    p = problem(seed, "rnn", hidden=4, steps=6, batch=1, losses_at="every")

    def flat(g):
        return np.concatenate([g.weight, g.bias[..., None]], axis=-1)

    accumulate, true_online, online = map(flat, _library(p, jnp.asarray(alphas)))
    theta = flat(p.synthesiser)
    run = reference.trajectory(p.network, *(np.asarray(a)[:, 0] for a in (p.xs, p.ys, p.weights)))
    literal = [reference.online_lambda_sg(run, theta, LAM, GAMMA, a, restart=False).theta[-1] - theta for a in alphas]

    def ratio(found, wanted):
        def norm(x):
            return np.linalg.norm(np.reshape(x, (len(alphas), -1)), axis=1)

        return norm(found - wanted) / norm(found)

    return Theorem(alphas, ratio(accumulate, online), ratio(true_online, online), ratio(accumulate, np.array(literal)))


def plot(found: Theorem) -> Figure:
    """The ratio against α, on logarithmic axes."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    lines = [
        ("against online λ-SG with the paper's own restart", found.literal, "s--", "tab:red", 8),
        (f"accumulate BP(λ): proportional to α (slope {found.slope:.2f})", found.accumulate, "o-", "tab:blue", 5e-3),
        ("true-online BP(λ): rounding error only", np.maximum(found.true_online, 1e-17), "^-", "tab:green", 8),
    ]
    for label, values, style, colour, offset in lines:
        axes.loglog(found.alphas, values, style, color=colour)
        axes.text(found.alphas[-1], values[-1] * offset, label, color=colour)
    axes.set_xlabel("step size α")
    axes.set_ylabel(r"$\|\theta - \theta_\lambda\|\; /\; \|\theta - \theta_0\|$")
    axes.set_title("Theorem 3.1: distance from online λ-SG", loc="left")
    axes.set_ylim(1e-17, 1e3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure


def draw(found: Theorem, path: Path) -> None:
    """Writes the plot into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(found).savefig(path, dpi=150)
