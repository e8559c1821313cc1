"""The commands of `bplambda stream`."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from .session import Settings


@dataclass(kw_only=True)
class _Learning:
    """What all streams have."""

    units: Annotated[int, arg(help="Number of units in the cell.")] = 24
    cell: Annotated[Literal["gru", "lstm", "rnn"], arg(help="Kind of cell; an LSTM's state is twice as large.")] = "gru"
    lam: Annotated[float, arg(help="Trace decay λ, from 0 to 1.")] = 1.0
    gamma: Annotated[float, arg(help="Discount γ of later gradients, from 0 to 1.")] = 0.95
    network_rate: Annotated[float, arg(help="Learning rate of the network.")] = 1e-3
    synthesiser_rate: Annotated[float, arg(help="Learning rate of the synthesiser.")] = 1e-3
    seed: Annotated[int, arg(help="Seed of the first weights, and of a made-up stream.")] = 0
    update_every: Annotated[int, arg(help="Steps between two updates of BP(λ); more are faster.")] = 1
    checkpoint: Annotated[
        Path | None,
        arg(help="Where all that was learned is kept; if it is there, learning goes on from it."),
    ] = None
    plot: Annotated[Path | None, arg(help="Draw the running errors: a .png, .pdf or .svg.")] = None

    def settings(self) -> "Settings":
        from ..cache import use_compilation_cache
        from ..options import again
        from .session import Settings

        use_compilation_cache()
        return Settings(**{field.name: getattr(self, field.name) for field in fields(_Learning)}, again=again())


@dataclass(kw_only=True)
class StreamEcho(_Learning):
    """Repeat the input of a few steps ago: what learning from the current loss alone is bad at.

    BP(λ), no BPTT and truncated BPTT through the last 5 steps learn from the same endless stream, an update at every
    step. The inputs are of variance 1, so that to say zero is a squared error of 1.

    Example: bplambda stream echo --delay 4 --plot echo.png
    """

    delay: Annotated[int, arg(help="How many steps ago.")] = 8
    steps: Annotated[int, arg(help="Total steps, including those in the checkpoint.")] = 40_000

    def run(self) -> int:
        from .made_up import learn_echo

        return learn_echo(self.delay, self.steps, self.settings())


@dataclass(kw_only=True)
class StreamMackeyGlass(_Learning):
    """Predict the next number of a chaotic series, that of Mackey and Glass (τ = 17, every 6 units of time).

    BP(λ), no BPTT and truncated BPTT through the last 5 steps learn from the same series, an update at every step.
    Persistence, that the next number will be as this one, is beside them.

    Example: bplambda stream mackey-glass --steps 20000 --plot mackey-glass.png
    """

    steps: Annotated[int, arg(help="Total steps, including those in the checkpoint.")] = 20_000

    def run(self) -> int:
        from .made_up import learn_mackey_glass

        return learn_mackey_glass(self.steps, self.settings())


@dataclass(kw_only=True)
class StreamCsv(_Learning):
    """Learn from a CSV of your own, line by line as lines arrive, with BP(λ).

    Writes line,prediction,target to standard output, each as soon as its line is there; a prediction is made before
    its target is learned. The first line names the columns. Numbers are standardised by their mean and variance so
    far; none counts as more than 10 deviations off, so that a sensor's error code does no lasting harm. An empty cell
    of the target means that it is not known: there is a prediction, and nothing to learn.

    With a horizon of 1, the prediction beside a line is that of the next line's target. If there is something to plot,
    no BPTT and truncated BPTT learn too. From a checkpoint, the same file or pipe, longer by now or not, goes on after
    the last line that was learned; another begins with its first.

    Example: tail -n +1 -f sensors.csv | bplambda stream csv - --target power --checkpoint power.npz
    """

    file: Annotated[Positional[str], arg(metavar="FILE", help="The CSV; - for standard input.")]
    target: Annotated[str, arg(help="The column to predict.")]
    features: Annotated[
        str,
        arg(help="The columns to predict it from, as a,b,c; if left out, all with a number in the first line."),
    ] = ""
    horizon: Annotated[
        Literal[0, 1],
        arg(help="0: a line's target from the line. 1: the next line's, from the line and its own target."),
    ] = 0
    on_error: Annotated[Literal["skip", "stop"], arg(help="What to do at a bad line.")] = "skip"
    missing: Annotated[
        Literal["mean", "skip"], arg(help="A feature's cell that is empty or nan: its mean so far, or a bad line.")
    ] = "mean"
    delimiter: Annotated[str, arg(help="Between two fields; tab for a tab.")] = ","

    def run(self) -> int:
        from .own_csv import learn_csv

        features = [name.strip() for name in self.features.split(",") if name.strip()]
        settings = self.settings()
        return learn_csv(
            self.file, self.target, features, self.horizon, self.on_error, self.missing, self.delimiter, settings
        )


STREAMS: dict[str, Callable[..., Any]] = {"echo": StreamEcho, "mackey-glass": StreamMackeyGlass, "csv": StreamCsv}
