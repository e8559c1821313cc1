"""Makes golden.npz: losses and gradients of small recurrent networks from PyTorch's autograd, all in float64.

The tests read only golden.npz. To make it again, in an environment apart from that of the tests:

    python3 -m venv torchenv
    torchenv/bin/pip install torch==2.13.0 numpy
    torchenv/bin/python tests/data/make_golden.py

With T = 7 steps, a batch of B = 3, 4 inputs and H = 5 units, the file holds

- `xs` [T, B, 4]: the inputs; `weights` [T]: of the losses, some of them 0.
- `ys/{loss}` [T, B, ...]: the targets; for softmax_cross_entropy they are classes, int64 [T, B].
- `{cell}/{loss}/parameters/{name}`: the network's parameters.
- `{cell}/{loss}/{rule}/loss`: Σ_t weights[t] · (the loss at step t, averaged over the batch).
- `{cell}/{loss}/{rule}/{name}`: the gradient of each parameter.

`{cell}` is rnn (tanh), rnn_linear, rnn_relu, gru or lstm, with squared_error; lstm also with
softmax_cross_entropy (3 classes) and sigmoid_cross_entropy (mean over 2 outputs). `{rule}` is bptt, or tbptt1,
tbptt2, tbptt3: truncated BPTT in windows of n steps, counted from the sequence's end, so that the first window
is the one cut short. `{name}` is a parameter's place in a bplambda.Network, such as cell.weight_hh, in the
shape and gate order that Equinox has.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyrefly: ignore
from torch import nn  # pyrefly: ignore
from torch.nn import functional as F  # pyrefly: ignore

T, B, INPUTS, H = 7, 3, 4, 5


class LinearRNNCell(nn.RNNCell):
    """h′ = W_ih x + b_ih + W_hh h + b_hh, which PyTorch does not have."""

    def forward(self, x, h):
        return F.linear(x, self.weight_ih, self.bias_ih) + F.linear(h, self.weight_hh, self.bias_hh)


CELLS = {
    "rnn": lambda: nn.RNNCell(INPUTS, H, nonlinearity="tanh"),
    "rnn_linear": lambda: LinearRNNCell(INPUTS, H),
    "rnn_relu": lambda: nn.RNNCell(INPUTS, H, nonlinearity="relu"),
    "gru": lambda: nn.GRUCell(INPUTS, H),
    "lstm": lambda: nn.LSTMCell(INPUTS, H),
}
LOSSES = {
    "squared_error": lambda prediction, y: ((prediction - y) ** 2).sum(-1),
    "softmax_cross_entropy": lambda prediction, y: F.cross_entropy(prediction, y, reduction="none"),
    "sigmoid_cross_entropy": lambda prediction, y: F.binary_cross_entropy_with_logits(
        prediction, y, reduction="none"
    ).mean(-1),
}
OUTPUTS = {"squared_error": 2, "softmax_cross_entropy": 3, "sigmoid_cross_entropy": 2}
CASES = [(cell, "squared_error") for cell in CELLS]
CASES += [("lstm", "softmax_cross_entropy"), ("lstm", "sigmoid_cross_entropy")]
RULES = {"bptt": T, "tbptt1": 1, "tbptt2": 2, "tbptt3": 3}


def named(cell, readout, pick):
    """The parameters, or with another `pick` their gradients, under the names that they have in a Network.

    PyTorch has two biases where Equinox has one. b_ih is Equinox's `bias`, and b_hh is held at zero, except for
    the part of a GRU's b_hh that the reset gate multiplies: that is Equinox's `bias_n`.
    """
    arrays = {
        "cell.weight_ih": pick(cell.weight_ih),
        "cell.weight_hh": pick(cell.weight_hh),
        "cell.bias": pick(cell.bias_ih),
        "readout.weight": pick(readout.weight),
        "readout.bias": pick(readout.bias),
    }
    if isinstance(cell, nn.GRUCell):
        arrays["cell.bias_n"] = pick(cell.bias_hh)[2 * H :]
    return arrays


def make_network(cell_name, loss_name, rng):
    cell, readout = CELLS[cell_name](), nn.Linear(H, OUTPUTS[loss_name])
    with torch.no_grad():
        cell.bias_hh.zero_()
        for array in named(cell, readout, lambda p: p).values():
            array.copy_(torch.from_numpy(rng.uniform(-0.6, 0.6, array.shape)))
    return cell, readout


def run(cell, readout, loss, xs, ys, weights, n):
    """The total loss, with the gradients left in the parameters' `grad`."""
    zeros = torch.zeros(B, H)
    state = (zeros, zeros) if isinstance(cell, nn.LSTMCell) else zeros
    total = 0.0
    for start, end in pairwise([0, *range(T % n or n, T + 1, n)]):
        state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
        window = torch.zeros(())
        for t in range(start, end):
            state = cell(xs[t], state)
            h = state[0] if isinstance(state, tuple) else state
            window = window + weights[t] * loss(readout(h), ys[t]).mean()
        window.backward()
        total += window.item()
    return total


def main(seed=0):
    torch.set_default_dtype(torch.float64)
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 1.5, T)
    weights[[2, 5]] = 0
    golden: dict[str, Any] = {
        "xs": rng.normal(size=(T, B, INPUTS)),
        "weights": weights,
        "ys/squared_error": rng.normal(size=(T, B, 2)),
        "ys/softmax_cross_entropy": rng.integers(0, 3, (T, B)),
        "ys/sigmoid_cross_entropy": rng.integers(0, 2, (T, B, 2)).astype(float),
    }
    for cell_name, loss_name in CASES:
        cell, readout = make_network(cell_name, loss_name, rng)
        keys = "xs", f"ys/{loss_name}", "weights"
        xs, ys, ws = (torch.from_numpy(golden[key]) for key in keys)
        results = {"parameters": named(cell, readout, lambda p: p.detach().numpy())}
        for rule, n in RULES.items():
            cell.zero_grad()
            readout.zero_grad()
            total = run(cell, readout, LOSSES[loss_name], xs, ys, ws, n)
            results[rule] = {"loss": np.array(total), **named(cell, readout, lambda p: p.grad.numpy())}
        for part, arrays in results.items():
            golden |= {f"{cell_name}/{loss_name}/{part}/{name}": array for name, array in arrays.items()}
    np.savez_compressed(Path(__file__).with_name("golden.npz"), **golden)


if __name__ == "__main__":
    main()
