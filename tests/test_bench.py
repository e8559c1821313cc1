"""The bench: what we are measured against is right, what is written has its fixed shape, what was measured is kept."""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bplambda as bp
from bplambda.bench import beyond, command, gradient
from bplambda.bench.baselines import floor
from bplambda.bench.baselines.jax_bptt import jax_bptt
from bplambda.bench.cli import GroupName
from bplambda.bench.effort import Effort
from bplambda.bench.groups import GROUPS
from bplambda.bench.measure import Row, exponent, in_turn, ratio
from bplambda.bench.problems import TASKS, problem
from bplambda.bench.start import first_progress
from bplambda.bench.tables import TABLES, filled

TINY = Effort("tiny", 2, 1e-3, eager_steps=2, units=(2, 4), batches=(1, 2), lengths=(100, 200), runs=(1,), shrink=10)
SMALL = {name: TASKS[name].shrunk(6) for name in ("toy-T50", "seqmnist", "copyrepeat")}
NO_TORCH = "PyTorch is not installed: pip install 'bplambda[bench]'"


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("numbers", [(1.0, 0.9, 0.1), (0.6, 0.8, 1.5)], ids=["paper", "other"])
@pytest.mark.parametrize("task", ["toy-T50", "seqmnist"])
def test_the_eager_loop_is_algorithm_1(task, numbers):
    torch_eager = pytest.importorskip("bplambda.bench.baselines.torch_eager", reason=NO_TORCH, exc_type=ImportError)
    p = problem(SMALL[task])
    found = torch_eager.torch_eager(SMALL[task], p, *numbers)
    wanted, _ = bp.sequence_gradients(*p[:2], bp.BPLambda(*numbers), *p[2:], window=1)
    cell, readout, g = wanted.network.cell, wanted.network.readout, wanted.synthesiser
    close(found.cell, [cell.weight_ih, cell.weight_hh, cell.bias])
    close(found.readout, [readout.weight, readout.bias])
    close([found.synthesiser], [jnp.concatenate([g.weight, g.bias[:, None]], axis=1)])
    assert np.abs(g.weight).max() > 1e-3


@pytest.mark.parametrize("task", SMALL)
def test_bptt_is_the_same_in_pytorch(task):
    p = problem(SMALL[task])
    torch_bptt = pytest.importorskip("bplambda.bench.baselines.torch_bptt", reason=NO_TORCH, exc_type=ImportError)
    _, found = jax_bptt(p.network, *p[2:])
    cell, readout = found.cell, found.readout
    ours = [cell.weight_ih, cell.weight_hh, cell.bias, cell.bias, readout.weight, readout.bias]
    close(torch_bptt.torch_bptt(SMALL[task], p)(), ours)


@pytest.mark.parametrize("task", SMALL)
def test_the_floor_does_its_products_and_no_more(task, monkeypatch):
    sizes, compiled = TASKS[task], []
    monkeypatch.setattr(floor, "program", lambda f, *args: compiled.append(jax.jit(f).lower(*args).compile()))
    floor.floor(sizes)
    in_a_step = 2 * 2 * sizes.batch * sizes.gates * sizes.units**2  # XLA counts the body of a loop once
    wanted = floor.flops(sizes) - (sizes.steps - 1) * in_a_step
    additions = sizes.batch * sizes.gates * sizes.units  # over the gates
    assert wanted <= compiled[0].cost_analysis()["flops"] <= wanted + additions + 100
    assert compiled[0].as_text().count(" dot(") == 10


def test_contenders_run_in_turn_and_ratios_are_taken_round_by_round():
    calls: list[str] = []
    times = in_turn({name: partial(calls.append, name) for name in "ab"}, Effort("none", 3, 0.0, 1, (), (), (), ()))
    assert calls == [*"aabb", *"ababab"]
    assert {name: t.shape for name, t in times.items()} == {"a": (3,), "b": (3,)}
    assert ratio(np.array([2.0, 30.0, 2.0]), np.array([1.0, 10.0, 4.0])) == 2.0, "a slow round is slow for both"


def test_exponents_of_known_laws():
    sizes = np.array([16, 32, 64])
    assert exponent(sizes, 5e-3 * sizes**3.0) == pytest.approx(3)
    assert exponent(sizes, [7, 7, 7]) == pytest.approx(0)


