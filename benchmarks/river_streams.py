"""Real streams that come with River: our estimators, River's linear models, and deep-river's rolling LSTM.

    python benchmarks/river_streams.py

Each sample is predicted, then learned from; networks are means of three seeds. Prints a table of the mean absolute
error or the accuracy over the whole stream, and the median time of a sample, both calls together, on one thread.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tyro
from river import base, datasets, linear_model, metrics, preprocessing

from bplambda.river import RecurrentClassifier, RecurrentRegressor

SEEDS = (0, 1, 2)
UNITS, RATE, WINDOW = 16, 1e-2, 5


class Stream(NamedTuple):
    """A stream of numeric features; `classes` is 0 for a regression."""

    samples: Callable[[], Iterable[tuple[dict, Any]]]
    classes: int


def circle(name: str, part: float) -> dict[str, float]:
    return {f"{name} sin": math.sin(math.tau * part), f"{name} cos": math.cos(math.tau * part)}


def water_flow() -> Iterator[tuple[dict, float]]:
    for x, y in datasets.WaterFlow():
        now = x["Time"]
        yield circle("hour", (now.hour + now.minute / 60) / 24) | circle("day", now.weekday() / 7), y


def passengers() -> Iterator[tuple[dict, float]]:
    for x, y in datasets.AirlinePassengers():
        now = x["month"]
        yield {"year": now.year} | circle("month", now.month / 12), y


STREAMS = {
    "TrumpApproval": Stream(datasets.TrumpApproval, 0),
    "ChickWeights": Stream(datasets.ChickWeights, 0),
    "WaterFlow": Stream(water_flow, 0),
    "AirlinePassengers": Stream(passengers, 0),
    "Phishing": Stream(datasets.Phishing, 2),
    "Bananas": Stream(datasets.Bananas, 2),
    "ImageSegments": Stream(datasets.ImageSegments, 7),
}


def ours(rule: str) -> Callable[[Stream, int, int], base.Estimator]:
    def make(stream: Stream, features: int, seed: int) -> base.Estimator:
        kind = RecurrentClassifier if stream.classes else RecurrentRegressor
        return kind(UNITS, rule=rule, n=WINDOW, network_rate=RATE, seed=seed)

    return make


def linear(stream: Stream, features: int, seed: int) -> base.Estimator:
    """With the faster intercept of River's own examples: without it, a target far from 0 takes long to reach."""
    if stream.classes > 2:
        return linear_model.SoftmaxRegression()
    return linear_model.LogisticRegression() if stream.classes else linear_model.LinearRegression(intercept_lr=0.1)


def deep_river(stream: Stream, features: int, seed: int) -> base.Estimator:
    """As large, as fast and as long a window as ours, with the target standardised too."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    settings: dict[str, Any] = dict(
        n_features=features, hidden_size=UNITS, optimizer_fn="adam", lr=RATE, window_size=WINDOW, seed=seed
    )
    if stream.classes:
        zoo = importlib.import_module("deep_river.classification.zoo")
        return zoo.LSTMClassifier(n_init_classes=stream.classes, **settings)
    zoo = importlib.import_module("deep_river.regression.zoo")
    return preprocessing.TargetStandardScaler(regressor=zoo.LSTMRegressor(**settings))


MODELS: dict[str, tuple[Callable[[Stream, int, int], base.Estimator], tuple[int, ...]]] = {
    "BP(λ)": (ours("bplambda"), SEEDS),
    f"truncated BPTT({WINDOW})": (ours("truncated"), SEEDS),
    "no BPTT": (ours("none"), SEEDS),
    "River's linear model": (linear, (0,)),
    "deep-river's LSTM": (deep_river, SEEDS),
}


def measure(make: Callable, stream: Stream, seed: int) -> tuple[float, float]:
    """The metric over the whole stream, and the median seconds of a sample."""
    features = len(next(iter(stream.samples()))[0])
    model: Any = preprocessing.StandardScaler() | make(stream, features, seed)
    metric: Any = metrics.Accuracy() if stream.classes else metrics.MAE()
    times = []
    for x, y in stream.samples():
        start = time.perf_counter()
        prediction = model.predict_one(x)
        model.learn_one(x, y)
        times.append(time.perf_counter() - start)
        if prediction is not None:
            metric.update(y, prediction)
    return float(metric.get()), statistics.median(times)


def main() -> None:
    models = dict(MODELS)
    try:
        importlib.import_module("deep_river")
    except ImportError as error:
        print(f"deep-river is left out: {error}\n")
        del models["deep-river's LSTM"]
    print("| stream | | " + " | ".join(models) + " |")
    print("|---|---|" + "---|" * len(models))
    spent: dict[str, list[float]] = {name: [] for name in models}
    for name, stream in STREAMS.items():
        cells = []
        for model, (make, seeds) in models.items():
            found = [measure(make, stream, seed) for seed in seeds]
            spent[model] += [seconds for _, seconds in found]
            mean = statistics.mean(value for value, _ in found)
            cells.append(f"{mean:.1%}" if stream.classes else f"{mean:.3g}")
        print(f"| {name} | {'accuracy' if stream.classes else 'error'} | {' | '.join(cells)} |", flush=True)
    times = (f"{1e3 * statistics.median(spent[model]):.2g} ms" for model in models)
    print(f"| | time of a sample | {' | '.join(times)} |")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
