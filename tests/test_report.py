"""From the store to the page: the experiments' numbers, the figures, the HTML, the command line."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from bplambda.cli import Report, Target, main, parse
from bplambda.config import Run, run_of
from bplambda.experiments import EXPERIMENTS
from bplambda.experiments._base import Preset, mean_sem
from bplambda.experiments.methods import METHODS
from bplambda.experiments.table1 import PAPER, rows, solved_length
from bplambda.report import available, build
from bplambda.runs import Finished
from bplambda.stream.cli import StreamCsv
from bplambda.train_cli import TrainToy
from bplambda.training import trainer
from bplambda.training.copyrepeat import solved_length as copyrepeat_length

BPLAMBDA = Path(sys.executable).with_name("bplambda")


def made_up(run) -> Finished:
    """A finished run as the store would give it, its numbers drawn at random from the run's name."""
    rng = np.random.default_rng(zlib.crc32(run.name.encode()))
    error = np.linspace(1, rng.uniform(0, 0.05), run.epochs)
    metrics = {
        "toy": {"error": error, "alignment": rng.uniform(size=(run.epochs, run.length - 1))},
        "seqmnist": {"loss": error, "error": error, "test_error": error},
        "copyrepeat": {"error": error, "level": np.sort(rng.integers(9, size=run.epochs))},
    }[run.task]
    result = trainer(run).summary(run, metrics) | {"seconds": 10.0, "runs_together": 5}
    return Finished(run, metrics, result | {"us_per_run_and_step": 5.0, "versions": {"jax": "0"}})


def all_runs(preset: Preset = "paper", seeds=2):
    runs = [run for experiment in EXPERIMENTS.values() for run in experiment.runs(preset, seeds)]
    return [made_up(run) for run in dict.fromkeys(runs)]


def test_every_experiment_is_drawn_for_both_presets(tmp_path):
    presets: tuple[Preset, ...] = ("quick", "paper")
    for preset in presets:
        page, sections = build(all_runs(preset), tmp_path / preset)
        assert [s.experiment.name for s in sections] == list(EXPERIMENTS)
        for s in sections:
            assert s.svg.startswith(b"<?xml")
            assert s.claims
            json.loads((page.parent / f"{s.experiment.name}.json").read_text())
        text = page.read_text()
        assert text.count("data:image/svg+xml;base64,") == len(EXPERIMENTS)
        assert not re.search(r"(src|href)=\"(?!data:|#)", text), "the page needs nothing from outside"


def test_table1_rows():
    finished = all_runs()
    found = rows(finished)
    assert all(set(row) == {"task", "method", "mean", "sem", "seeds", "paper", "budget"} for row in found)
    for task in ("toy", "seqmnist"):
        assert [row["method"] for row in found if row["task"] == task] == list(METHODS)
    copyrepeat = [row for row in found if row["task"] == "copyrepeat"]
    assert {row["method"] for row in copyrepeat} == set(METHODS)
    assert [row["method"] for row in copyrepeat if row["budget"] == "150,000 batches"] == ["sg5", "bp1"]
    assert PAPER["toy"] | {"bp1": 90, "none": 4, "sg3": 38} == PAPER["toy"]
    assert PAPER["seqmnist"] | {"bp1": 90.6, "none": 64.1, "bptt2": 73.4} == PAPER["seqmnist"]
    assert PAPER["copyrepeat"] | {"bp1": 29.0, "none": 8.2, "sg5": 23.0} == PAPER["copyrepeat"]


def test_a_long_run_counts_as_a_short_one_too():
    runs = EXPERIMENTS["table1"].runs("paper", 3)
    finished = [made_up(run) for run in runs if run.task == "copyrepeat" and run.rule == "bplambda"]
    both = [row for row in rows(finished) if row["method"] == "bp1"]
    assert [(row["budget"], row["seeds"]) for row in both] == [("30,000 batches", 3), ("150,000 batches", 2)]
    bp1 = [f for f in finished if f.run.lam == 1.0]
    lengths = [copyrepeat_length(int(f.metrics["level"][299])) for f in bp1]
    assert both[0]["mean"] == pytest.approx(np.mean(lengths), abs=0.01)


def test_a_length_counts_only_with_all_shorter_ones():
    run = Run()

    def runs(solved):
        made = [made_up(dataclasses.replace(run, length=T)) for T in (30, 10, 20)]
        return [f._replace(result=f.result | {"solved": f.run.length in solved}) for f in made]

    assert solved_length(runs({10, 20, 30})) == 30
    assert solved_length(runs({10, 30})) == 10
    assert solved_length(runs({20, 30})) == 0