def test_sizes_and_times_on_paper_are_said_in_units_that_fit():
    assert [beyond.duration(t) for t in (2.5e-7, 0.21e-3, 19, 1.9e5, 6e9)] == [
        "0.25 µs",
        "210 µs",
        "19 s",
        "2.2 days",
        "190 years",
    ]
    assert [beyond.size(n) for n in (160, 3e6, 3e12)] == ["0.64 KB", "12 MB", "12 TB"]


def rows_in(out) -> dict[str, dict]:
    rows = json.loads((out / "bench.json").read_text())
    for row in rows:
        assert list(row) == ["name", "value", "unit", "baseline", "ratio", "config"]
        assert isinstance(row["value"], float)
        assert (row["baseline"] is None) == (row["ratio"] is None)
        assert {"group", "effort", "cores", "dtype", "python", "jax"} <= set(row["config"])
    return {row["name"]: row for row in rows}


def test_the_gradient_rows_have_their_names(tmp_path, capsys):
    assert command.bench(["gradient"], TINY, tmp_path) == 0
    printed, rows = capsys.readouterr().out, rows_in(tmp_path)
    names = {f"gradient/{task}/vs-{baseline}" for task in TASKS for baseline in ("jax-bptt",)}
    try:
        import torch  # noqa: F401
    except ImportError:
        assert "Left out" in printed
        assert "PyTorch is not installed" in " ".join(printed.split()), "whatever the width of the screen"
    else:
        names |= {f"gradient/{task}/vs-{b}" for task in TASKS for b in ("torch-lstm", "eager-algorithm1")}
        assert rows["gradient/toy-T50/vs-torch-lstm"]["config"]["module"] == "nn.RNN"
        assert rows["gradient/copyrepeat/vs-eager-algorithm1"]["config"]["eager_steps"] == 2
    assert set(rows) == names
    row = rows["gradient/seqmnist/vs-jax-bptt"]
    assert row["ratio"] > 0
    times = {"ours": np.array([1.0, 2.0, 3.0]), "jax-bptt": np.array([2.0, 6.0, 3.0])}
    compared = gradient.compared("a name", times, "ours", "jax-bptt", {})
    assert compared == Row("a name", 2000.0, "ms", "jax-bptt", 2.0, {"baseline_ms": 3000.0}), "round by round"
    assert row["config"]["cores"] == 1, "it is kept on one core"
    assert (tmp_path / "gradient.png").stat().st_size > 5000


LEARNERS = ("bp1", "bp1-moved-at-every-step", "bp1-every-64", "no-bptt", "truncated-5-rolling")
ROWS = {
    "size": {f"size/{at}/{kind}" for at in ("h2", "h4", "exponent") for kind in ("K=1", "K=S", "K=T")},
    "length": {"length/T100", "length/T200", "length/memory-growth", "length/time-growth"},
    "grid": {"grid/1-processes/1-runs"},
    "streaming": {f"streaming/{name}/{how}" for name in LEARNERS for how in ("run", "step", "dispatch")}
    | {"streaming/update-every-64/vs-update-every-1"}
    | {f"streaming/update-every-{k}/vs-moved-at-every-step" for k in (1, 64)},
}


@pytest.mark.parametrize("group", ROWS)
def test_a_group_runs(group, tmp_path):
    assert command.bench([group], TINY, tmp_path) == 0
    rows = rows_in(tmp_path)
    assert ROWS[group] <= set(rows)
    measured = [row for row in rows.values() if row["unit"] in ("us/step", "runs*steps/s")]
    assert all(row["value"] > 0 for row in measured if "dispatch" not in row["name"])
    assert [path.stem for path in tmp_path.glob("*.png")] == [{"size": "scaling"}.get(group, group)]


def fake(name: str) -> dict:
    return {"Row": Row(name, 1.0, "ms", None, None, {})._asdict()}


def test_a_group_that_fails_costs_nothing_but_itself(tmp_path, monkeypatch, capsys):
    def give(module, job, hear, running, env):
        hear(fake(f"{job['group']}/half"))
        return "it broke (exit code 1)" if job["group"] == "length" else ""

    monkeypatch.setattr(command, "give", give)
    assert command.bench(["trace", "length", "start"], TINY, tmp_path) == 1
    assert "length failed: it broke" in capsys.readouterr().out
    names = [row["name"] for row in json.loads((tmp_path / "bench.json").read_text())]
    assert names == ["trace/half", "length/half", "start/half"]


