"""`bplambda verify`: run, show, draw."""

from pathlib import Path

import jax
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ..cache import use_compilation_cache
from ..checks import require_int
from .identities import IDENTITIES, measured_theorem
from .theorem import draw


def verify(seed: int, out: Path) -> int:
    """Checks every identity on the problems of a `seed`, prints a table, draws `theorem.png` into `out`.

    **Returns:** 0 if all hold, 1 if one fails: the exit code of the command.
    """
    require_int("seed", seed, minimum=0)
    use_compilation_cache()
    console = Console()
    table = Table(title=f"The paper's identities, float64, seed {seed}", title_justify="left")
    table.add_column("identity")
    table.add_column("in the paper")
    for name in ("error", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    failed = []
    with jax.enable_x64(True), Progress(console=console, transient=True) as progress:
        for identity in progress.track(IDENTITIES, description="verifying"):
            error = identity.error(seed)
            holds = error <= identity.bound
            verdict = "[green]holds[/]" if holds else "[bold red]FAILS[/]"
            table.add_row(identity.claim, identity.where, f"{error:.1e}", f"{identity.bound:.0e}", verdict)
            if not holds:
                failed.append(identity.claim)
        path = out / "theorem.png"
        draw(measured_theorem(seed), path)
    console.print(table)
    console.print(f"Theorem 3.1 is drawn in {path}.")
    if failed:
        console.print(f"[bold red]{len(failed)} of {len(IDENTITIES)} identities fail.[/]")
        return 1
    console.print(f"All {len(IDENTITIES)} identities hold.")
    return 0
