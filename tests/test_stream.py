"""The streaming demos: their sources against the definitions, and the commands as a person would use them."""

import io
import math
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tyro

from bplambda.checkpoints import CheckpointError
from bplambda.stream import made_up
from bplambda.stream.cli import STREAMS, StreamCsv, StreamEcho, StreamMackeyGlass
from bplambda.stream.own_csv import nothing_yet, teach
from bplambda.stream.session import POINTS, WINDOW, Meter, Settings, begin, make_learners
from bplambda.stream.sources import DEVIATION, MEAN, BadLine, CsvStream, Row, Scale, echo, mackey_glass

pytestmark = pytest.mark.usefixtures("plain_jax")

SMALL: dict[str, Any] = {"units": 3, "gamma": 0.9}


def test_an_echo_is_the_input_of_some_steps_ago():
    xs, ys = echo(5000, delay=3, seed=1)
    np.testing.assert_array_equal(ys[3:], xs[:-3])
    assert not ys[:3].any()
    assert np.abs(xs).max() <= math.sqrt(3)
    assert xs.var() == pytest.approx(1, abs=0.05)
    np.testing.assert_array_equal(echo(100, 3, 1), (xs[:100], ys[:100]))
    np.testing.assert_array_equal(echo(2, 5)[1], [0, 0])


def test_mackey_glass_solves_its_equation():
    """The derivative by central differences of order 8, which is all that spacing 1 allows."""
    series = mackey_glass(3000, seed=2, spacing=1)
    x = MEAN + DEVIATION * series
    weights = np.array([1 / 280, -4 / 105, 1 / 5, -4 / 5, 0, 4 / 5, -1 / 5, 4 / 105, -1 / 280])
    slope = np.convolve(x, weights[::-1], mode="valid")
    x = x[4:-4]
    residual = slope[17:] - (0.2 * x[:-17] / (1 + x[:-17] ** 10) - 0.1 * x[17:])
    assert np.abs(residual).max() < 1e-4 < 1e-2 < np.abs(slope).max()
    assert abs(series.mean()) < 0.05
    assert series.std() == pytest.approx(1, abs=0.05)
    np.testing.assert_array_equal(mackey_glass(100, seed=2), series[::6][:100])
    assert np.abs(mackey_glass(100, seed=3) - mackey_glass(100, seed=2)).max() > 0.1


def test_columns_are_standardised_by_what_has_been_seen():
    rng = np.random.default_rng(0)
    values = rng.normal(1e6, 3.0, size=(50, 2))
    values[[0, 7, 8], 1] = np.nan
    scale = Scale(*np.zeros((3, 2)))
    assert scale.target([5.0]) == 0, "nothing is known yet"
    for row in values:
        scale = scale.add(row)
    np.testing.assert_allclose(scale.mean, np.nanmean(values, axis=0))
    np.testing.assert_allclose(scale.deviation, np.nanstd(values, axis=0))
    assert scale.standardised(np.array([1e6, np.nan]))[1] == 0
    assert scale.target([2.0]) == pytest.approx(np.nanmean(values[:, 1]) + 2 * np.nanstd(values[:, 1]))
    assert not Scale(*np.zeros((3, 1))).add(np.array([4.0])).standardised(np.array([4.0])).any()


def test_a_meter_keeps_its_course_in_constant_memory():
    errors = np.random.default_rng(1).uniform(size=5 * POINTS + 77)
    means, mean = [], 0.0
    for n, error in enumerate(errors, start=1):
        mean += (error - mean) / min(n, WINDOW)
        means.append(mean)
    assert means[99] == pytest.approx(errors[:100].mean())
    meter = Meter().add(*errors[:1000]).add(*errors[1000:])
    at, curve = meter.course()
    assert POINTS // 2 <= len(at) <= POINTS == len(meter.curve)
    assert len(errors) - at[-1] < 8
    np.testing.assert_array_equal(curve, np.array(means)[at - 1])


