"""Options that several commands have, and what is done with them."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

StoreFolder = Annotated[Path, arg(help="The run store.")]
DataFolder = Annotated[
    Path | None, arg(help="Folder of the images; BPLAMBDA_DATA, or the user's data folder, if left out.")
]


def again() -> str:
    """The command that was given, to be given again."""
    return shlex.join(["bplambda", *sys.argv[1:]])


def made(folder: Path) -> Path:
    """A folder to write to, made if need be; refused before any work is done if it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written to: {error.strerror}.") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{folder} cannot be written to: Permission denied.")
    return folder


def use_data_folder(given: Path | None) -> None:
    """For this process and the workers that it starts."""
    if given is not None:
        os.environ["BPLAMBDA_DATA"] = str(given)
