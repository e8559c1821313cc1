"""Where groups of runs are trained. An executor is one function: groups in, failures out."""

from ._base import Executor, Failure, OnProgress
from .local import LocalProcesses, in_this_process

__all__ = ["Executor", "Failure", "LocalProcesses", "OnProgress", "in_this_process"]
