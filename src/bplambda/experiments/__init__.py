"""The paper's figures and tables, and what lies beyond them, one file each."""

from . import best, fig2, fig3, fig4, fig5, figS1, figS2, table1, theorem
from ._base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        theorem.EXPERIMENT,
        fig2.EXPERIMENT,
        fig3.EXPERIMENT,
        figS1.EXPERIMENT,
        figS2.EXPERIMENT,
        table1.TOY,
        fig4.EXPERIMENT,
        fig5.EXPERIMENT,
        table1.WHOLE,
        best.EXPERIMENT,
    )
}