def same_checkpoints(a: Path, b: Path) -> None:
    with np.load(a) as first, np.load(b) as second:
        assert first.files == second.files
        for name in first.files:
            np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("make", [StreamEcho, StreamMackeyGlass])
def test_a_made_up_stream_goes_on_as_if_it_had_not_stopped(make, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(made_up, "CHUNK", 100)
    one, two, plot = tmp_path / "new" / "one.npz", tmp_path / "two.npz", tmp_path / "plot.png"
    assert make(steps=400, checkpoint=one, plot=plot, **SMALL).run() == 0
    out, err = capsys.readouterr()
    for name in ("BP(1)", "no BPTT", "BPTT n=5", "400 steps"):
        assert name in out
    assert ("predict zero" if make is StreamEcho else "persistence") in out
    assert f"drawn in {plot}" in err
    assert plot.stat().st_size > 10_000
    for steps in (200, 400):
        assert make(steps=steps, checkpoint=two, **SMALL).run() == 0
    assert "Going on after step 200" in capsys.readouterr().err
    same_checkpoints(one, two)
    assert make(steps=400, checkpoint=two, **SMALL).run() == 0
    assert "Step 400 is done" in capsys.readouterr().err
    same_checkpoints(one, two)


def test_bplambda_learns_to_echo_what_one_step_truncation_does_not():
    settings = Settings(12, "gru", 1.0, 0.9, 3e-3, 3e-3, 0, 1, None, None, "")
    xs, ys = echo(8000, 3)
    errors = {}
    for name, learner in make_learners(1, settings).items():
        _, info = learner.run(learner.init(jax.random.key(0)), xs[:, None], ys[:, None])
        errors[name] = float(info.loss[-1000:].mean())
    assert errors["BP(1)"] < 0.5 * errors["no BPTT"]
    assert errors["BPTT n=5"] < 0.5 * errors["no BPTT"], "three steps are within its window"


def some_lines(count=60, seed=0, gaps=True) -> list[str]:
    rng = np.random.default_rng(seed)
    lines = ["when,a,b,y"]
    for t, (a, b) in enumerate(rng.normal(size=(count, 2))):
        y = "" if gaps and t % 9 == 4 else f"{100 + 5 * a - b:.3f}"
        lines.append(f"day {t},{a:.4f},{b:.4f},{y}")
    return lines


def written(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def predictions(capsys) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "line,prediction,target"
    return lines[1:]


def test_a_csv_of_one_s_own(tmp_path, capsys):
    path = written(tmp_path / "data.csv", some_lines())
    plot = tmp_path / "plot.svg"
    assert StreamCsv(file=path, target="y", plot=plot, **SMALL).run() == 0
    out, err = capsys.readouterr()
    rows = [line.split(",") for line in out.splitlines()[1:]]
    assert [int(line) for line, _, _ in rows] == list(range(2, 62))
    assert [target for _, _, target in rows if not target] == [""] * 7
    assert all(90 < float(prediction) < 115 for _, prediction, _ in rows[5:])
    for words in ("From a, b to y.", "BP(1)", "no BPTT", "BPTT n=5", "persistence", f"drawn in {plot}"):
        assert words in err
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize("horizon", [0, 1])
@pytest.mark.parametrize("how", ["the same file, longer", "another file"])
def test_a_csv_goes_on_as_if_it_had_not_stopped(horizon, how, tmp_path, capsys):
    lines = some_lines()
    settings: dict[str, Any] = SMALL | {"target": "y", "horizon": horizon}
    whole = written(tmp_path / "whole.csv", lines)
    StreamCsv(file=whole, checkpoint=tmp_path / "one.npz", **settings).run()
    expected = predictions(capsys)
    file = written(tmp_path / "part.csv", lines[:30])
    StreamCsv(file=file, checkpoint=tmp_path / "two.npz", **settings).run()
    found = predictions(capsys)
    if how == "another file":
        file = written(tmp_path / "rest.csv", [lines[0], *lines[30:]])
    else:
        written(tmp_path / "part.csv", lines)
    StreamCsv(file=file, checkpoint=tmp_path / "two.npz", **settings).run()
    found += predictions(capsys)
    if how == "another file":
        assert [row.split(",", 1)[1] for row in found] == [row.split(",", 1)[1] for row in expected]
    else:
        assert found == expected
        same_checkpoints(tmp_path / "one.npz", tmp_path / "two.npz")
    StreamCsv(file=file, checkpoint=tmp_path / "two.npz", **settings).run()
    assert predictions(capsys) == [], "nothing is learned twice"


@pytest.mark.parametrize("horizon", [0, 1])
def test_no_prediction_knows_its_target(horizon, tmp_path, capsys):
    lines = some_lines(20, gaps=False)
    changed = list(lines)
    changed[10] = lines[10].rsplit(",", 1)[0] + ",500"
    rows = []
    for which in (lines, changed):
        StreamCsv(file=written(tmp_path / "data.csv", which), target="y", horizon=horizon, **SMALL).run()
        rows.append([row.split(",")[1] for row in predictions(capsys)])
    known = 10 if horizon == 0 else 9  # the prediction beside line 11 is of line 12's target if the horizon is 1
    assert rows[0][:known] == rows[1][:known]
    assert rows[0][known] != rows[1][known]


@pytest.mark.parametrize("horizon", [0, 1])
def test_nothing_is_compiled_after_the_first_lines(horizon, compilations):
    settings = Settings(3, "gru", 1.0, 0.9, 1e-3, 1e-3, 0, 2, None, None, "")
    learners = make_learners(2, settings)
    session = begin(learners, "persistence", settings, nothing_yet(2, learners))

    def go_on(times):
        nonlocal session
        for t in times:
            row = Row(t + 2, np.random.default_rng(t).normal(size=2), math.nan if t % 3 == 2 else float(t))
            session, prediction = teach(learners, session, row, 0, horizon)
            assert np.isfinite(prediction)

    assert compilations(lambda: go_on(range(2)))
    assert compilations(lambda: go_on(range(2, 12))) == 0


BAD = {
    5: ("day 3,1.0,oops,3.0", "line 5: b is 'oops', but must be a number."),
    9: ("day 7,1.0", "line 9: 2 fields, but there are 4 columns."),
    12: ("day 10,1.0,2.0,much", "line 12: y is 'much', but must be a number."),
    13: ("day 11,nan,2.0,1.0", "line 13: a is 'nan', but must be a number."),
    14: ("day 12,,2.0,1.0", "line 14: a is '', but must be a number."),
    15: ('"day 13,1.0,2.0,1.0', "line 15: unexpected end of data."),
    16: ("day 14,1e300,2.0,1.0", "line 16: a is '1e300', but must be a number."),
}


def test_bad_lines_are_reported_and_skipped(tmp_path, capsys):
    lines = some_lines(20)
    good = [line for number, line in enumerate(lines, start=1) if number not in BAD]
    for number, (line, _) in BAD.items():
        lines[number - 1] = line
    StreamCsv(file=written(tmp_path / "good.csv", good), target="y", **SMALL).run()
    expected = predictions(capsys)
    lines.insert(2, "")  # a blank line is nobody's mistake
    assert StreamCsv(file=written(tmp_path / "bad.csv", lines), target="y", missing="skip", **SMALL).run() == 0
    out, err = capsys.readouterr()
    found = out.splitlines()[1:]
    assert [row.split(",", 1)[1] for row in found] == [row.split(",", 1)[1] for row in expected]
    for number, (_, words) in BAD.items():
        assert f"Skipped {words.replace(f'line {number}', f'line {number + 1}')}" in err
    assert f"{len(BAD)} bad lines were skipped." in err


def test_many_bad_lines_are_counted(tmp_path, capsys):
    lines = some_lines(40)
    lines[10:35] = ["too few"] * 25
    assert StreamCsv(file=written(tmp_path / "bad.csv", lines), target="y", **SMALL).run() == 0
    err = capsys.readouterr().err
    assert err.count("Skipped line") == 20
    assert err.count("More are only counted.") == 1
    assert "25 bad lines were skipped." in err


def test_a_feature_that_is_missing_is_its_mean(tmp_path, capsys):
    """What stands there is not looked at, and does not count."""
    rows = {"with gaps": ["a,b,y"], "with the mean": ["a,b,y"]}
    seen: list[float] = []
    for t, (a, b) in enumerate(np.random.default_rng(0).normal(size=(40, 2)).round(4)):
        empty = t % 5 == 3
        mean = float(np.mean(seen)) if seen else 0.0
        seen += [] if empty else [b]
        rows["with gaps"].append(f"{a},{['', ' ', 'nan', 'NaN'][t % 4] if empty else b},{a + b}")
        rows["with the mean"].append(f"{a},{mean!r},{a + b}" if empty else f"{a},{b},{a + b}")
    found = {}
    for name, lines in rows.items():
        assert StreamCsv(file=written(tmp_path / "data.csv", lines), target="y", **SMALL).run() == 0
        out, err = capsys.readouterr()
        assert "bad line" not in err
        found[name] = [float(line.split(",")[1]) for line in out.splitlines()[1:]]
    assert len(found["with gaps"]) == 40
    # Up to the first gap the same; from then on one of the two has seen a number more, and so has another deviation.
    np.testing.assert_allclose(found["with gaps"][:4], found["with the mean"][:4], rtol=1e-6)
    np.testing.assert_allclose(found["with gaps"], found["with the mean"], atol=1)
    file = written(tmp_path / "data.csv", ["a,b,name,y", "1,,x,2", "2,3,y,1"])
    assert StreamCsv(file=file, target="y", **SMALL).run() == 0
    err = capsys.readouterr().err
    assert "From a to y." in err
    assert "Left out, as line 2 has no number there: b, name" in err


@pytest.mark.parametrize("glitch", [99999.0, -1e30, 1e99])
def test_one_wrong_number_does_no_lasting_harm(glitch, tmp_path, capsys):
    lines = some_lines(400, gaps=False)
    good = StreamCsv(file=written(tmp_path / "data.csv", lines), target="y", **SMALL)
    assert good.run() == 0
    expected = np.array([float(row.split(",")[1]) for row in predictions(capsys)])
    lines[150] = f"day 149,{glitch},0.5,{glitch}"
    assert StreamCsv(file=written(tmp_path / "data.csv", lines), target="y", **SMALL).run() == 0
    found = np.array([float(row.split(",")[1]) for row in predictions(capsys)])
    assert np.all(np.abs(found[150:] - expected[150:]) < 25), "the targets' deviation is 5"
    assert np.all(np.abs(found[-50:] - expected[-50:]) < 5)


def test_a_column_that_moves_is_followed():
    scale = Scale(*np.zeros((3, 1)))
    rng = np.random.default_rng(0)
    for value in rng.normal(0, 1, 200):
        scale = scale.add(np.array([value]))
    for value in rng.normal(1e6, 1, 2000):
        scale = scale.add(np.array([value]))
    assert scale.mean[0] > 0.5e6
    assert abs(scale.standardised(np.array([1e6]))[0]) < 1


def test_a_bad_line_can_be_refused_and_mended(tmp_path, capsys):
    lines = some_lines(20)
    StreamCsv(file=written(tmp_path / "good.csv", lines), target="y", **SMALL).run()
    expected = predictions(capsys)
    broken = [*lines[:8], "day 7,1.0", *lines[9:]]
    stop: dict[str, Any] = {
        "file": str(tmp_path / "data.csv"),
        "target": "y",
        "on_error": "stop",
        "checkpoint": tmp_path / "c.npz",
    }
    written(tmp_path / "data.csv", broken)
    with pytest.raises(BadLine, match="line 9: 2 fields, but there are 4 columns"):
        StreamCsv(**stop, **SMALL).run()
    found = predictions(capsys)
    written(tmp_path / "data.csv", lines)
    assert StreamCsv(**stop, **SMALL).run() == 0
    assert found + predictions(capsys) == expected


def csv_stream(text: str, target="y", features=(), **kwargs) -> CsvStream:
    return CsvStream(io.BytesIO(text.encode()), "the file", target, features, **kwargs)


def test_what_a_csv_may_look_like():
    stream = csv_stream(
        '\ufeff"y";b ;name\r\n\r\n(W);(m);\r\n1,5;2;"x"\r\n1.5; 2e3;x;\n1.5; 2e3;"é;"\n;4;', delimiter=";"
    )
    rows = list(stream)
    assert [type(row) for row in rows] == [BadLine, BadLine, BadLine, Row, Row]
    assert [row.line for row in rows if isinstance(row, Row)] == [6, 7]
    assert [row.features.tolist() for row in rows if isinstance(row, Row)] == [[2000.0], [4.0]]
    own = list(csv_stream("y\n3\n4\n", horizon=1))
    assert [row.features.tolist() for row in own if isinstance(row, Row)] == [[3.0], [4.0]]
    chosen = csv_stream("a,y,b\n1,2,3\n", features=["b", "a"])
    assert next(row.features.tolist() for row in chosen if isinstance(row, Row)) == [3.0, 1.0]


@pytest.mark.parametrize(
    ("text", "kwargs", "words"),
    [
        ("", {}, "the file is empty: its first line must name the columns"),
        ("\n1,2\n", {}, "the file is empty"),
        ("a\0,\0y\0\n", {}, "the file is not a CSV in UTF-8"),
        ("a,b\n1,2\n", {}, "The column 'y' is not there: the columns of the file are a, b."),
        ("a,y\n1,2\n", {"features": ["c"]}, "The column 'c' is not there: the columns of the file are a, y."),
        ("y,a,y\n1,2,3\n", {}, "The column 'y' is there more than once"),
        ("a,y\n1,2\n", {"features": ["a", "y"]}, "features has the target, 'y'"),
    ],
)
def test_a_csv_without_what_it_needs_is_refused(text, kwargs, words):
    with pytest.raises(ValueError, match=words):
        csv_stream(text, **kwargs)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: StreamCsv(file=str(p / "none.csv"), target="y"), "There is no file at .*none.csv"),
        (lambda p: StreamCsv(file=str(p), target="y"), "cannot be read: Is a directory"),
        (lambda p: StreamCsv(file=written(p / "a.csv", ["a,y"]), target="y"), "no line to learn from"),
        (lambda p: StreamCsv(file="-", target="y", delimiter="ab"), "delimiter is 'ab'"),
        (lambda p: StreamCsv(file="-", target="y", plot=p / "a.doc"), "plot is .*a.doc', but must be a .png"),
        (lambda p: StreamEcho(checkpoint=p), "but must be a file, not a folder"),
        (lambda p: StreamEcho(delay=0), "delay is 0"),
        (lambda p: StreamEcho(steps=0), "steps is 0"),
        (lambda p: StreamEcho(units=0), "units is 0"),
        (lambda p: StreamEcho(lam=2.0), "lam is 2.0, but must be between 0 and 1"),
        (lambda p: StreamMackeyGlass(network_rate=0.0), "network_rate is 0.0, but must be finite and greater than 0"),
        (lambda p: StreamMackeyGlass(steps=10, update_every=0), "update_every is 0"),
    ],
)
def test_mistakes_are_refused_in_words(make, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        make(tmp_path).run()


def test_the_checkpoint_of_another_stream_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "c.npz"
    lines = written(tmp_path / "data.csv", some_lines(5))
    StreamCsv(file=lines, target="y", checkpoint=path, **SMALL).run()
    before = path.read_bytes()
    for other, words in (
        (StreamCsv(file=lines, target="b", checkpoint=path, **SMALL), "target is 'y' in the file, 'b' here"),
        (StreamCsv(file=lines, target="y", features="a", checkpoint=path, **SMALL), "features is"),
        (StreamCsv(file=lines, target="y", lam=0.5, checkpoint=path, **SMALL), "lam is 1.0 in the file, 0.5 here"),
        (StreamEcho(checkpoint=path, **SMALL), "stream is 'csv' in the file, 'echo' here"),
    ):
        with pytest.raises(CheckpointError, match=words):
            other.run()
    assert path.read_bytes() == before


def test_tomorrow_s_lines_may_begin_with_a_gap_and_name_their_columns_in_another_order(tmp_path, capsys):
    """The features are those of the checkpoint, by name."""
    first, path = ["a,b,y", "1,2,3", "2,3,4", "5,1,2"], tmp_path / "c.npz"
    pieces = (["a,b,y", ",2,3", "4,3,4"], ["b,more,a,y", "2,9,,3", "3,9,4,4"])
    found = []
    for piece in pieces:
        path.unlink(missing_ok=True)
        for lines in (first, piece):
            StreamCsv(file=written(tmp_path / "data.csv", lines), target="y", checkpoint=path, **SMALL).run()
        found.append(predictions(capsys)[-2:])
    assert found[0] == found[1]


def started(words: str, cwd: Path) -> subprocess.Popen:
    """A command in a process of its own, ended if it hangs."""
    code = f"import sys; from bplambda.stream.cli import *; sys.exit({words}.run())"
    pipe = subprocess.PIPE
    arguments = [sys.executable, "-c", code]
    process = subprocess.Popen(arguments, cwd=cwd, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
    timer = threading.Timer(200, process.kill)
    timer.daemon = True
    timer.start()
    return process


def test_a_pipe_that_stays_open_gets_each_prediction_at_once_and_ctrl_c_saves(tmp_path, capsys):
    lines = some_lines(12)
    StreamCsv(file=written(tmp_path / "data.csv", lines), target="y", **SMALL).run()
    expected = predictions(capsys)
    with started("StreamCsv(file='-', target='y', units=3, gamma=0.9, checkpoint=Path('c.npz'))", tmp_path) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(lines[0] + "\n")
        for i, line in enumerate(lines[1:9]):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            if i == 0:
                assert process.stdout.readline() == "line,prediction,target\n"
            assert process.stdout.readline() == expected[i] + "\n"
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
        assert process.wait() == 130, err
    assert "Stopped." in err
    assert "to go on from there: bplambda" in err
    assert "Traceback" not in err
    file = str(tmp_path / "data.csv")
    assert StreamCsv(file=file, target="y", checkpoint=tmp_path / "c.npz", **SMALL).run() == 0
    assert predictions(capsys) == expected[8:], "a file that begins as the pipe did goes on after it"


def piped(lines: list[str], cwd: Path) -> tuple[list[str], str]:
    """The predictions for a pipe of some lines, and what was said."""
    words = "StreamCsv(file='-', target='y', units=3, gamma=0.9, checkpoint=Path('c.npz'))"
    with started(words, cwd) as process:
        out, err = process.communicate("\n".join(lines) + "\n")
        assert process.returncode == 0, err
    return out.splitlines()[1:], err


def test_a_pipe_goes_on_as_a_file_does(tmp_path, capsys):
    lines = some_lines(30)
    StreamCsv(file=written(tmp_path / "data.csv", lines), target="y", **SMALL).run()
    expected = predictions(capsys)
    first, err = piped(lines[:12], tmp_path)
    assert first == expected[:11]
    rest, err = piped(lines, tmp_path)
    assert "Going on after line 12." in err
    assert rest == expected[11:]
    none, err = piped(lines, tmp_path)
    assert none == []
    # One that begins alike and is shorter or another is learned from its start, every line of it.
    for other in (lines[:20], [*lines[:8], *lines[9:]]):
        found, err = piped(other, tmp_path)
        assert "Another stream than the one that was learned up to line" in err
        assert [int(row.split(",")[0]) for row in found] == list(range(2, len(other) + 1))


def test_half_a_line_is_left_for_the_next_time(tmp_path, capsys):
    lines = some_lines(30, gaps=False)
    StreamCsv(file=written(tmp_path / "whole.csv", lines), target="y", **SMALL).run()
    expected = predictions(capsys)
    settings: dict[str, Any] = SMALL | {"target": "y", "file": str(tmp_path / "data.csv")}
    (tmp_path / "data.csv").write_text("\n".join(lines[:10]) + "\n" + lines[10][:-2])
    assert StreamCsv(checkpoint=tmp_path / "c.npz", **settings).run() == 0
    out, err = capsys.readouterr()
    assert "Line 11 has no end yet: it is left for the next time." in err
    assert out.splitlines()[1:] == expected[:9]
    written(tmp_path / "data.csv", lines)
    assert StreamCsv(checkpoint=tmp_path / "c.npz", **settings).run() == 0
    assert predictions(capsys) == expected[9:]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    assert StreamCsv(**settings).run() == 0
    assert predictions(capsys) == expected, "without a checkpoint there is no next time"


def test_a_plot_may_come_and_go(tmp_path, capsys):
    lines = some_lines(30)
    StreamCsv(file=written(tmp_path / "data.csv", lines), target="y", **SMALL).run()
    expected = predictions(capsys)
    settings: dict[str, Any] = SMALL | {"target": "y", "file": str(tmp_path / "data.csv")}
    for first, second in ((None, tmp_path / "a.png"), (tmp_path / "b.png", None)):
        checkpoint = tmp_path / f"{first is None}.npz"
        written(tmp_path / "data.csv", lines[:15])
        StreamCsv(checkpoint=checkpoint, plot=first, **settings).run()
        found = predictions(capsys)
        written(tmp_path / "data.csv", lines)
        StreamCsv(checkpoint=checkpoint, plot=second, **settings).run()
        assert found + predictions(capsys) == expected
    assert (tmp_path / "a.png").stat().st_size > 5_000


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_whoever_asks_it_to_end_is_heard_as_ctrl_c_is(how, tmp_path, capsys):
    """A service that is stopped, a terminal that is closed."""
    lines = some_lines(12)
    StreamCsv(file=written(tmp_path / "data.csv", lines), target="y", **SMALL).run()
    expected = predictions(capsys)
    command = [Path(sys.executable).with_name("bplambda"), "stream", "csv", "-", "--target", "y", "--units", "3"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, "--gamma", "0.9", "--checkpoint", "c.npz"],
        cwd=tmp_path,
        text=True,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write("\n".join(lines[:6]) + "\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(6)][1:] == [row + "\n" for row in expected[:5]]
        process.send_signal(how)
        err = process.stderr.read()
        assert process.wait() == 130, err
    assert "to go on from there: bplambda" in err
    assert "Traceback" not in err
    assert StreamCsv(file=str(tmp_path / "data.csv"), target="y", checkpoint=tmp_path / "c.npz", **SMALL).run() == 0
    assert predictions(capsys) == expected[5:]


def test_ctrl_c_while_a_made_up_stream_is_learned(tmp_path):
    with started("StreamEcho(steps=10**6, units=3, checkpoint=Path('c.npz'))", tmp_path) as process:
        while not (tmp_path / "c.npz").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode == 130, err
    assert "BP(1)" in out
    assert "to go on from there: bplambda" in err
    assert "Traceback" not in err


def test_whoever_has_seen_enough_predictions_ends_it_quietly(tmp_path):
    written(tmp_path / "data.csv", some_lines(1500, gaps=False))
    with started("StreamCsv(file='data.csv', target='y', units=3, checkpoint=Path('c.npz'))", tmp_path) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait() == 0, err
    assert "Traceback" not in err
    assert "squared error" not in err, "it did not get to the end"
    assert (tmp_path / "c.npz").exists()


@pytest.mark.parametrize("name", STREAMS)
def test_every_command_has_help_with_an_example(name, capsys):
    with pytest.raises(SystemExit):
        tyro.cli(STREAMS[name], prog=f"bplambda stream {name}", args=["--help"])
    text = capsys.readouterr().out
    assert f"bplambda stream {name}" in text.split("Example:")[1]
    assert "--checkpoint" in text
    parsed = tyro.cli(STREAMS[name], args=["-", "--target", "y"] if name == "csv" else ["--units", "5"])
    assert parsed.lam == 1.0