def test_groups_that_are_measured_again_replace_their_rows_alone(tmp_path, monkeypatch):
    called = []

    def give(module, job, hear, running, env):
        called.append(job["group"])
        hear(fake(f"{job['group']}/{len(called)}"))
        return ""

    monkeypatch.setattr(command, "give", give)
    assert [command.bench(groups, TINY, tmp_path) for groups in (["start", "trace"], ["trace"])] == [0, 0]
    assert [row.name for found in command.load(tmp_path).values() for row in found] == ["trace/3", "start/1"]


@pytest.mark.parametrize("end", ["it broke", "stopped"])
def test_rows_go_only_when_others_have_been_measured_in_their_place(tmp_path, monkeypatch, end):
    values = iter(range(1, 10))

    def give(module, job, hear, running, env):
        for name in ("a", "b"):
            row = fake(f"{job['group']}/{name}")
            row["Row"]["value"] = value = float(next(values))
            hear(row)
            if value == 7 and end == "stopped":
                raise KeyboardInterrupt
            if value == 7:
                return end
        return ""

    monkeypatch.setattr(command, "give", give)
    assert command.bench(["trace", "length", "start"], TINY, tmp_path) == 0
    rows = json.loads((tmp_path / "bench.json").read_text())
    of_tomorrow = rows[0] | {"name": "tomorrow/a", "config": {"group": "tomorrow"}}
    (tmp_path / "bench.json").write_text(json.dumps([*rows, of_tomorrow]))
    assert command.bench(["length", "start"], TINY, tmp_path) == {"it broke": 1, "stopped": 130}[end]
    found = {row["name"]: row["value"] for row in json.loads((tmp_path / "bench.json").read_text())}
    trace, length = {"trace/a": 1, "trace/b": 2}, {"length/a": 7, "length/b": 4}
    start = {"start/a": 8, "start/b": 9} if end == "it broke" else {"start/a": 5, "start/b": 6}
    assert found == trace | length | start | {"tomorrow/a": 1}


@pytest.mark.parametrize(
    "damage",
    ["", '[{"name": "trace/a", ', "null", "{}", "[1]", '[{"name": 1}]', '[{"config": {}}]', "folder", "null row"],
)
def test_a_damaged_file_is_named_before_anything_is_measured(tmp_path, monkeypatch, damage):
    path = tmp_path / "bench.json"
    if damage == "folder":
        path.mkdir()
    elif damage == "null row":
        path.write_text(json.dumps([dict.fromkeys(Row._fields)]))
    else:
        path.write_text(damage)
    monkeypatch.setattr(command, "give", lambda *_: pytest.fail("it is too late"))
    with pytest.raises(ValueError, match=r"bench\.json cannot be read \(.+\): .*move it away, .* --out"):
        command.bench(["trace"], TINY, tmp_path)
    assert path.is_dir() if damage == "folder" else path.exists(), "it is left as it is"


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    code = "from bplambda.cli import main; main()"
    arguments = ["bench", "length", "--out", str(tmp_path)]
    bench = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    with bench:
        assert bench.stdout is not None
        while "length/T100000" not in bench.stdout.readline():
            assert bench.poll() is None
        bench.send_signal(signal.SIGINT)
        began = time.perf_counter()
        rest, _ = bench.communicate(timeout=60)
        assert time.perf_counter() - began < 30, "it does not wait for its process"
    assert bench.returncode == 130
    assert "Stopped. What was measured is in" in rest
    rows = rows_in(tmp_path)
    assert {"length/T100", "length/T1000", "length/T10000"} <= set(rows)
    assert "length/memory-growth" not in rows


def test_a_training_that_shows_no_progress_is_an_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RuntimeError, match="showed no progress"):
        first_progress(tmp_path / "cache", tmp_path / "file")


def test_the_performance_page_shows_the_numbers_that_were_measured():
    root = Path(__file__).parents[1]
    rows = [row for found in command.load(root / "results" / "bench").values() for row in found]
    page = (root / "docs" / "performance.md").read_text()
    assert all(f"<!-- {name} -->\n|" in page for name in TABLES)
    assert filled(page, rows) == page, "python benchmarks/performance_page.py"
    slower = [row._replace(value=2 * row.value, ratio=row.ratio and 2 * row.ratio) for row in rows]
    assert filled(page, slower) != page


def test_the_command_knows_all_groups():
    assert get_args(GroupName) == tuple(GROUPS)
