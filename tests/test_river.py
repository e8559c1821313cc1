"""The River estimators: River's own checks, and features and classes that come and go."""

import copy
import math
import pickle
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest

pytest.importorskip("river")

from river import checks, datasets, evaluate, metrics, preprocessing

from bplambda.river import _RULES, RecurrentClassifier, RecurrentRegressor

pytestmark = pytest.mark.usefixtures("plain_jax")

BOTH = [RecurrentRegressor, RecurrentClassifier]


def stream(steps=40, seed=0):
    rng = np.random.default_rng(seed)
    return [({"a": a, "b": b}, a - 2 * b) for a, b in rng.normal(size=(steps, 2)).tolist()]


def taught(model, samples):
    for x, y in samples:
        model.learn_one(x, y)
    return model


@pytest.mark.parametrize("kind", BOTH)
def test_river_s_own_checks(kind, monkeypatch):
    # River imports scikit-learn here for the data of models with several targets, and of none else.
    monkeypatch.setitem(sys.modules, "sklearn", types.SimpleNamespace(datasets=None))
    model = kind(units=3)
    assert model._unit_test_skips() == set()
    checks.check_estimator(model)


@pytest.mark.parametrize("rule", _RULES)
@pytest.mark.parametrize("kind", BOTH)
def test_every_rule_learns(kind, rule):
    model = kind(units=3, rule=rule, network_rate=0.03, n=2)
    samples = stream(300) if kind is RecurrentRegressor else [(x, y > 0) for x, y in stream(300)]
    wrong = []
    for x, y in samples:
        wrong.append(abs(float(model.predict_one(x) or 0) - y))
        model.learn_one(x, y)
    assert np.mean(wrong[-100:]) < 0.6 * np.mean(wrong[:100])


@pytest.mark.parametrize("cell", ["gru", "lstm", "rnn"])
def test_it_remembers_and_the_scale_of_the_target_does_not_matter(cell):
    """The target is the input before: no model without a memory can know it."""
    rng = np.random.default_rng(1)
    inputs = rng.choice([-1.0, 1.0], size=1500)
    model = RecurrentRegressor(units=8, cell=cell)
    error = metrics.MAE()
    for t in range(1, 1500):
        x, y = {"x": inputs[t]}, 1e6 + 1e4 * inputs[t - 1]
        if t > 1000:
            error.update(y, model.predict_one(x))
        model.learn_one(x, y)
    assert error.get() < 0.5e4


def test_in_a_pipeline():
    model = preprocessing.StandardScaler() | RecurrentRegressor(units=3, network_rate=0.01)
    found = evaluate.progressive_val_score(datasets.TrumpApproval().take(300), model, metrics.MAE())
    assert found.get() < 3
    model = preprocessing.StandardScaler() | RecurrentClassifier(units=3, network_rate=0.01)
    found = evaluate.progressive_val_score(datasets.Phishing().take(300), model, metrics.Accuracy())
    assert found.get() > 0.7


def test_predictions_before_anything_was_learned():
    assert RecurrentRegressor(units=3).predict_one({"a": 1.0}) == 0.0
    classifier = RecurrentClassifier(units=3)
    assert classifier.predict_one({"a": 1.0}) is None
    assert classifier.predict_proba_one({"a": 1.0}) == {}


def test_a_prediction_changes_nothing():
    model = taught(RecurrentRegressor(units=3), stream(5))
    before = pickle.dumps(model)
    predictions = {model.predict_one({"a": 1.0, "never seen": 9.0, "text": "too"}) for _ in range(3)}
    assert predictions == {model.predict_one({"a": 1.0})}
    assert pickle.dumps(model) == before


def test_the_order_of_keys_does_not_matter():
    forward, backward = (RecurrentRegressor(units=3) for _ in range(2))
    samples = [({"b": 1.0, "a": -1.0, 3: True, "c": "x"}, 1.0), ({"c": "y", ("t", 1): 2, "a": 0.5}, -1.0)] * 4
    for x, y in samples:
        forward.learn_one(x, y)
        backward.learn_one(dict(reversed(x.items())), y)
    assert forward._columns == backward._columns
    assert forward.predict_one(x) == backward.predict_one(dict(reversed(x.items())))