def test_mean_and_sem_by_hand():
    mean, sem = mean_sem([1.0, 2.0, 6.0])
    assert mean == 3.0
    assert sem == pytest.approx(np.sqrt(((2**2 + 1 + 3**2) / 2) / 3))
    assert mean_sem([4.0])[1] == 0


def test_other_runs_are_on_the_page_too(tmp_path):
    other = made_up(Run(length=7, seed=11))
    shown = [f for f in all_runs("quick") if f.run.variant == "fixed"]
    page, sections = build([*shown, other], tmp_path, ["fig2"])
    assert sections[0].runs == 6
    text = page.read_text()
    assert text.count("Other runs") == 1
    assert other.run.name in text
    assert shown[0].run.name not in text, "it is in the figure"


def test_an_experiment_whose_runs_are_not_all_there_is_left_out(tmp_path):
    finished = all_runs("quick")
    assert available(EXPERIMENTS["fig2"], finished) is not None
    without = [f for f in finished if not (f.run.variant == "fixed" and f.run.lam == 0.0)]
    assert available(EXPERIMENTS["fig2"], without) is None
    _, sections = build(without, tmp_path)
    assert "fig2" not in [s.experiment.name for s in sections]


def test_no_seed_is_left_out_however_many_there_are():
    fig2 = EXPERIMENTS["fig2"]
    there = [made_up(run) for run in fig2.runs("paper", 25)]
    found = available(fig2, there)
    assert found is not None
    assert len(found.runs) == len(there) == 75
    assert found.options == "--preset paper --seeds 25"


def test_the_command_line_knows_all_experiments():
    assert get_args(Target) == (*EXPERIMENTS, "all")


@pytest.mark.parametrize(
    ("words", "kind"),
    [("train toy --length 7", TrainToy), ("stream csv - --target y", StreamCsv), ("report --out there", Report)],
)
def test_commands_and_their_kinds(words, kind):
    assert type(parse(words.split())) is kind


@pytest.mark.parametrize("words", ["", "train", "train -- toy", "trian toy", "stream csv", "train toy --lenght 7"])
def test_words_that_make_no_command(words, capsys):
    with pytest.raises(SystemExit) as error:
        parse(words.split())
    assert error.value.code == 2
    assert "--help" in capsys.readouterr().err


