"""Files that are there whole or not at all."""

import json
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

# What reading raises if a file of NumPy's or of JSON is not as it was written.
DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,  # a compression, or
    RuntimeError,  # an encryption, that there is none of
)


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
