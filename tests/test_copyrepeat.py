"""Copy-repeat: the task, its curriculum, the run."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bplambda.config import run_of
from bplambda.runs import Store
from bplambda.tasks import copyrepeat
from bplambda.training import copyrepeat as training
from bplambda.training import trainer, varied
from bplambda.training._base import learn
from bplambda.work import train_group

pytestmark = pytest.mark.usefixtures("plain_jax")

SMALL = {"units": 6, "batch_size": 4, "batches": 10, "epochs": 6, "network_rate": 1e-2, "readout_rate": 1e-2}


def test_the_curriculum():
    """After a level is solved: R += 1 if R < N, else N += 1."""
    n, r = 1, 1
    for number in range(20):
        assert copyrepeat.level(number) == (n, r)
        assert copyrepeat.level(number).length == n * (r + 1) + 3
        n, r = (n, r + 1) if r < n else (n + 1, r)
    assert [copyrepeat.level(i).length for i in range(8)] == [5, 7, 9, 12, 15, 19, 23, 28]


def test_a_batch_written_out():
    xs, ys, weights = map(np.asarray, copyrepeat.batch(copyrepeat.Level(2, 3), 5, key=jax.random.key(0)))
    assert len({pattern.tobytes() for pattern in xs[1, :, :8]}) == 5, "the examples differ"
    for b in range(5):
        first, second = xs[1, b, :8], xs[2, b, :8]
        assert set(first) | set(second) == {0.0, 1.0}
        silence = np.zeros(10)
        inputs = [[*[0] * 8, 1, 0], [*first, 0, 0], [*second, 0, 0], [*[0] * 8, 0, 0.3], *[silence] * 7]
        np.testing.assert_allclose(xs[:, b], np.array(inputs))
        said = [[*first, 0], [*second, 0]] * 3
        np.testing.assert_allclose(ys[4:, b], np.array([*said, [0] * 8 + [1]]))
    np.testing.assert_array_equal(weights, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1])
    assert weights.sum() == copyrepeat.Level(2, 3).targets


@pytest.mark.parametrize("rule", ["bplambda", "truncated"])
def test_the_level_rises_after_the_batch_that_solves_it(rule, monkeypatch):
    """The compiled chunks against a plain loop; and nothing is compiled twice."""
    solved = 0.89
    monkeypatch.setattr(training, "SOLVED", solved)
    compiled = []
    batch = copyrepeat.batch

    def counted(level, size, *, key):
        compiled.append(level)
        return batch(level, size, key=key)

    monkeypatch.setattr(copyrepeat, "batch", counted)
    run = run_of("copyrepeat", **SMALL, rule=rule, lam=0.5)
    how, v = trainer(run), varied([run])
    state = how.start(run, v, None)
    one = jax.tree.map(lambda a: a[0], state)
    curves = []
    for _ in range(2):
        state, new = how.advance(run, state, v, None, 3)
        curves.append(new)
    assert len(compiled) == len(set(compiled)), "one compilation for each level"
    found = {name: np.concatenate([c[name][0] for c in curves]) for name in ("error", "level")}

    bits, levels = [], []
    level, key, learned = 0, one.key, one.learned
    v = jax.tree.map(lambda a: a[0], v)
    step = eqx.filter_jit(lambda at, learned, key: learn(run, v, learned, batch(at, 4, key=key)))
    for _ in range(60):
        key, now = jax.random.split(key)
        at = copyrepeat.level(level)
        learned, info = step(at, learned, now)
        bits.append(float(info.loss) / (at.patterns * at.repeats + 1) / np.log(2))
        level += int(bits[-1] < solved)
        levels.append(level)
    assert level >= 2, "the curriculum moved, or this shows nothing"
    np.testing.assert_array_equal(found["level"], levels[9::10])
    np.testing.assert_allclose(found["error"], np.mean(np.reshape(bits, (6, 10)), axis=1), rtol=1e-3)


def test_the_final_figures():
    run = run_of("copyrepeat")
    summary = trainer(run).summary(run, {"error": np.array([0.5, 0.3]), "level": np.array([1, 3])})
    assert summary == {"error": 0.3, "level": 3, "solved_length": 9}
    assert training.solved_length(0) == 0


def test_a_stopped_run_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SOLVED", 0.89)
    group = [run_of("copyrepeat", **SMALL)]
    whole, stopped = Store(tmp_path / "whole"), Store(tmp_path / "stopped")
    train_group(group, whole, lambda _: None)

    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_group(group, stopped, stop)
    train_group(group, stopped, lambda _: None)
    a, b = whole.find(group[0]), stopped.find(group[0])
    assert a is not None
    assert b is not None
    np.testing.assert_array_equal(a.metrics["error"], b.metrics["error"])
    np.testing.assert_array_equal(a.metrics["level"], b.metrics["level"])


def test_memory_of_a_batch_that_would_need_gigabytes_for_its_trace():
    """N = R = 5, 100 units, batch 100: all temporary memory within 1 GB."""
    run = run_of("copyrepeat")
    how, v = trainer(run), varied([run])
    state, v = jax.tree.map(lambda a: a[0], (how.start(run, v, None), v))
    assert copyrepeat.level(8) == (5, 5)
    lowered = training._until_solved.lower(run, 8, state, v, 500, jnp.array(500))  # pyrefly: ignore[missing-attribute]
    analysis = lowered.compile().compiled.memory_analysis()
    assert analysis is not None
    assert 0 < analysis.temp_size_in_bytes < 0.2e9
