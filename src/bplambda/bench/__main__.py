"""The process of one group: what to measure comes in, rows go out."""

from ..cache import use_compilation_cache
from ..processes import say, take
from .effort import Effort
from .groups import GROUPS
from .measure import cores, pin


def main() -> None:
    job = take()
    group = GROUPS[job["group"]]
    if group.pinned:
        pin(cores()[-1])
    use_compilation_cache()  # what is compiled is never timed, except by processes with a cache of their own
    for said in group.measure(Effort(**job["effort"])):
        say({type(said).__name__: said._asdict()})


if __name__ == "__main__":
    main()
