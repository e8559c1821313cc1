"""How long a person waits: for the import, and for the first progress of a training."""

import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .effort import Effort
from .measure import Now, Row, once, ratio, surroundings

THEIRS = "import jax, equinox, optax"
TRAIN = "from bplambda.cli import main; main()"


def start(effort: Effort) -> Iterator[Row | Now]:
    """Imports in turn; then `bplambda train toy` without compiled programs, and again with those of the first time."""
    config = surroundings(effort) | {"rounds": effort.rounds}
    yield Now("start/import")
    times = np.array(
        [[once(lambda c=c: _python(c)) for c in ("import bplambda", THEIRS)] for _ in range(effort.rounds)]
    )
    ours, theirs = times[1:].T if len(times) > 1 else times.T  # the first reads the files from the disk
    more = {"baseline_s": float(np.median(theirs))}
    faster = ratio(theirs, ours)
    yield Row("start/import/vs-jax-equinox-optax", float(np.median(ours)), "s", THEIRS, faster, config | more)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "warm"):
            yield Now(f"start/train-toy/{name}")
            store = Path(folder) / name
            seconds = once(lambda store=store: first_progress(Path(folder) / "cache", store))
            yield Row(f"start/train-toy/{name}", seconds, "s", None, None, config)


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def first_progress(cache: Path, store: Path) -> None:
    """Starts `bplambda train toy` as in a terminal, and returns when it shows an epoch."""
    ours, theirs = pty.openpty()
    env = os.environ | {"BPLAMBDA_CACHE": str(cache), "TERM": "xterm", "COLUMNS": "120"}
    env.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-c", TRAIN, "train", "toy", "--store", str(store)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    try:
        while b"epoch" not in shown:
            shown += os.read(ours, 4096)
    except OSError:  # it ended, and the terminal with it
        raise RuntimeError(f"bplambda train toy showed no progress: {shown.decode(errors='replace')}") from None
    finally:
        process.kill()
        process.wait()
        os.close(ours)
