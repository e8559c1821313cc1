"""Which Ray: one of our own, on this machine alone, or one that is there."""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..checks import require
from ._base import Executor

REACH = 10.0  # seconds, to reach a cluster's address
OBJECT_STORE = 400_000_000  # bytes, of our own: the images of MNIST and the checkpoints under way take a quarter


@contextlib.contextmanager
def cluster(address: str | None, workers: int, gpus: float) -> Iterator[tuple[Executor, int]]:
    """Connects to Ray, and leaves it again.

    **Arguments:** the `address` of a cluster, or `None` for one of our own, which has `workers` CPUs, listens on
    127.0.0.1 only, and ends with us; the `gpus` of each group of runs.

    **Returns:** a context of the executor, and of how many groups the cluster has room for at a time.
    """
    require(gpus >= 0, "gpus", gpus, "at least 0")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a thread that ends late must not start another Ray
    if address is None:
        # On Linux, Ray listens on all of a machine's addresses, unless it believes that there can be no cluster.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError(
            '--executor ray needs Ray, which is not installed: in a checkout, pip install ".[ray]"'
        ) from error
    from .ray import RayWorkers

    own: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        _reach(address)
        _insist(lambda: ray.init(address or "local", **quiet, **({} if address else own)))
    except ConnectionAbortedError as error:
        advice = "Its ray_client_server*.err say why, in the logs of its head."
        raise ValueError(f"The Ray cluster at {address} could not start a server for us. {advice}") from error
    except OSError as error:
        advice = "Start one with `ray start --head`, or leave --address out for one on this machine alone."
        raise ValueError(f"There is no Ray cluster at {address}. {advice}") from error
    try:
        if address is None and [node["NodeManagerAddress"] for node in ray.nodes()] != ["127.0.0.1"]:
            raise ValueError("Ray was imported before bplambda could tell it to stay on this machine: import it later.")
        found = ray.cluster_resources()
        rooms = [found.get("CPU", 0), *([found.get("GPU", 0) / gpus] if gpus else [])]
        if min(rooms) < 1:
            print(f"No node of the cluster has room for a group now (1 CPU, {gpus:g} GPUs): waiting for one that has.")
        yield RayWorkers(gpus), max(1, int(min(rooms)))
    finally:
        ray.shutdown()


def _reach(address: str | None) -> None:
    """Raises an `OSError` at once where Ray would try, and try again, for minutes."""
    if address in (None, "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    require(bool(host) and port.isdigit(), "address", address, "auto, HOST:PORT or ray://HOST:PORT")
    socket.create_connection((host, int(port)), REACH).close()


def _insist(connect: Callable[[], Any]) -> None:
    """Tries again when a cluster's server for its client breaks at its start: Ray forks it from a process with threads,
    which it does not always survive."""
    for wait in (1.0, 2.0, 4.0):
        try:
            connect()
            return
        except ConnectionAbortedError:
            time.sleep(wait)
    connect()