def test_tasks_may_have_different_numbers_of_seeds():
    """All runs that there are count, where a preset has fewer seeds for a task that takes long."""
    table = EXPERIMENTS["table1"]
    there = [made_up(run) for run in table.runs("paper", None)]
    found = available(table, there)
    assert found is not None
    assert len(found.runs) == len(there)
    assert found.options == "--preset paper"
    seeds = {task: len({f.run.seed for f in found.runs if f.run.task == task}) for task in ("toy", "copyrepeat")}
    assert seeds == {"toy": 5, "copyrepeat": 3}


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium on this machine")
def test_the_page_in_a_browser(tmp_path):
    page, sections = build(all_runs(), tmp_path)
    check = tmp_path / "check.html"
    script = """<script>addEventListener("load", () => {
      const images = [...document.images].filter(i => i.complete && i.naturalWidth > 100 && i.offsetWidth > 100);
      const wide = document.documentElement.scrollWidth - innerWidth;
      document.body.dataset.found = images.length + "/" + document.images.length + " overflow " + Math.max(0, wide);
    })</script>"""
    check.write_text(page.read_text().replace("</body>", script + "</body>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command += ["--window-size=420,900", "--virtual-time-budget=5000", "--dump-dom", f"file://{check}"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r'data-found="(\d+)/(\d+) overflow (\d+)"', dom)
    assert found, dom[:500]
    shown, total, overflow = map(int, found.groups())
    assert shown == total == len(sections)
    assert overflow <= 100, "readable on a phone"


def command(*args, cwd, **kwargs):
    return subprocess.run([BPLAMBDA, *args], cwd=cwd, capture_output=True, text=True, timeout=600, **kwargs)


@pytest.fixture
def said(capsys, monkeypatch, tmp_path):
    """What a command says, and its exit code, without the seconds that a process of its own takes to start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bplambda.processes.end_as_if_by_ctrl_c", lambda: None)
    monkeypatch.setenv("BPLAMBDA_DATA", "")  # a command may set it: afterwards it is as it was

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["bplambda", *args])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        code = end.value.code
        return f"{printed.out}{printed.err}{code}", code

    return run


def test_help_has_defaults_and_an_example(said):
    tasks = (["train", task] for task in ("toy", "seqmnist", "copyrepeat"))
    for words in (*tasks, ["reproduce"], ["report"], ["verify"], ["data"]):
        text, code = said(*words, "--help")
        assert not code
        assert "Example: bplambda" in text
        assert "default" in text


def test_train_and_report(tmp_path):
    arguments = ["train", "toy", "--length", "5", "--epochs", "5", "--units", "8", "--seeds", "2"]
    first = command(*arguments, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "2 runs, 0 of them done" in first.stdout
    assert "final error" in first.stdout
    assert "2 runs, 2 of them done" in command(*arguments, cwd=tmp_path).stdout
    report = command("report", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "report" / "index.html").exists()


def test_training_does_not_wait_for_what_only_drawing_needs(tmp_path):
    """Matplotlib and scipy.signal take longer to import than all else together."""
    code = (
        "import sys; sys.modules |= {'matplotlib': None, 'scipy.signal': None}\nfrom bplambda.cli import main\nmain()"
    )
    arguments = ["train", "toy", "--length", "3", "--epochs", "2", "--units", "4", "--seeds", "1", "--batches", "10"]
    found = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "final error" in found.stdout


def test_its_version(tmp_path):
    assert re.fullmatch(r"bplambda \d+\.\d+\.\d+\n", command("--version", cwd=tmp_path).stdout)


def test_whoever_reads_may_stop_reading(tmp_path):
    (tmp_path / "runs").mkdir()
    command = [BPLAMBDA, "report", "--store", "runs"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_mistake_in_a_process_of_its_own(tmp_path):
    found = command("train", "toy", "--lam", "3", cwd=tmp_path)
    assert found.returncode == 1
    assert found.stderr == "bplambda: lam is 3.0, but must be between 0 and 1.\n"


def test_mistakes_on_the_command_line(tmp_path, said):
    (tmp_path / "a file").touch()
    for arguments, words in (
        (["train", "toy", "--lam", "3"], "lam is 3.0, but must be between 0 and 1"),
        (["train", "toy", "--seeds", "0"], "seeds is 0, but must be a whole number of at least 1"),
        (["report", "--store", "nowhere"], "There is no run store at nowhere"),
        (["reproduce", "--workers", "0"], "workers is 0"),
        (["reproduce", "fig9"], "fig9"),
        (["train", "copyrepeat", "--batches", "150"], "batches is 150, but must be a multiple of 100"),
        (["train", "seqmnist", "--data-dir", "none"], "bplambda data mnist --data-dir none"),
        (["reproduce", "fig4", "--data-dir", "none"], "bplambda data mnist --data-dir none"),
        (["train", "seqmnist", "--row-size", "5"], "row-size"),
        (["verify", "--out", "a file"], "a file cannot be written to: File exists."),
        (["report", "--out", "a file"], "a file cannot be written to: File exists."),
        (["reproduce", "theorem", "--out", "a file"], "a file cannot be written to: File exists."),
        (["bench", "start", "--out", "a file"], "a file cannot be written to: File exists."),
    ):
        text, code = said(*arguments)
        assert code
        assert words in text
        assert "Traceback" not in text


def test_ctrl_c_leaves_everything_resumable(tmp_path):
    arguments = [BPLAMBDA, "reproduce", "fig2", "figS1", "--seeds", "1", "--workers", "1"]
    process = subprocess.Popen(
        arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    with process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("runs/.partial/*/checkpoint.npz")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout is not None
        said = process.stdout.read()
        assert process.wait() == 130, said
    assert "to go on from there: bplambda reproduce fig2 figS1 --seeds 1 --workers 1" in " ".join(said.split())
    again = command("reproduce", "fig2", "figS1", "--seeds", "1", "--workers", "1", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Against the paper" in again.stdout


def test_settings_of_our_own_beside_the_papers():
    """Each row has its own runs, no other's, and only what it says is changed."""
    finished = all_runs()
    rows = EXPERIMENTS["best"].data([f for f in finished if f.run in EXPERIMENTS["best"].runs("paper", 2)])
    assert [(r["task"], r["settings"]) for r in rows] == [
        *((t, s) for t in ("toy", "seqmnist") for s in ("best", "paper")),
        ("copyrepeat", "best"),
    ]
    for row in rows:
        asked = {"toy": {"length": 200}, "copyrepeat": {"epochs": 300}}.get(row["task"], {})
        usual = run_of(row["task"], **asked)
        runs = [dataclasses.replace(usual, **row["changed"], seed=seed) for seed in (0, 1)]
        results = [next(f.result for f in finished if f.run == run) for run in runs]
        np.testing.assert_allclose(row["by_seed"], [r[row["measure"]] for r in results], atol=1e-4)
        assert bool(row["changed"]) == (row["settings"] == "best")