def test_growing_keeps_all_that_is_known():
    """A network that has grown, but sees no more than before, learns as if it had not."""
    small = taught(RecurrentClassifier(units=3), [(x, y > 0) for x, y in stream(20)])
    grown, x = copy.deepcopy(small), {"a": 0.3, "b": -0.2}
    grown._columns |= {(f"unused {i}",): 2 + i for i in range(20)}
    for model in (small, grown):
        taught(model, [(x, y > 0) for x, y in stream(20, seed=1)])
    assert (small._sizes, grown._sizes) == ((8, 8), (32, 8))
    before, after = small.predict_proba_one(x), grown.predict_proba_one(x)
    np.testing.assert_allclose(list(before.values()), list(after.values()), rtol=1e-4)
    weights = grown._state.network.cell.weight_ih[:, 8:]
    assert np.all(weights != 0), "new columns begin as the others did"
    assert np.max(np.abs(weights)) <= 1 / math.sqrt(3)
    assert np.all(grown._state.optimisers[0][0].mu.cell.weight_ih[:, 8:] == 0)
    grown._state, grown._sizes = grown._grown((32, 16)), (32, 16)
    assert grown._state.network.readout.weight.shape == (16, 3)
    assert grown.predict_proba_one(x) == after


def test_many_features_and_classes_one_after_the_other():
    model = RecurrentClassifier(units=3, network_rate=0.03)
    labels = [*range(6), "a", ("b", 1), frozenset(), False, 2.5]  # False is 0
    for i in range(60):
        model.learn_one({f"feature {i % 20}": 1.0, "word": f"{i % 5}"}, labels[i % 11])
        proba = model.predict_proba_one({})
        assert set(proba) == set(labels[: i + 1])
        assert math.isclose(sum(proba.values()), 1)
    assert model._sizes == (32, 16)


def test_a_string_is_a_feature_of_its_own_for_each_value():
    """`sky` alone tells the class."""
    model = RecurrentClassifier(units=4, network_rate=0.03)
    rng = np.random.default_rng(0)
    right = []
    for word in rng.choice(["red", "grey"], size=200).tolist():
        y = "good" if word == "red" else "bad"
        right.append(model.predict_one({"sky": word, ("sky", "red"): 0.0}) == y)
        model.learn_one({"sky": word, ("sky", "red"): 0.0}, y)
    assert np.mean(right[-100:]) > 0.9
    assert set(model._columns) == {("sky", "red"), ("sky", "grey"), (("sky", "red"),)}


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e39])
@pytest.mark.parametrize("where", ["x", "y"])
def test_a_sample_that_is_not_finite_is_as_if_it_had_never_been(value, where):
    model = taught(RecurrentRegressor(units=3), stream(5))
    before = pickle.dumps(model)
    model.learn_one(*(({"a": value, "new": 1.0}, 1.0) if where == "x" else ({"a": 1.0}, value)))
    assert pickle.dumps(model) == before
    assert model.predict_one({"a": value, "b": 1.0}) == model.predict_one({"b": 1.0})


def test_a_class_that_is_nan_is_left_out():
    model = taught(RecurrentClassifier(units=3), [({"a": 1.0}, math.nan)])
    assert model.predict_proba_one({"a": 1.0}) == {}


@pytest.mark.parametrize("model", [RecurrentRegressor, RecurrentClassifier])
def test_a_sample_without_a_label_moves_the_state_alone(model):
    found = model(units=3)
    for y in (None, 1.0, 2.0):
        found.learn_one({"a": 1.0}, y)
    before = found._state
    found.learn_one({"a": -1.0}, None)
    assert np.any(found._state.now != before.now)
    assert int(found._state.updates) == int(before.updates) + 1
    if model is RecurrentClassifier:
        assert list(found._seen) == [1.0, 2.0]
    found.learn_one({"a": float("nan")}, None)
    assert int(found._state.steps) == int(before.steps) + 1


