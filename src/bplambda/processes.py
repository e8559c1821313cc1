"""A job for another process: a line of JSON goes in, lines of JSON come out."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

# Ctrl-C; a service or a container that is stopped; a terminal that is closed.
ASKS_TO_END = [s for name in ("SIGINT", "SIGTERM", "SIGHUP") if (s := getattr(signal, name, None))]

_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def end_as_if_by_ctrl_c() -> None:
    """Whoever asks this process to end gets what Ctrl-C gets: all that was done is kept. A signal that is ignored stays
    ignored."""
    for each in ASKS_TO_END:
        if signal.getsignal(each) is signal.SIG_DFL:
            signal.signal(each, signal.default_int_handler)


def nobody_listens() -> None:
    """What is still to be said goes nowhere: whoever read our standard output has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def one_thread() -> dict[str, str]:
    """The environment of a process in which XLA has one thread."""
    return os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_ONE_THREAD}".strip()}


def give(
    module: str, job: Any, hear: Callable[[dict], None], running: set[subprocess.Popen], env: dict[str, str]
) -> str:
    """Has `python -m module` do a job.

    **Arguments:** `job`, what JSON can hold; `hear(said)`, called with each thing that the process says; `running`,
    where the process is found meanwhile, to be killed; `env`, its environment.

    **Returns:** what went wrong, or nothing.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,  # Ctrl-C is for the parent, which decides
    )
    errors: list[str] = []
    running.add(process)
    with process:
        try:
            code = _listen(process, job, hear, errors)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            raise
        finally:
            running.discard(process)
    if code == 0:
        return ""
    last = [line.strip() for line in errors if line.strip()][-1:] or ["it said nothing"]
    return f"{last[0]} (exit code {code})"


def _listen(process: subprocess.Popen, job: Any, hear: Callable[[dict], None], errors: list[str]) -> int:
    """Hands over the job and hears the process out. **Returns:** its exit code."""
    assert process.stdin is not None
    assert process.stdout is not None
    listener = threading.Thread(target=lambda: errors.extend(process.stderr or []), daemon=True)
    listener.start()
    try:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
    except BrokenPipeError:  # it died before it could be told
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    for line in process.stdout:
        if line.startswith("{"):
            hear(json.loads(line))
        else:
            print(line, end="")
    code = process.wait()
    listener.join()
    return code


def take() -> Any:
    """The job of this process. From then on it ends when its parent does."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return job


def say(what: dict) -> None:
    """Tells the parent."""
    print(json.dumps(what), flush=True)


def _end_with_parent() -> None:
    """Standard input ends when the parent does, however that came about."""
    sys.stdin.read()
    os._exit(3)
