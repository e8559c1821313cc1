"""Definition-level references in plain NumPy and float64: slow, short, and sharing no line with the library's engine.

Networks are written out as forward formulas only. Every derivative is a complex step, f(x + iε)/ε with ε = 10⁻¹⁰⁰,
which has no rounding error beyond that of f itself; no automatic differentiation is involved.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import numpy as np

from ..network import Network
from ..synthesiser import LinearSynthesiser, MLPSynthesiser

_STEP = 1e-100


def derivative(function: Callable, at: np.ndarray) -> np.ndarray:
    """∂function/∂at, of shape `function(at).shape + at.shape`."""
    columns = []
    for i in range(at.size):
        moved = at.astype(complex)
        moved.flat[i] += 1j * _STEP
        columns.append(np.imag(function(moved)) / _STEP)
    return np.stack(columns, axis=-1).reshape(np.shape(columns[0]) + at.shape)


def _sigmoid(z):
    return 0.5 * (1 + np.tanh(0.5 * z))


def _relu(z):
    return np.where(np.real(z) > 0, z, 0)


def _rnn(p, x, h):
    phi = {"tanh": np.tanh, "linear": lambda z: z, "relu": _relu}[p["activation"]]
    return phi(p["weight_ih"] @ x + p["weight_hh"] @ h + p["bias"])


def _lstm(p, x, s):
    h, c = np.split(s, 2)
    i, f, g, o = np.split(p["weight_ih"] @ x + p["weight_hh"] @ h + p["bias"], 4)
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return np.concatenate([_sigmoid(o) * np.tanh(c), c])


def _gru(p, x, h):
    ir, iz, i_new = np.split(p["weight_ih"] @ x + p["bias"], 3)
    hr, hz, h_new = np.split(p["weight_hh"] @ h, 3)
    new = np.tanh(i_new + _sigmoid(ir + hr) * (h_new + p["bias_n"]))
    z = _sigmoid(iz + hz)
    return (1 - z) * new + z * h


_CELLS = {"RNNCell": _rnn, "LSTMCell": _lstm, "GRUCell": _gru}


def _synthesise(theta: list[np.ndarray], s):
    """A linear map, or an MLP with tanh between its layers: weights and biases in turn."""
    for i in range(0, len(theta), 2):
        s = theta[i] @ (s if i == 0 else np.tanh(s)) + theta[i + 1]
    return s


def synthesiser_parameters(synthesiser: LinearSynthesiser | MLPSynthesiser) -> list[np.ndarray]:
    """The weights and biases of a synthesiser, layer by layer."""
    layers = [synthesiser] if isinstance(synthesiser, LinearSynthesiser) else synthesiser.layers
    return [np.asarray(p, np.float64) for layer in layers for p in (layer.weight, layer.bias)]


class Trajectory(NamedTuple):
    """One example's way through a sequence, with its exact local derivatives.

    `s` holds s_0 … s_T; `J[t]` = ∂s_{t+1}/∂s_t; `dL[t]` = ∂L_{t+1}/∂s_{t+1}; `dPsi[t]` = ∂s_{t+1}/∂Ψ, Ψ acting at that
    step alone, by the name of the parameter.
    """

    s: np.ndarray
    J: np.ndarray
    dL: np.ndarray
    dPsi: list[dict[str, np.ndarray]]


def trajectory(network: Network, xs: np.ndarray, ys: np.ndarray, weights: np.ndarray) -> Trajectory:
    """Runs one example, `xs [T, in]`, `ys [T, out]`, `weights [T]`, with squared error on a linear readout."""
    cell, readout = network.cell, network.readout
    arrays = {k: v for k, v in vars(cell).items() if eqx.is_array(v)}
    p = {k: np.asarray(v, np.float64) for k, v in arrays.items()}
    fixed = {"activation": getattr(cell, "activation", None)}
    step, W, b = _CELLS[type(cell).__name__], np.asarray(readout.weight), np.asarray(readout.bias)
    units = W.shape[1]
    states, J, dL, dPsi = [np.zeros(network.state_size)], [], [], []
    for x, y, w in zip(xs, ys, weights, strict=True):
        s = states[-1]
        J.append(derivative(lambda s, x=x: step(p | fixed, x, s), s))
        dPsi.append({k: derivative(lambda v, k=k, x=x, s=s: step(p | fixed | {k: v}, x, s), p[k]) for k in p})
        states.append(step(p | fixed, x, s))
        dL.append(derivative(lambda s, y=y, w=w: w * np.sum((W @ s[:units] + b - y) ** 2), states[-1]))
    return Trajectory(np.array(states), np.array(J), np.array(dL), dPsi)


def predictions(theta: list[np.ndarray], s: np.ndarray) -> np.ndarray:
    """g(s_t; θ) at s_0 … s_T, with g = 0 at the end of the sequence (appendix C)."""
    return np.array([_synthesise(theta, state) for state in s[:-1]] + [np.zeros_like(s[-1])])


def gradient_of_synthesiser(theta: list[np.ndarray], s: np.ndarray) -> list[np.ndarray]:
    """∇_θ g(s; θ): for each parameter array an array `[S, *shape]`."""
    return [
        derivative(lambda v, i=i: _synthesise([*theta[:i], v, *theta[i + 1 :]], s), theta[i]) for i in range(len(theta))
    ]


def algorithm_1(run: Trajectory, theta: list[np.ndarray], lam: float, gamma: float, scale: float):
    """Algorithm 1 for one example, line by line, θ and Ψ held over the sequence: the sums of its updates.

    **Returns:** Σ δᵀe for each parameter array of the synthesiser; Σ [∂L + scale·g]ᵀ ∂Ψ for each of the cell.
    """
    g = predictions(theta, run.s)
    e = [np.zeros((run.s.shape[1], *p.shape)) for p in theta]
    J_before = np.zeros((run.s.shape[1],) * 2)
    delta_theta = [np.zeros_like(p) for p in theta]
    delta_psi = {k: np.zeros(v.shape[1:]) for k, v in run.dPsi[0].items()}
    for t in range(len(run.J)):
        fresh = gradient_of_synthesiser(theta, run.s[t])
        e = [gamma * lam * np.tensordot(J_before, old, 1) + new for old, new in zip(e, fresh, strict=True)]
        delta = (run.dL[t] + gamma * g[t + 1]) @ run.J[t] - g[t]
        for total, trace in zip(delta_theta, e, strict=True):
            total += np.tensordot(delta, trace, 1)
        for name, total in delta_psi.items():
            total += np.tensordot(run.dL[t] + scale * g[t + 1], run.dPsi[t][name], 1)
        J_before = run.J[t]
    return delta_theta, delta_psi


def transported(run: Trajectory, start: int, end: int) -> np.ndarray:
    """∂s_end/∂s_start, a product of one-step Jacobians."""
    product = np.eye(run.s.shape[1])
    for J in run.J[start:end]:
        product = J @ product
    return product


def n_step(run: Trajectory, g: np.ndarray, t: int, n: int, gamma: float) -> np.ndarray:
    """G⁽ⁿ⁾_t, Eq. 9, for t + n ≤ T; `g[τ]` is the bootstrap at s_τ."""
    total = gamma**n * g[t + n] @ transported(run, t, t + n)
    for k in range(1, n + 1):
        total = total + gamma ** (k - 1) * run.dL[t + k - 1] @ transported(run, t, t + k)
    return total


def interim(run: Trajectory, g: np.ndarray, t: int, horizon: int, lam: float, gamma: float) -> np.ndarray:
    """G^{λ|H}_t, Eq. 12; with H = T it is G^λ_t, Eq. 11."""
    longest = horizon - t
    total = lam ** (longest - 1) * n_step(run, g, t, longest, gamma)
    for n in range(1, longest):
        total = total + (1 - lam) * lam ** (n - 1) * n_step(run, g, t, n, gamma)
    return total


class Online(NamedTuple):
    """A run of an online algorithm on a linear synthesiser θ `[S, S+1]`: θ_0 … θ_T, and the bootstraps it used."""

    theta: np.ndarray
    g: np.ndarray


def _features(s: np.ndarray) -> np.ndarray:
    return np.append(s, 1.0)


def accumulate_online(run: Trajectory, theta: np.ndarray, lam, gamma, alpha) -> Online:
    """Accumulate BP(λ), Eqs. 14 to 16, θ updated at every step; one example."""
    T, S = len(run.J), run.s.shape[1]
    thetas, e, J_before = [theta], np.zeros((S, S, S + 1)), np.zeros((S, S))
    g = np.zeros_like(run.s)
    for t in range(T):
        theta, h = thetas[-1], _features(run.s[t])
        e = gamma * lam * np.tensordot(J_before, e, 1) + np.eye(S)[:, :, None] * h
        g[t + 1] = theta @ _features(run.s[t + 1]) if t + 1 < T else 0
        delta = (run.dL[t] + gamma * g[t + 1]) @ run.J[t] - theta @ h
        thetas.append(theta + alpha * np.tensordot(delta, e, 1))
        J_before = run.J[t]
    return Online(np.array(thetas), g)


def online_lambda_sg(run: Trajectory, theta: np.ndarray, lam, gamma, alpha, restart: bool = True) -> Online:
    """Online λ-SG, Eq. 13; one example. Without `restart` each horizon goes on from the last, as the paper has it."""
    T, thetas, g = len(run.J), [theta], np.zeros_like(run.s)
    for horizon in range(1, T + 1):
        g[horizon] = thetas[-1] @ _features(run.s[horizon]) if horizon < T else 0
        now = theta if restart else thetas[-1]
        for k in range(horizon):
            h = _features(run.s[k])
            now = now + alpha * np.outer(interim(run, g, k, horizon, lam, gamma) - now @ h, h)
        thetas.append(now)
    return Online(np.array(thetas), g)
