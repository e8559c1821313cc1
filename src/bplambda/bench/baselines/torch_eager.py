"""Algorithm 1 as a careful PyTorch user writes it: an eager loop over the steps, with explicit traces.

Autograd does what it is good at, the gradients of one step. The Jacobian of a step is written out for each cell, which
makes the toy task twice as fast as with `torch.func.jacrev`; the trace is multiplied from one buffer into another, with
the discount folded into the Jacobian; and all examples share each product.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from ..problems import Problem, Sizes
from .torch_parts import LOSSES, Tensor, tensor


class Found(NamedTuple):
    """Gradients, batch average: of weight_ih, weight_hh and bias of the cell; of weight and bias of the readout; of the
    synthesiser, `[S, S + 1]`, its bias last."""

    cell: list[Tensor]
    readout: list[Tensor]
    synthesiser: Tensor


class Cell(NamedTuple):
    """`step(parameters, x, s)` gives s′ and what `jacobian(parameters, s, saved)` needs for ∂s′/∂s, `[B, S, S]`."""

    step: Callable
    jacobian: Callable


def _rnn_step(parameters, x, s):
    weight_ih, weight_hh, bias = parameters
    new = torch.tanh(torch.addmm(bias, x, weight_ih.T) + s @ weight_hh.T)
    return new, new


def _rnn_jacobian(parameters, s, new):
    return (1 - new**2)[:, :, None] * parameters[1]


def _lstm_step(parameters, x, s):
    weight_ih, weight_hh, bias = parameters
    h, c = s.chunk(2, dim=-1)
    i, f, g, o = (torch.addmm(bias, x, weight_ih.T) + h @ weight_hh.T).chunk(4, dim=-1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    c = f * c + i * g
    squashed = torch.tanh(c)
    return torch.cat([o * squashed, c], dim=-1), (i, f, g, o, squashed)


def _lstm_jacobian(parameters, s, saved):
    i, f, g, o, squashed = saved
    _, c = s.chunk(2, dim=-1)
    batch, units = c.shape
    weight = parameters[1].view(4, units, units)
    local = torch.stack([g * i * (1 - i), c * f * (1 - f), i * (1 - g**2)])  # of c′, by what enters i, f and g
    slope = o * (1 - squashed**2)
    J = torch.zeros(batch, 2, units, 2, units, dtype=s.dtype)
    J[:, 1, :, 0] = torch.einsum("gbu,guv->buv", local, weight[:3])
    J[:, 0, :, 0] = slope[:, :, None] * J[:, 1, :, 0] + (squashed * o * (1 - o))[:, :, None] * weight[3]
    J[:, 1, :, 1].diagonal(dim1=1, dim2=2).copy_(f)
    J[:, 0, :, 1].diagonal(dim1=1, dim2=2).copy_(slope * f)
    return J.view(batch, 2 * units, 2 * units)


CELLS = {"rnn": Cell(_rnn_step, _rnn_jacobian), "lstm": Cell(_lstm_step, _lstm_jacobian)}


class Trace:
    """e, `[B, S, S·(S + 1)]`: how each number of the state depends on θ = [W b], through all steps so far."""

    def __init__(self, s: Tensor):
        batch, size = s.shape
        self.e = torch.zeros(batch, size, size * (size + 1), dtype=s.dtype)
        self.other = torch.empty_like(self.e)

    def add(self, features: Tensor) -> None:
        """e += ∇g(s): the i-th number of g depends on the i-th row of θ alone."""
        batch, size = self.e.shape[:2]
        self.e.view(batch, size, size, size + 1).diagonal(dim1=1, dim2=2).add_(features[:, :, None])

    def move(self, J: Tensor) -> None:
        """e = J e."""
        torch.bmm(J, self.e, out=self.other)
        self.e, self.other = self.other, self.e

    def eligible(self, delta: Tensor) -> Tensor:
        """Σ_b δ_bᵀ e_b."""
        size = self.e.shape[1]
        return (delta.reshape(1, -1) @ self.e.view(-1, size * (size + 1))).view(size, size + 1)


def torch_eager(sizes: Sizes, problem: Problem, lam: float, gamma: float, scale: float) -> Found:
    """The gradients of one batch by Algorithm 1, step by step."""
    cell, linear, g = problem.network.cell, problem.network.readout, problem.synthesiser
    xs, ys = tensor(problem.xs), tensor(problem.ys)
    parameters = [tensor(a).requires_grad_() for a in (cell.weight_ih, cell.weight_hh, cell.bias)]
    readout = [tensor(a).requires_grad_() for a in (linear.weight, linear.bias)]
    theta = torch.cat([tensor(g.weight), tensor(g.bias)[:, None]], dim=1)
    step, jacobian = CELLS[sizes.cell]
    ones = torch.ones(sizes.batch, 1, dtype=xs.dtype)
    s = torch.zeros(sizes.batch, len(theta), dtype=xs.dtype)
    features, synthetic = torch.cat([s, ones], dim=1), theta[:, -1].expand_as(s)
    trace, learned = Trace(s), torch.zeros_like(theta)
    trace.add(features)

    for t in range(len(xs)):
        last = t == len(xs) - 1
        new, saved = step(parameters, xs[t], s)
        ahead = new.detach().requires_grad_()
        if last or not sizes.last_only:
            prediction = torch.addmm(readout[1], ahead[:, : sizes.units], readout[0].T)
            LOSSES[sizes.loss](prediction, ys[t]).backward()
        with torch.no_grad():
            loss_gradient = torch.zeros_like(s) if ahead.grad is None else ahead.grad
            features = torch.cat([ahead, ones], dim=1)
            expected = torch.zeros_like(s) if last else features @ theta.T
        new.backward(loss_gradient + scale * expected)
        with torch.no_grad():
            J = jacobian(parameters, s, saved)
            target = torch.bmm((loss_gradient + gamma * expected)[:, None], J)[:, 0]
            learned += trace.eligible(target - synthetic)
            if not last:
                trace.move(gamma * lam * J)
                trace.add(features)
        s, synthetic = ahead.detach(), expected

    cell_gradient, readout_gradient = ([p.grad / sizes.batch for p in group] for group in (parameters, readout))
    return Found(cell_gradient, readout_gradient, -learned / sizes.batch)
