"""The run store: whole or not at all, whatever happens."""

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from rich.console import Console

from bplambda.config import Run, run_of
from bplambda.executors import LocalProcesses, in_this_process
from bplambda.files import pack, unpack
from bplambda.processes import give
from bplambda.runs import Checkpoint, Store, StoreError
from bplambda.train import train
from bplambda.training import groups
from bplambda.work import Progress, Trained, train_group, training

TINY = Run(length=4, units=3, batch_size=2, batches=10, epochs=100)
GROUP = [dataclasses.replace(TINY, seed=seed, lam=lam) for lam in (0.0, 1.0) for seed in (0, 1)]


pytestmark = pytest.mark.usefixtures("plain_jax")


def quiet(progress):
    pass


def worker(store, group=GROUP):
    """A process that trains a group, and has just been told so."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bplambda.work"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    job = {"store": str(store.folder), "runs": [dataclasses.asdict(run) for run in group]}
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    return process


def assert_same(a, b):
    assert a.run == b.run
    assert a.metrics.keys() == b.metrics.keys()
    for name, curve in a.metrics.items():
        np.testing.assert_array_equal(curve, b.metrics[name])
    assert a.result["error"] == b.result["error"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The group, trained without a break by a process of its own."""
    store = Store(tmp_path_factory.mktemp("whole"))
    store.prepare()
    with worker(store) as process:
        assert process.wait() == 0
    return store


@pytest.mark.parametrize("seed", range(4))
def test_kill_9_at_many_random_moments(whole, tmp_path, seed):
    """Killed again and again, the runs still end bit for bit as if nothing had happened."""
    store, rng = Store(tmp_path), random.Random(seed)
    store.prepare()
    kills, began = 0, time.monotonic()
    while not all(store.find(run) for run in GROUP):
        with worker(store) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it is under way: between here and the end anything may be being written
            time.sleep(rng.uniform(0, 0.12))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
        names = {folder.name for folder in tmp_path.iterdir() if not folder.name.startswith(".")}
        assert names <= {run.name for run in GROUP}, "nothing half-written is to be seen"
        assert time.monotonic() - began < 300
    assert kills >= 1
    for run in GROUP:
        assert_same(whole.find(run), store.find(run))


def test_the_same_numbers_are_the_same_run():
    one, other = run_of("toy", lam=1, scale=1, network_rate=1), run_of("toy", lam=1.0, scale=1.0, network_rate=1.0)
    assert one == other
    assert one.name == other.name
    with pytest.raises(ValueError, match="scale is nan, but must be a number"):
        run_of("toy", scale=float("nan"))


def test_a_checkpoint_resumes_bit_for_bit(whole, tmp_path):
    store, seen = Store(tmp_path), []
    store.prepare()

    class Stop(Exception):
        pass

    def stop_in_the_middle(progress):
        seen.append(progress)
        if progress.epochs == 15:
            raise Stop

    with pytest.raises(Stop):
        train_group(GROUP, store, stop_in_the_middle)
    assert not store.finished()
    again: list[Progress] = []
    train_group(GROUP, store, again.append)
    assert again[0].epochs == 20
    for run in GROUP:
        assert_same(whole.find(run), store.find(run))
    assert not list((tmp_path / ".partial").iterdir())


def test_a_group_that_was_stopped_goes_on_as_it_was(whole, tmp_path):
    """Killed while its runs were being written: the one that is missing still comes out of the same program."""
    store, calls = Store(tmp_path), []
    store.prepare()

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.epochs == 15:
            raise Stop

    with pytest.raises(Stop):
        train_group(GROUP, store, stop)
    shutil.copytree(whole.folder / GROUP[0].name, tmp_path / GROUP[0].name)

    def executor(groups, store, on_progress):
        calls.extend(groups)
        return in_this_process(groups, store, on_progress)

    assert train(GROUP, store, executor, Console(quiet=True)) == []
    assert calls == [GROUP]
    for run in GROUP:
        assert_same(whole.find(run), store.find(run))
    more = [*GROUP, dataclasses.replace(TINY, seed=9)]
    assert train(more, store, executor, Console(quiet=True)) == []
    assert calls[1:] == [more[-1:]], "only what is missing"