def test_a_missing_feature_is_zero():
    one, other = (RecurrentRegressor(units=3) for _ in range(2))
    for x, y in stream(10):
        one.learn_one(x | {"b": 0, "c": False}, y)
        other.learn_one({"a": x["a"], "b": None} if one._seen.n > 1 else x | {"b": 0, "c": 0}, y)
    assert one.predict_one({"a": 1.0}) == other.predict_one({"a": 1.0, "b": 0.0})


def test_one_wrong_target_does_no_lasting_harm():
    samples = stream(150)
    good, wrong = RecurrentRegressor(units=3), RecurrentRegressor(units=3)
    for i, (x, y) in enumerate(samples):
        good.learn_one(x, y)
        wrong.learn_one(x, 1e30 if i == 60 else y)
    deviation = np.std([y for _, y in samples])
    assert abs(wrong.predict_one(samples[0][0]) - good.predict_one(samples[0][0])) < 3 * deviation


def test_a_constant_target():
    model = taught(RecurrentRegressor(units=3), [({"a": 1.0}, 5.0)] * 3)
    assert abs(model.predict_one({"a": 1.0}) - 5) < 1


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_goes_on_by_itself(how):
    model = taught(RecurrentRegressor(units=3, update_every=2), stream(7))
    other = how(model)
    x = {"a": 1.0, "b": 0.5}
    assert other.predict_one(x) == model.predict_one(x)
    before = model.predict_one(x)
    taught(other, stream(7, seed=1))
    assert model.predict_one(x) == before != other.predict_one(x)
    assert taught(model, stream(7, seed=1)).predict_one(x) == other.predict_one(x)


def test_the_seed_alone_decides():
    first, again, other = (taught(RecurrentRegressor(units=3, seed=s), stream(9)) for s in (1, 1, 2))
    assert first.predict_one({"a": 1.0}) == again.predict_one({"a": 1.0}) != other.predict_one({"a": 1.0})


def test_nothing_is_compiled_until_there_is_no_room(compilations):
    model = taught(RecurrentRegressor(units=3), stream(3))
    model.predict_one({"a": 1.0})
    more = [({f"feature {i}": 1.0}, 1.0) for i in range(6)]
    assert not compilations(lambda: [taught(model, [s]).predict_one(s[0]) for s in more])
    another = RecurrentRegressor(units=3, seed=7)
    taught(another, stream(1))
    assert not compilations(lambda: taught(another, stream(5)).predict_one({"a": 1.0})), "estimators alike share it"
    assert compilations(lambda: taught(model, [({"the ninth": 1.0}, 1.0)]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"units": 0}, "units is 0"),
        ({"n": 0}, "n is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"cell": "elman"}, "cell is 'elman', but must be one of gru, lstm, rnn"),
        ({"rule": "bptt"}, "rule is 'bptt', but must be one of bplambda, true-online"),
        ({"lam": 1.5}, "lam is 1.5"),
        ({"network_rate": 0.0}, "network_rate is 0.0"),
        ({"rule": "true-online", "update_every": 2}, "update_every is 2, but must be 1"),
        ({"rule": "nstep", "n": 3, "update_every": 4}, "update_every is 4, but must be a multiple of n = 3"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, words):
    with pytest.raises(ValueError, match=words):
        RecurrentClassifier(**settings)


def test_wrong_values_are_refused():
    model: Any = RecurrentRegressor(units=3)
    with pytest.raises(ValueError, match=r"feature 'a' is \[1\], but must be a number or a string"):
        model.learn_one({"a": [1]}, 1.0)
    with pytest.raises(ValueError, match="y is 'one', but must be a number"):
        model.learn_one({"a": 1}, "one")


def test_without_river():
    """The package does not need it, and the module says what to do."""
    code = (
        "import sys, bplambda; assert not any(name.split('.')[0] == 'river' for name in sys.modules)\n"
        "sys.modules['river'] = None\n"
        "import bplambda.river"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: bplambda.river needs River" in found.stderr
    assert "pip install '.[river]'" in found.stderr
