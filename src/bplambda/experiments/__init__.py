"""The paper's figures and tables, one file each."""

from . import fig2, fig3, figS1, figS2, table1, theorem
from ._base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT for module in (theorem, fig2, fig3, figS1, figS2, table1)
}