def test_finished_runs_are_not_repeated(whole):
    reports: list[Progress] = []
    train_group(GROUP, whole, reports.append)
    assert not reports


def test_a_run_folder_holds_what_it_promises(whole):
    folder = whole.folder / GROUP[0].name
    assert sorted(p.name for p in folder.iterdir()) == ["checkpoint.npz", "config.json", "metrics.npz", "result.json"]
    result = json.loads((folder / "result.json").read_text())
    assert {"error", "solved", "alignment", "seconds", "us_per_run_and_step", "versions"} <= result.keys()
    assert GROUP[0].name.startswith("toy-plastic-T4-bplambda-lam0-gamma0.9-scale0.1-seed0-")
    with np.load(folder / "checkpoint.npz", allow_pickle=False) as parameters:
        assert parameters["[0].cell.weight_hh"].shape == (3, 3)


def copied(store, tmp_path):
    """A store of one's own to damage."""
    shutil.copytree(store.folder, tmp_path / "copy")
    return Store(tmp_path / "copy")


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.npz"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "gone"])
def test_a_damaged_run_is_set_aside_and_the_others_are_kept(whole, tmp_path, capsys, name, damage):
    store = copied(whole, tmp_path)
    path = store.folder / GROUP[0].name / name
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :])
    else:
        path.unlink()
    assert len(store.finished()) == len(GROUP) - 1, "a report goes on without it"
    assert store.find(GROUP[0]) is None
    assert "damaged" in capsys.readouterr().out
    assert (store.folder / f"{GROUP[0].name}.damaged").is_dir(), "nothing is thrown away"
    assert all(store.find(run) for run in GROUP[1:])


def without(path: Path, name: str) -> None:
    """Takes a value out of a JSON file, or an array out of one of NumPy's."""
    if path.suffix == ".json":
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != name}))
        return
    with np.load(path, allow_pickle=False) as file:
        kept = {k: v for k, v in file.items() if k != name}
    np.savez(path, **kept)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("result.json", content) for content in ("{}", "null", "[1, 2]", '"error"')),
        *(("config.json", content) for content in ("{}", "null", "[1, 2]")),
    ],
)
def test_so_is_one_that_holds_other_json(whole, tmp_path, capsys, name, content):
    store = copied(whole, tmp_path)
    (store.folder / GROUP[0].name / name).write_text(content)
    assert_set_aside(store, capsys)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        *(("result.json", missing) for missing in ("error", "solved", "seconds", "us_per_run_and_step", "versions")),
        *(("metrics.npz", missing) for missing in ("error", "alignment")),
        ("config.json", "format"),
    ],
)
def test_so_is_one_that_lacks_something(whole, tmp_path, capsys, name, missing):
    store = copied(whole, tmp_path)
    without(store.folder / GROUP[0].name / name, missing)
    assert missing in assert_set_aside(store, capsys)


@pytest.mark.parametrize("change", [{"error": "small"}, {"seconds": None}, {"versions": []}])
def test_so_is_one_with_figures_of_another_kind(whole, tmp_path, capsys, change):
    store = copied(whole, tmp_path)
    path = store.folder / GROUP[0].name / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert "its result.json has been changed" in assert_set_aside(store, capsys)


def test_so_is_one_with_curves_of_other_lengths(whole, tmp_path, capsys):
    store = copied(whole, tmp_path)
    path = store.folder / GROUP[0].name / "metrics.npz"
    np.savez(path, **{name: curve[:-1] for name, curve in whole.find(GROUP[0]).metrics.items()})
    assert "not of 100 epochs" in assert_set_aside(store, capsys)


def test_so_is_one_without_its_parameters(whole, tmp_path, capsys):
    store = copied(whole, tmp_path)
    (store.folder / GROUP[0].name / "checkpoint.npz").unlink()
    assert "its checkpoint.npz is gone" in assert_set_aside(store, capsys)
    train_group(GROUP[:1], store, quiet)
    assert store.find(GROUP[0]), "it is trained again"


