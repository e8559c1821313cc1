"""Files that are there whole or not at all, and nothing in them that would have to be unpickled."""

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

Arrays = dict[str, np.ndarray]

# What reading raises if a file of NumPy's or of JSON is not as it was written.
DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,  # zipfile: an unknown compression
    RuntimeError,  # zipfile: encrypted
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


def pack(file: IO[bytes], header: Any, arrays: Arrays) -> None:
    """Writes arrays, and beside them a header of anything JSON can hold."""
    encoded = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(file, header=encoded, **arrays)  # pyrefly: ignore[bad-argument-type]


def unpack(file: IO[bytes], names: Iterable[str] | None = None) -> tuple[Any, Arrays]:
    """The header and the arrays that `pack` wrote; of these, all or those of the given names."""
    with np.load(file, allow_pickle=False) as found:
        header = json.loads(found["header"].tobytes())
        wanted = [name for name in found.files if name != "header"] if names is None else names
        return header, {name: found[name] for name in wanted}


def json_by_line(value: Any) -> str:
    """A list or a dictionary as JSON, one line for each entry, so that a change can be read."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"  {json.dumps(v)}" for v in value) + "\n]\n"
    return "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n}\n"
