"""What a learner knows, and what it says of a step."""

from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ..rules._base import Carry


class Recent(NamedTuple):
    """The steps since the last update (or, in a rolling window, the last n), and how many there are."""

    xs: PyTree[Array]
    ys: PyTree[Array]
    weights: Float[Array, " K"]
    count: Int[Array, ""]


class LearnerState(NamedTuple):
    """All that a learner knows: one pytree of arrays, and what a checkpoint holds.

    - `network`, `synthesiser`: their parameters (`Learner.modules` gives the modules).
    - `optimisers`: the states of both.
    - `carry`: at the last update: the network's state then, and the rule's memory (its trace).
    - `now`: the network's state now.
    - `recent`: the steps since the last update; `None` if there is an update at every one.
    - `steps`, `updates`, `skipped`: counters, up to 2³¹ − 1.
    """

    network: Any
    synthesiser: Any
    optimisers: tuple[Any, Any]
    carry: Carry
    now: PyTree[Array]
    recent: Recent | None
    key: PRNGKeyArray
    steps: Int[Array, ""]
    updates: Int[Array, ""]
    skipped: Int[Array, ""]


class StepInfo(NamedTuple):
    """What happened in one step.

    - `prediction`: made before anything was learned from the target.
    - `loss`: of the prediction; 0 without a target, or where the data have none; at most the largest float.
    - `td_error`: the norm of the synthesiser's error in an update: of the TD error δ, if there is one at every step.
    - `network_gradient`, `synthesiser_gradient`: their norms in an update.
    - `updated`: whether there was an update.
    - `skipped`: whether there was none because something was not finite. Only the counters have then changed; a trace
      that had overflowed is empty again. With `update_every`, where it is a whole window's update that cannot be made,
      the state is that of the window's start.
    """

    prediction: PyTree[Array]
    loss: Float[Array, ""]
    td_error: Float[Array, ""]
    network_gradient: Float[Array, ""]
    synthesiser_gradient: Float[Array, ""]
    updated: Bool[Array, ""]
    skipped: Bool[Array, ""]