def assert_set_aside(store, capsys) -> str:
    """The first run is found damaged, and the others are not. **Returns:** what is said."""
    assert len(store.finished()) == len(GROUP) - 1, "a report goes on without it"
    assert "Left out: " in capsys.readouterr().out
    assert store.find(GROUP[0]) is None
    assert (store.folder / f"{GROUP[0].name}.damaged").is_dir(), "nothing is thrown away"
    assert all(store.find(run) for run in GROUP[1:])
    said = capsys.readouterr().out
    assert f"set aside as {GROUP[0].name}.damaged, to be trained again" in said
    return said


def test_what_is_not_a_number_is_written_as_null(whole, tmp_path):
    store, (run, *_), nan = Store(tmp_path), GROUP, float("nan")
    store.prepare()
    found = whole.find(run)
    with store.lock(GROUP):
        store.write(GROUP, run, found.metrics, found.result | {"error": nan, "us_per_run_and_step": None}, {})
    text = (tmp_path / run.name / "result.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["error"] is None
    again = store.find(run)
    assert again is not None
    assert np.isnan(again.result["error"])
    assert again.result["us_per_run_and_step"] is None
    (tmp_path / run.name / "result.json").write_text(text.replace('"error": null', '"error": NaN'))
    assert len(store.finished()) == 1, "as older versions wrote it"


def test_no_damage_is_too_small_or_too_odd(whole, tmp_path, capsys):
    """Every byte of the curves may be wrong, each in turn. (Not all of a zip file matters.)"""
    store = copied(whole, tmp_path)
    folder = store.folder / GROUP[0].name
    content = (folder / "metrics.npz").read_bytes()
    for at in range(len(content)):
        (folder / "metrics.npz").write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        assert len(store.finished()) >= len(GROUP) - 1
        if store.find(GROUP[0]) is None:
            folder.with_name(f"{folder.name}.damaged").rename(folder)
    assert "damaged" in capsys.readouterr().out


def test_damage_that_looks_like_another_compression(whole, tmp_path, capsys):
    store = copied(whole, tmp_path)
    folder = store.folder / GROUP[0].name
    content = bytearray((folder / "metrics.npz").read_bytes())
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        content[content.index(mark) + place] ^= 4  # 8 is deflated, 12 would be bz2
    (folder / "metrics.npz").write_bytes(content)
    assert store.find(GROUP[0]) is None
    assert "Invalid data stream" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"format": 1}, {"a_setting_of_tomorrow": 3}])
def test_what_another_version_has_written_is_left_to_it(whole, tmp_path, capsys, change):
    store = copied(whole, tmp_path)
    path = store.folder / GROUP[0].name / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StoreError, match="another version of bplambda"):
        store.find(GROUP[0])
    assert path.exists(), "it is not set aside"
    assert len(store.finished()) == len(GROUP) - 1
    assert f"Left out: {path.parent} was written by another version" in capsys.readouterr().out


def test_other_folders_are_not_runs(whole, tmp_path, capsys):
    store = copied(whole, tmp_path)
    (store.folder / "notes").mkdir()
    assert len(store.finished()) == len(GROUP)
    assert capsys.readouterr().out == ""


