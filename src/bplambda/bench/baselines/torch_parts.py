"""What both PyTorch baselines need: our arrays as tensors, our losses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Tensor = Any  # torch.Tensor; PyTorch is an extra, and may be missing where types are checked


def tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))


# Each summed over all steps and examples that it is given.
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared_error": lambda prediction, y: ((prediction - y) ** 2).sum(),
    "softmax_cross_entropy": lambda prediction, y: F.cross_entropy(
        prediction.flatten(0, -2), y.flatten().long(), reduction="sum"
    ),
    "sigmoid_cross_entropy": lambda prediction, y: (
        F.binary_cross_entropy_with_logits(prediction, y, reduction="sum") / y.shape[-1]
    ),
}
