"""braintrace's D_RTRL: online learning in JAX that keeps the diagonal of RTRL alone."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def d_rtrl(inputs: int, units: int, rate: float) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], float]]:
    """A GRU with one output, Adam, and D_RTRL.

    **Returns:** two functions: one learns from a chunk `(xs, ys)`, one from a single step and gives its loss.
    """
    names = ("braintrace", "brainstate", "braintools")
    trace, brain, tools = (importlib.import_module(name) for name in names)

    class Net(brain.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = trace.nn.GRUCell(inputs, units)
            self.out = trace.nn.Linear(units, 1)

        def update(self, x):
            return self.out(self.rnn(x))

    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the readout has no trace, nor has the reset gate
        online = trace.compile(net, trace.D_RTRL, np.zeros((1, inputs), np.float32), batch_size=1)
    weights = net.states(brain.ParamState)
    optimiser = tools.optim.Adam(lr=rate)
    optimiser.register_trainable_weights(weights)

    def loss(x, y):
        return ((online(x[None]) - y[None]) ** 2).mean()

    def learn(x, y):
        gradients, value = brain.transform.grad(loss, weights, return_value=True)(x, y)
        optimiser.update(gradients)
        return value

    one = brain.transform.jit(learn)
    many = brain.transform.jit(lambda xs, ys: brain.transform.for_loop(learn, xs, ys))
    return lambda xs, ys: jax.block_until_ready(many(xs, ys)), lambda x, y: float(one(x, y))
