"""The command line: `bplambda verify`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import arg


@dataclass
class Verify:
    """Check the paper's identities on fresh random problems, and draw Theorem 3.1.

    Prints each identity, where the paper has it, and its error; writes theorem.png. Exits with 1 if one fails.

    Example: bplambda verify --seed 7
    """

    seed: Annotated[int, arg(help="Which random problems.")] = 0
    out: Annotated[Path, arg(help="Folder for theorem.png.")] = Path("verify")

    def run(self) -> int:
        from .verify.command import verify

        return verify(self.seed, self.out)


def main(args: list[str] | None = None) -> None:
    """Train recurrent networks without backpropagation through time."""
    command = tyro.extras.subcommand_cli_from_dict(
        {"verify": Verify}, prog="bplambda", description=main.__doc__, args=args
    )
    sys.exit(command.run())
