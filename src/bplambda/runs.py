"""The run store: one folder a run, there whole or not at all, whatever happens while it is written.

    runs/toy-plastic-T20-bplambda-…/   config.json  metrics.npz  result.json  checkpoint.npz
    runs/.partial/<group>/             lock  checkpoint.npz       (runs under way; removed when they are done)

Nothing is ever unpickled.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import shutil
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .config import Run, TaskName, digest
from .files import DAMAGE, Arrays, pack, to_disk, unpack, write_whole

FORMAT = 2

# What a finished run has: figures, whatever its task; figures and curves, by task.
_FIGURES = ("seconds", "runs_together", "us_per_run_and_step", "versions")
_FIGURES_OF: dict[TaskName, tuple[str, ...]] = {
    "toy": ("error", "solved", "alignment"),
    "seqmnist": ("error", "best_epoch", "validation_accuracy", "test_accuracy"),
    "copyrepeat": ("error", "level", "solved_length"),
}
_CURVES_OF: dict[TaskName, tuple[str, ...]] = {
    "toy": ("error", "alignment"),
    "seqmnist": ("error", "loss", "test_error"),
    "copyrepeat": ("error", "level"),
}


class StoreError(Exception):
    """The store cannot be used as it is; the message says what to do."""


class OtherVersion(StoreError):
    """Not damaged, and left to the version that wrote it."""

    def __init__(self, path: Path, why: str):
        advice = "use that version, or name another folder with --store"
        super().__init__(f"{path} was written by another version of bplambda ({why}): {advice}.")


class Finished(NamedTuple):
    """A finished run: its configuration, its curves, its final figures."""

    run: Run
    metrics: Arrays
    result: dict[str, Any]


class Checkpoint(NamedTuple):
    """A group of runs under way."""

    arrays: Arrays
    header: dict[str, Any]


class Store:
    """The runs in a folder."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)

    def prepare(self) -> None:
        """Makes the folder, and makes sure that it can be written to."""
        with _explained(self.folder):
            (self.folder / ".partial").mkdir(parents=True, exist_ok=True)
            probe = self.folder / ".partial" / f"probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()

    def find(self, run: Run) -> Finished | None:
        """A finished run, or `None`. A damaged one is set aside, so that it can be trained again."""
        folder = self.folder / run.name
        try:
            with _readable(folder):
                return _read(folder) if folder.is_dir() else None
        except DAMAGE as error:
            aside = _free_name(folder.with_name(folder.name + ".damaged"))
            with _explained(self.folder):
                folder.rename(aside)
            print(f"{folder} is damaged ({error}): set aside as {aside.name}, to be trained again.")
            return None

    def finished(self) -> list[Finished]:
        """Every finished run that can be read."""
        with _readable(self.folder):
            if not self.folder.is_dir():
                advice = "train something first, or name another --store"
                raise StoreError(f"There is no run store at {self.folder}: {advice}.")
            folders = [folder for folder in sorted(self.folder.iterdir()) if _holds_a_run(folder)]
        found = []
        for folder in folders:
            try:
                with _readable(folder):
                    found.append(_read(folder))
            except OtherVersion as error:
                print(f"Left out: {error}")
            except DAMAGE as error:
                print(f"Left out: {folder} is damaged ({error}). The command that trained it will do so again.")
        return found

    def write(self, group: list[Run], run: Run, metrics: Arrays, result: dict[str, Any], parameters: Arrays) -> None:
        """Adds a finished run, all at once. The caller holds the group's lock."""
        target, draft = self.folder / run.name, self._partial(group) / f"{run.name}.draft"
        with _explained(self.folder):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            _write_json(draft / "config.json", {"format": FORMAT, **dataclasses.asdict(run)})
            _write_json(draft / "result.json", _without_nan(result))
            for name, arrays in (("metrics.npz", metrics), ("checkpoint.npz", parameters)):
                with (draft / name).open("wb") as file:
                    np.savez_compressed(file, **arrays)  # pyrefly: ignore[bad-argument-type]
                    to_disk(file)
            try:
                draft.rename(target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                shutil.rmtree(draft)  # somebody else was first, with the same numbers

    @contextlib.contextmanager
    def lock(self, group: list[Run]) -> Iterator[None]:
        """Holds a group of runs: another process that wants it waits, and a killed one lets go."""
        folder = self._partial(group)
        with _explained(self.folder):
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / "lock").open("w")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            folder.mkdir(parents=True, exist_ok=True)
            for draft in folder.glob("*.draft"):
                shutil.rmtree(draft, ignore_errors=True)
            yield

    def save_checkpoint(self, group: list[Run], checkpoint: Checkpoint) -> None:
        """Replaces the checkpoint of a group, all at once."""
        path = self._partial(group) / "checkpoint.npz"
        known = {"format": FORMAT, "runs": [run.name for run in group], "arrays": list(checkpoint.arrays)}
        with _explained(self.folder):
            write_whole(path, lambda file: pack(file, known | checkpoint.header, checkpoint.arrays))

    def load_checkpoint(self, group: list[Run]) -> Checkpoint | None:
        """The checkpoint of a group, or `None`. A damaged one is set aside: the group starts again."""
        path = self._partial(group) / "checkpoint.npz"
        if not path.exists():
            return None
        try:
            with _readable(path), path.open("rb") as file:
                header, arrays = unpack(file)
            _require_dict("header", header)
            _check_format(path, header.pop("format"))
            header.pop("runs", None)
            _require_all("arrays", header.pop("arrays", ()), arrays)  # older versions did not write them down
            return Checkpoint(arrays, header)
        except DAMAGE as error:
            self.set_checkpoint_aside(group, str(error))
            return None

    def set_checkpoint_aside(self, group: list[Run], why: str) -> None:
        """Moves a damaged checkpoint out of the way of a group, which then starts again."""
        path = self._partial(group) / "checkpoint.npz"
        aside = _free_name(path.with_suffix(".damaged"))
        with _explained(self.folder):
            path.rename(aside)
        print(f"{path} is damaged ({why}): set aside as {aside.name}; its runs start again.")

    def begun(self, runs: list[Run]) -> list[list[Run]]:
        """The groups, of these runs alone, that have been begun and stopped."""
        by_name, found = {run.name: run for run in runs}, []
        for path in sorted(self.folder.glob(".partial/*/checkpoint.npz")):
            with contextlib.suppress(*DAMAGE), _readable(path), path.open("rb") as file:
                names = unpack(file, names=())[0]["runs"]
                if by_name.keys() >= set(names):
                    found.append([by_name[name] for name in names])
        return found

    def forget_checkpoint(self, group: list[Run]) -> None:
        """Removes what a finished group no longer needs."""
        shutil.rmtree(self._partial(group), ignore_errors=True)

    def _partial(self, group: list[Run]) -> Path:
        return self.folder / ".partial" / digest([run.name for run in group])