def test_what_cannot_be_read_today_is_not_damaged(whole, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    store = copied(whole, tmp_path)
    monkeypatch.setattr(np, "load", refuse)
    for look in (lambda: store.find(GROUP[0]), store.finished):
        with pytest.raises(StoreError, match="Too many open files"):
            look()
    monkeypatch.undo()
    assert all(store.find(run) for run in GROUP)


@pytest.mark.parametrize("name", ["is_dir", "iterdir", "exists"])
def test_nor_is_a_folder_that_cannot_be_read_today(whole, monkeypatch, name):
    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(StoreError, match=r"Cannot read .*: Permission denied\. Put it right"):
        whole.finished()


def test_a_changed_configuration_is_noticed(whole, tmp_path):
    store = copied(whole, tmp_path)
    path = store.folder / GROUP[0].name / "config.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 7'))
    assert store.find(GROUP[0]) is None


def test_a_damaged_checkpoint_starts_again(tmp_path, capsys):
    store = Store(tmp_path)
    store.prepare()
    with store.lock(GROUP):
        store.save_checkpoint(GROUP, Checkpoint({"a": np.arange(9.0)}, {"epochs": 5}))
        found = store.load_checkpoint(GROUP)
        assert found is not None
        assert found.header == {"epochs": 5}
        (path,) = tmp_path.glob(".partial/*/checkpoint.npz")
        path.write_bytes(path.read_bytes()[:-40])
        assert store.load_checkpoint(GROUP) is None
    assert "start again" in capsys.readouterr().out


def headless(path: Path, name: str) -> None:
    """Takes a value out of the header of a checkpoint."""
    with path.open("rb") as file:
        header, arrays = unpack(file)
    with path.open("wb") as file:
        pack(file, {k: v for k, v in header.items() if k != name}, arrays)


@pytest.mark.parametrize("older", [False, True], ids=["", "older"])
@pytest.mark.parametrize("missing", ["state/0", "curves/error", "epochs", "seconds", "steady", "format", "header"])
def test_so_does_one_that_lacks_something(tmp_path, capsys, missing, older):
    store, run = Store(tmp_path), dataclasses.replace(TINY, epochs=10)
    store.prepare()
    with store.lock([run]):
        store.save_checkpoint([run], cast(Checkpoint, next(training([run], None, None))))
    (path,) = tmp_path.glob(".partial/*/checkpoint.npz")
    if older:
        headless(path, "arrays")
    if "/" in missing or missing == "header":
        without(path, missing)
    else:
        headless(path, missing)
    seen: list[Progress] = []
    train_group([run], store, seen.append)
    assert [progress.epochs for progress in seen] == [5, 10]
    said = capsys.readouterr().out
    assert "set aside as checkpoint.damaged; its runs start again" in said
    assert missing.split("/")[0] in said
    assert store.find(run)


@pytest.mark.parametrize("header", [None, [1], 3])
def test_so_does_one_with_another_header(tmp_path, capsys, header):
    store = Store(tmp_path)
    store.prepare()
    with store.lock(GROUP):
        store.save_checkpoint(GROUP, Checkpoint({}, {"epochs": 5}))
        (path,) = tmp_path.glob(".partial/*/checkpoint.npz")
        with path.open("wb") as file:
            pack(file, header, {})
        assert store.begun(GROUP) == []
        assert store.load_checkpoint(GROUP) is None
    assert "its header is not a JSON object" in capsys.readouterr().out


def test_a_chunk_that_is_compiled_does_not_count_as_steady():
    """Chunks are of five epochs: the last, of two, is another program."""

    def speed(epochs):
        (*_, last) = training([dataclasses.replace(TINY, epochs=epochs)], None, None)
        assert isinstance(last, Trained)
        return last.result["us_per_run_and_step"]

    assert speed(7) is None
    assert speed(10) > 0


def test_two_processes_on_one_store(whole, tmp_path):
    store = Store(tmp_path)
    store.prepare()
    with worker(store) as a, worker(store) as b:
        outputs = [process.stdout.read() if process.stdout else "" for process in (a, b)]
        assert [a.wait(), b.wait()] == [0, 0]
    assert sum("epochs" in output for output in outputs) == 1, "one trains, the other waits and finds it done"
    for run in GROUP:
        assert_same(whole.find(run), store.find(run))


def test_so_does_the_rest_of_a_group(tmp_path):
    """Seed 0 is done by itself; then 1 and 2 together, but the process is killed when 1 has just been written."""
    runs = [dataclasses.replace(TINY, seed=seed) for seed in range(3)]
    pair, straight, store = runs[1:], Store(tmp_path / "straight"), Store(tmp_path / "stopped")
    for each in (straight, store):
        each.prepare()
        train_group(runs[:1], each, quiet)
    train_group(pair, straight, quiet)
    with store.lock(pair):
        for event in training(pair, None, None):
            if isinstance(event, Checkpoint):
                store.save_checkpoint(pair, event)
            elif isinstance(event, Trained):
                store.write(pair, *event)
                break
    seen = []

    def executor(groups, store, on_progress):
        seen.extend(groups)
        return in_this_process(groups, store, on_progress)

    train(runs, store, executor, Console(quiet=True))
    assert seen == [pair]
    for run in runs:
        assert_same(straight.find(run), store.find(run))
    assert store.begun(runs) == []


def test_a_process_that_dies_before_it_is_told_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "dead.py").write_text("raise SystemExit('no')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = give("dead", ["x" * 10**6], lambda said: None, set(), dict(os.environ))
    assert said == "no (exit code 1)"


def test_a_full_disk_loses_nothing(whole, tmp_path):
    """No file may grow beyond 2 kB: what the system then refuses, it refuses as a full disk does."""
    store = copied(whole, tmp_path)
    other = [dataclasses.replace(run, length=5) for run in GROUP]
    code = (
        "import resource, sys; from bplambda.work import main; "
        "import jax; jax.config.update('jax_compilation_cache_dir', None); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)); main()"
    )
    job = json.dumps({"store": str(store.folder), "runs": [dataclasses.asdict(run) for run in other]}) + "\n"
    env = os.environ | {"BPLAMBDA_CACHE": ""}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(job)
        process.stdin.flush()
        said = process.stderr.read()
        assert process.wait() == 1
    assert "StoreError: Cannot write to the run store" in said
    assert "give the same command again. Finished runs are safe" in said
    assert len(store.finished()) == len(GROUP)
    train_group(other, store, quiet)
    assert len(store.finished()) == 2 * len(GROUP)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"there is a file of that name.*--store"):
        Store(tmp_path / "file").prepare()
    with pytest.raises(StoreError, match="no run store"):
        Store(tmp_path / "nowhere").finished()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=r"you may not write there.*--store"):
        Store(tmp_path / "runs").prepare()


