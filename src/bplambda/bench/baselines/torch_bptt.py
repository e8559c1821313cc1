"""Full BPTT as a PyTorch user writes it: `nn.LSTM`, `loss.backward()`."""

from collections.abc import Callable

import torch

from ..problems import Problem, Sizes
from .torch_parts import LOSSES, Tensor, tensor


def torch_bptt(sizes: Sizes, problem: Problem) -> Callable[[], list[Tensor]]:
    """`nn.LSTM`, or `nn.RNN` for the plain RNN, with our weights; the readout only where there is a loss.

    **Returns:** a function without arguments, which gives the gradients, batch average: of the cell's weight_ih,
    weight_hh and two biases, and of the readout's weight and bias.
    """
    cell, linear = problem.network.cell, problem.network.readout
    xs, ys = tensor(problem.xs), tensor(problem.ys)
    kind = {"lstm": torch.nn.LSTM, "rnn": torch.nn.RNN}[sizes.cell]
    rnn = kind(sizes.inputs, sizes.units, dtype=xs.dtype)
    readout = torch.nn.Linear(sizes.units, sizes.outputs, dtype=xs.dtype)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(tensor(cell.weight_ih))
        rnn.weight_hh_l0.copy_(tensor(cell.weight_hh))
        rnn.bias_ih_l0.copy_(tensor(cell.bias))
        rnn.bias_hh_l0.zero_()
        readout.weight.copy_(tensor(linear.weight))
        readout.bias.copy_(tensor(linear.bias))
    parameters = [*rnn.parameters(), *readout.parameters()]
    first = -1 if sizes.last_only else 0

    def gradients() -> list[Tensor]:
        for p in parameters:
            p.grad = None
        outputs, _ = rnn(xs)
        loss = LOSSES[sizes.loss](readout(outputs[first:]), ys[first:]) / sizes.batch
        loss.backward()
        return [p.grad for p in parameters]

    return gradients