def _check_format(path: Path, found: Any) -> None:
    if found != FORMAT:
        raise OtherVersion(path, f"format {found}; this is {FORMAT}")


def _holds_a_run(folder: Path) -> bool:
    return not folder.name.startswith(".") and ".damaged" not in folder.name and (folder / "config.json").exists()


def _read(folder: Path) -> Finished:
    config = _read_json(folder / "config.json")
    _check_format(folder, config.pop("format"))
    if unknown := config.keys() - {field.name for field in dataclasses.fields(Run)}:
        raise OtherVersion(folder, f"with settings unknown to this one: {', '.join(sorted(unknown))}")
    result = _read_json(folder / "result.json")
    run = Run(**config)
    if run.name != folder.name:
        raise ValueError("its config.json has been changed")
    with (folder / "metrics.npz").open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        metrics = dict(file)
    _check_metrics(run, metrics)
    if not (folder / "checkpoint.npz").is_file():
        raise ValueError("its checkpoint.npz is gone")
    return Finished(run, metrics, _checked_result(run, result))


def _checked_result(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    """The result, with NaN for the figures that were written as null; refused if it is not what training wrote."""
    figures = _FIGURES_OF[run.task]
    _require_all("result.json", (*_FIGURES, *figures), result)
    result |= {name: float("nan") for name in figures if result[name] is None}
    numbers = [result[name] for name in (*figures, "seconds", "runs_together")]
    numbers += [result["us_per_run_and_step"] or 0]  # it may not have been measured
    if not all(isinstance(number, float | int) for number in numbers) or not isinstance(result["versions"], dict):
        raise ValueError("its result.json has been changed")
    return result


def _check_metrics(run: Run, metrics: Arrays) -> None:
    _require_all("metrics.npz", _CURVES_OF[run.task], metrics)
    if any(curve.shape[:1] != (run.epochs,) for curve in metrics.values()):
        raise ValueError(f"the curves in its metrics.npz are not of {run.epochs} epochs")


def _require_all(where: str, names: Iterable[str], found: Container[str]) -> None:
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"its {where} lacks {', '.join(missing)}")


def _require_dict(what: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"its {what} is not a JSON object")


def _read_json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text())
    _require_dict(path.name, value)
    return value


def _without_nan(result: dict[str, Any]) -> dict[str, Any]:
    """The figures with `None` for those that are no numbers, which JSON does not know."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in result.items()}


def _write_json(path: Path, value: Any) -> None:
    with path.open("w") as file:
        json.dump(value, file, indent=2, allow_nan=False)
        file.write("\n")
        to_disk(file)


def _free_name(path: Path) -> Path:
    """`path`, or the first of path-2, path-3 … that is not there."""
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What cannot be read today (too many open files, no permission) is not damaged."""
    try:
        yield
    except OSError as error:
        # Gone; or it says that there is something where nothing is; or, by bz2, that it cannot be decompressed.
        if error.errno in (errno.ENOENT, errno.EINVAL, None):
            raise ValueError(error.strerror or str(error)) from error
        raise StoreError(f"Cannot read {path}: {error.strerror}. Put it right and give the command again.") from error


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turns what the file system refuses into words."""
    advice = {
        errno.ENOSPC: "the disk is full: make room",
        errno.EDQUOT: "your disk quota is used up: make room",
        errno.EFBIG: "files may not grow any larger: raise the limit",
        errno.EROFS: "it is read-only: name another folder with --store",
        errno.EACCES: "you may not write there: name another folder with --store",
        errno.ENOTDIR: "there is a file of that name: name another folder with --store",
        errno.EEXIST: "there is a file of that name: name another folder with --store",
    }
    try:
        yield
    except OSError as error:
        reason = advice.get(error.errno or 0, f"{error.strerror}: put it right")
        message = f"Cannot write to the run store {folder}: {reason}, and give the same command again. "
        raise StoreError(message + "Finished runs are safe.") from error