def test_groups_share_a_program_and_nothing_is_lost():
    runs = [dataclasses.replace(TINY, length=T, seed=s) for T in (4, 5) for s in range(40)]
    runs += [run_of("copyrepeat", seed=s) for s in range(3)]
    found = groups(runs + runs)
    assert sorted(run.name for group in found for run in group) == sorted(run.name for run in runs)
    assert all(len({run.length for run in group}) == 1 and len(group) <= 32 for group in found)
    assert [len(group) for group in found if group[0].task == "copyrepeat"] == [1, 1, 1]


def test_what_a_rule_does_not_have_does_not_tell_runs_apart():
    a, b = (dataclasses.replace(TINY, rule="truncated", lam=lam) for lam in (0.0, 1.0))
    assert a.name == b.name
    assert dataclasses.replace(a, n=2).name != a.name
    assert dataclasses.replace(TINY, lam=0.0).name != TINY.name
    assert dataclasses.replace(TINY, seed=cast(int, np.int64(3))).name == dataclasses.replace(TINY, seed=3).name
    with pytest.raises(ValueError, match="variant is 'fixed', but must be plastic, unless the task is toy"):
        run_of("seqmnist", variant="fixed")


def test_a_crash_is_tried_again_then_reported_and_the_others_go_on(whole, tmp_path):
    store = Store(tmp_path)
    store.prepare()
    broken = [dataclasses.replace(GROUP[0], length=6)]
    # A file where the group's folder should be: its process fails, twice.
    (path,) = [store._partial(broken)]
    path.write_text("in the way")
    failures = LocalProcesses(workers=2)([broken, GROUP], store, lambda i, progress: None)
    assert [failure.group for failure in failures] == [broken]
    assert "there is a file of that name" in failures[0].reason
    for run in GROUP:
        assert_same(whole.find(run), store.find(run))


def test_a_killed_worker_is_started_again(whole, tmp_path):
    store, killed = Store(tmp_path), []
    store.prepare()

    def kill_once(i, progress):
        if not killed:
            children = subprocess.run(["pgrep", "-f", "bplambda.work"], capture_output=True, text=True).stdout.split()
            for child in children:
                status = Path(f"/proc/{child}/stat")
                if status.exists() and status.read_text().split()[3] == str(os.getpid()):
                    os.kill(int(child), signal.SIGKILL)
                    killed.append(child)

    assert LocalProcesses(workers=1)([GROUP], store, kill_once) == []
    assert killed
    for run in GROUP:
        assert_same(whole.find(run), store.find(run))


def test_in_this_process_is_the_same_seam(tmp_path):
    store, seen = Store(tmp_path), []
    store.prepare()
    run = dataclasses.replace(TINY, epochs=5)
    assert in_this_process([[run]], store, lambda i, progress: seen.append((i, progress.epochs))) == []
    assert seen == [(0, 5)]
    assert store.find(run)
