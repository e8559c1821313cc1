"""The streaming learner: a network that learns from a live stream, one step at a time, in constant memory."""

from ._learner import Learner
from ._state import LearnerState, StepInfo

__all__ = ["Learner", "LearnerState", "StepInfo"]
