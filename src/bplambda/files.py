"""Files that are there whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


def to_disk(file: IO) -> None:
    """All that was written is on the disk when this returns."""
    file.flush()
    os.fsync(file.fileno())


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Makes or replaces `path` all at once with what `write(file)` writes; a failure leaves what was there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        with draft.open("wb") as file:
            write(file)
            to_disk(file)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
