"""Any rule on several devices: each has a share of the batch."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..checks import require, require_int
from ..network import Network
from ..shapes import checked
from ._base import Carry, Info, Rule, SteppingRule, Window

BATCH = "batch"


def mesh(devices: int) -> Mesh:
    """The first so many devices, in a row."""
    require_int("devices", devices, minimum=1)
    found = jax.devices()
    kind = found[0].platform.upper()
    allowed = f"at most {len(found)}: that is how many {kind} devices JAX sees"
    if kind == "CPU":
        allowed += f' (or jax.config.update("jax_num_cpu_devices", {devices}) first, where the program begins)'
    require(devices <= len(found), "devices", devices, allowed)
    return Mesh(np.array(found[:devices]), (BATCH,))


class DataParallel(Rule):
    """A rule whose batch is shared out among devices.

    Each device runs the rule on its own examples, whose state and trace never leave it. Gradients are averages over the
    batch and all shares are equal, so the average over the devices is the rule's own gradient, to rounding: one
    reduction for each window is all that crosses from device to device.

    The shares are cut by `shard_map`. A sharding left to the compiler would be lost where a rule joins time and batch
    to one axis, for its large products: B cut in N parts is no cut of K·B, and each device would gather the batch.

    **Arguments:** the `rule`, any but those that move their synthesiser within a batch by its average; how many
    `devices`, of those that JAX sees. The size of a batch must be a multiple of it.
    """

    rule: Rule
    devices: int = eqx.field(static=True)

    def __check_init__(self):
        mesh(self.devices)
        allowed = "a rule that looks at each example for itself: no other may be on another device"
        require(not isinstance(self.rule, SteppingRule), "rule", type(self.rule).__name__, allowed)

    @property
    def needs_synthesiser(self) -> bool:  # pyrefly: ignore[bad-override]
        return self.rule.needs_synthesiser

    def window_size(self, steps: int) -> int:
        return self.rule.window_size(steps)

    def fits(self, window: int, steps: int) -> bool:
        return self.rule.fits(window, steps)

    def _memory(self, network: Network, synthesiser: Any, batch_size: int):
        self._divides(batch_size)
        memory = self.rule._memory(network, synthesiser, batch_size)
        by_example = NamedSharding(mesh(self.devices), P(BATCH))
        return jax.tree.map(lambda a: lax.with_sharding_constraint(a, by_example), memory)

    def _check(self, network: Network, synthesiser: Any) -> None:
        self.rule._check(network, synthesiser)

    def _divides(self, batch_size: int) -> None:
        allowed = f"a multiple of {self.devices}, the number of devices"
        require(batch_size % self.devices == 0, "batch_size", batch_size, allowed)

    def window(self, network: Network, synthesiser: Any, carry: Carry, window: Window):
        self._check(network, synthesiser)
        xs, ys, weights = checked(network, carry.state, window.xs, window.ys, window.weights)
        self._divides(weights.shape[1])
        arrays, rest = eqx.partition((self.rule, network, synthesiser, window.last), eqx.is_array)

        def share(arrays, carry, xs, ys, weights):
            rule, network, synthesiser, last = eqx.combine(arrays, rest)
            gradients, carry, info = rule.window(network, synthesiser, carry, Window(xs, ys, weights, last))
            gradients, loss = lax.pmean((gradients, info.loss), BATCH)
            return gradients, loss, carry, info[1:]

        in_time = P(None, BATCH)
        shares = jax.shard_map(
            share,
            mesh=mesh(self.devices),
            in_specs=(P(), P(BATCH), in_time, in_time, in_time),
            out_specs=(P(), P(), P(BATCH), in_time),
            check_vma=False,  # the averages are taken here, by hand, and not wherever AD meets a parameter
        )
        gradients, loss, carry, per_step = shares(arrays, carry, xs, ys, weights)
        return gradients, carry, Info(loss, *per_step)
