"""Sequential MNIST: the task, the compiled program, the run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bplambda.config import PIECES, run_of
from bplambda.data import DataError
from bplambda.runs import Store
from bplambda.tasks import seqmnist
from bplambda.training import trainer, varied
from bplambda.training.seqmnist import _error
from bplambda.work import train_group
from small_mnist import write_small_mnist  # pyrefly: ignore[missing-import]

pytestmark = pytest.mark.usefixtures("plain_jax")

SMALL = {"units": 8, "batch_size": 10, "batches": 16, "epochs": 3, "network_rate": 1e-2, "readout_rate": 1e-2}


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setenv("BPLAMBDA_DATA", str(tmp_path))
    return write_small_mnist(tmp_path)


def small(**settings):
    """A run on the small set in the folder, whose name is its hash."""
    from bplambda.data import data_folder, load_mnist

    return run_of("seqmnist", **(SMALL | {"data": load_mnist(data_folder(), checksum=False).name} | settings))


@pytest.mark.parametrize("length", PIECES)
def test_an_image_comes_in_pieces_from_top_left_to_bottom_right(length, images):
    pictures, labels = images["t10k-images-idx3-ubyte"][:3], images["t10k-labels-idx1-ubyte"][:3]
    xs, ys, weights = seqmnist.batch(jnp.asarray(pictures), jnp.asarray(labels), length)
    for b in range(3):
        pixels = [float(pixel) / 255 for row in pictures[b] for pixel in row]
        np.testing.assert_allclose(np.concatenate(xs[:, b]), pixels, rtol=1e-6)
        assert ys[-1, b] == labels[b]
    np.testing.assert_array_equal(weights, [0] * (length - 1) + [1])


def test_errors_are_those_of_the_predictions(images):
    network = seqmnist.network(6, 28, key=jax.random.key(1))
    digits = trainer(run := small()).data(run).test
    state = network.zero_state(len(digits.labels))
    for x in seqmnist.pieces(digits.images, 28):
        state = jax.vmap(network.cell)(x, state)
    guesses = np.argmax(jax.vmap(network.readout)(state[0]), axis=1)
    assert 0 < np.mean(guesses != digits.labels) < 1
    np.testing.assert_allclose(_error(network, digits, 28), np.mean(guesses != digits.labels), rtol=1e-6)


def test_runs_see_different_images_and_learn(images):
    runs = [small(seed=seed, epochs=40, rule="bptt") for seed in (0, 1)]
    how, v = trainer(runs[0]), varied(runs)
    data = how.data(runs[0])
    state = how.start(runs[0], v, data)
    assert all(sorted(order) == list(range(200)) for order in np.asarray(state.order))
    assert np.any(state.order[0] != state.order[1])
    state, curves = how.advance(runs[0], state, v, data, 40)
    assert {name: curve.shape for name, curve in curves.items()} == dict.fromkeys(curves, (2, 40))
    assert np.all(curves["loss"][:, -1] < 0.7 * curves["loss"][:, 0])
    assert np.all(curves["test_error"][:, -1] < 0.6)


def test_a_synthesiser_that_is_told_the_label_and_the_time(images):
    pictures, labels = images["t10k-images-idx3-ubyte"], jnp.asarray(images["t10k-labels-idx1-ubyte"])
    hints = np.asarray(seqmnist.hints(labels, 28))
    pairs = {(t, int(label)): float(hints[t, b, 0]) for t in range(28) for b, label in enumerate(labels)}
    assert len(set(pairs.values())) == len(pairs)
    assert min(pairs.values()) >= 0
    assert max(pairs.values()) < 280
    assert hints.shape == (28, len(pictures), 1)
    run = small(epochs=30, synthesiser="conditional", schedule="cosine", scale=1.0, gamma=1.0)
    assert run.to_json().keys() - small().to_json().keys() == {"synthesiser", "schedule"}
    how, v = trainer(run), varied([run])
    data = how.data(run)
    state, curves = how.advance(run, how.start(run, v, data), v, data, 30)
    assert state.learned.synthesiser.bias.shape == (1, 280, 16)
    assert state.learned.synthesiser.weight.shape == (1, 16, 10, 16)
    assert np.all(hints % 10 == labels[:, None]), "a matrix for each label"
    assert curves["loss"][0, -1] < 0.8 * curves["loss"][0, 0]
    # At the end the rates are zero, and what is said of the test images is not told by their labels.
    network = jax.tree.map(lambda a: a[0], state.learned.network)
    others = data.test._replace(labels=(data.test.labels + 1) % 10)
    wrong = _error(network, data.test, 28), _error(network, others, 28)
    np.testing.assert_allclose(curves["test_error"][0, -1], wrong[0], atol=1e-6)
    assert wrong[0] + wrong[1] > 1 - 1e-6, "no prediction can be right for both"


def test_the_images_held_out_are_never_learned_from(images):
    """Their pixels may be anything, as long as nobody looks."""
    run = small(epochs=1)
    how, v = trainer(run), varied([run])
    data = how.data(run)
    state = how.start(run, v, data)
    held_out = np.asarray(state.order[0, -40:])
    spoilt = data._replace(train=data.train._replace(images=data.train.images.at[held_out].set(255)))
    a, b = (how.advance(run, state, v, d, 1)[0].learned.network for d in (data, spoilt))
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_test_images_count_at_the_epoch_of_best_validation():
    curves = {"error": np.array([0.5, 0.2, 0.3, 0.2]), "test_error": np.array([0.4, 0.25, 0.1, 0.0])}
    found = trainer(run := run_of("seqmnist")).summary(run, curves)
    assert (found["best_epoch"], found["test_accuracy"], found["validation_accuracy"]) == (2, 75.0, 80.0)


def test_a_stopped_run_goes_on_to_the_same_numbers(images, tmp_path):
    group = [small(seed=seed, rule="nstep", n=n) for seed, n in ((0, 2), (1, 3))]
    whole, stopped = Store(tmp_path / "whole"), Store(tmp_path / "stopped")
    train_group(group, whole, lambda _: None)

    def stop(progress):
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_group(group, stopped, stop)
    train_group(group, stopped, lambda _: None)
    for run in group:
        a, b = whole.find(run), stopped.find(run)
        assert a is not None
        assert b is not None
        for name in ("loss", "error", "test_error"):
            np.testing.assert_array_equal(a.metrics[name], b.metrics[name])
        assert a.result["test_accuracy"] == b.result["test_accuracy"]


def test_other_images_than_the_run_s_are_refused(images, tmp_path):
    with pytest.raises(DataError, match="no-checksum"):
        trainer(run := run_of("seqmnist", **SMALL)).data(run)
    run = small()
    write_small_mnist(tmp_path, seed=1)
    with pytest.raises(ValueError, match="not those of this run"):
        trainer(run).data(run)


def test_too_few_images_for_an_epoch(images):
    run = small(batches=17)
    with pytest.raises(ValueError, match="200 images do not make 17 batches of 10"):
        trainer(run).data(run)
