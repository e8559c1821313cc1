"""Files that are there whole or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


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


def json_by_line(value: Any) -> str:
    """A list or a dictionary as JSON, one line for each entry, so that a change can be read."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"  {json.dumps(v)}" for v in value) + "\n]\n"
    return "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n}\n"
