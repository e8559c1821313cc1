"""Runs on a real Ray cluster of several nodes, all on this machine: what may break, breaks here."""

import dataclasses
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bplambda.config import Run, run_of
from bplambda.data import load_mnist
from bplambda.executors import LocalProcesses
from bplambda.executors.cluster import cluster as connected
from bplambda.runs import Checkpoint, Store
from bplambda.train import train
from bplambda.training import groups
from bplambda.work import Progress
from small_mnist import write_small_mnist  # pyrefly: ignore[missing-import]

pytest.importorskip("ray", reason='Ray is not installed: pip install "bplambda[ray]"')

from ray.cluster_utils import Cluster

from bplambda.executors.ray import RayWorkers, sparing

pytestmark = [
    pytest.mark.usefixtures("plain_jax"),
    # Ray leaves its sockets and log files to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

TINY = Run(length=4, units=3, batch_size=2, batches=10, epochs=50)
EAGER = RayWorkers(checkpoint_every=0.0)  # every checkpoint travels


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


CLIENT = free_port()  # of the cluster's server for clients

# A driver in a process of its own, which can be killed.
DRIVER = """
import dataclasses, json, sys
from rich.console import Console
from bplambda.config import Run
from bplambda.executors.cluster import cluster
from bplambda.train import stoppable, train
from bplambda.runs import Store
address, store, runs = sys.argv[1:]
runs = [Run(**run) for run in json.loads(runs)]
with cluster(address, 1, 0.0) as (executor, workers):
    executor = executor._replace(checkpoint_every=0.0)
    failures = stoppable(lambda: train(runs, Store(store), executor, Console(), workers), Console(), "the same")
sys.exit(130 if failures is None else len(failures))
"""


@pytest.fixture(scope="module")
def cluster():
    """A head without CPUs, where the driver is, and two nodes with one each."""
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    small = {"object_store_memory": 80_000_000, "include_dashboard": False}
    head = {"num_cpus": 0, "_system_config": soon, "ray_client_server_port": CLIENT, **small}
    found = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        found.add_node(num_cpus=1, **small)
    yield found
    found.shutdown()


class Counting(Store):
    """Remembers what is written, and how often."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.written: list[str] = []
        self.prepare()

    def write(self, group, run, metrics, result, parameters) -> None:
        self.written.append(run.name)
        super().write(group, run, metrics, result, parameters)


def workers_on(node) -> list[int]:
    """The processes of groups that a node of the cluster has started."""
    raylet = node.all_processes["raylet"][0].process.pid
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(raylet)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "ray::_Worker" in line]


def assert_same(store: Store, other: Store, runs: list[Run]) -> None:
    """Bit for bit: curves and parameters."""
    for run in runs:
        for file in ("metrics.npz", "checkpoint.npz"):
            with np.load(store.folder / run.name / file) as a, np.load(other.folder / run.name / file) as b:
                assert a.files == b.files
                for name in a.files:
                    np.testing.assert_array_equal(a[name], b[name])


def test_lost_workers_and_lost_nodes(cluster, tmp_path, monkeypatch):
    """Two tasks, one with images that the workers' disks do not have; a kill -9, and a node removed in the middle."""
    write_small_mnist(tmp_path / "images")
    runs = [dataclasses.replace(TINY, seed=seed, length=T) for T in (4, 5) for seed in (0, 1)]
    small = {"units": 4, "batch_size": 10, "batches": 4, "epochs": 3}
    runs.append(run_of("seqmnist", data=load_mnist(tmp_path / "images", checksum=False).name, **small))
    monkeypatch.setenv("BPLAMBDA_DATA", str(tmp_path / "images"))  # after the cluster was started
    store, local = Counting(tmp_path / "ray"), Counting(tmp_path / "local")
    seen: dict[int, list[int]] = {}
    broken: list[str] = []

    def executor(groups, store, on_progress):
        def breaking(i: int, progress: Progress) -> None:
            on_progress(i, progress)
            seen.setdefault(i, []).append(progress.epochs)
            if groups[i][0].length == 4 and progress.epochs in (15, 30):
                node, pids = next((node, pids) for node in cluster.worker_nodes if (pids := workers_on(node)))
                if progress.epochs == 15:
                    os.kill(pids[0], signal.SIGKILL)
                else:
                    cluster.remove_node(node, allow_graceful=False)
                broken.append(f"at {progress.epochs}")

        return EAGER(groups, store, breaking)

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with connected(cluster.address, 1, 0.0) as (_, workers):
        assert workers == 2
        assert train(runs, store, executor, console, workers) == []
    assert len(broken) == 2
    assert sorted(store.written) == sorted(run.name for run in runs), "each once, none lost"
    assert not list((store.folder / ".partial").iterdir())
    assert len(seen) == 3, "progress from all workers"
    assert all(epochs == sorted(set(epochs)) for epochs in seen.values()), "on from the checkpoint: no epoch twice"
    assert "100%" in screen.getvalue()
    assert LocalProcesses(1)(groups(runs), local, lambda i, progress: None) == []
    assert_same(store, local, runs)


def test_what_always_fails_is_reported_and_the_others_go_on(cluster, tmp_path, monkeypatch):
    store = Counting(tmp_path)
    crashing, fine, dying = ([dataclasses.replace(TINY, epochs=10, length=T)] for T in (6, 7, 8))
    with store.lock(crashing):
        store.save_checkpoint(crashing, Checkpoint({}, {"epochs": 5}))  # not one that training can go on from
    died = []

    def kill(i: int, progress: Progress) -> None:
        (pid,) = (pid for node in cluster.worker_nodes for pid in workers_on(node))
        os.kill(pid, signal.SIGKILL)
        died.append(pid)

    monkeypatch.setattr("bplambda.executors.ray.LOSSES", 2)
    with connected(cluster.address, 1, 0.0):
        (crash,) = RayWorkers()([crashing, fine], store, lambda i, progress: None)
        (loss,) = RayWorkers(checkpoint_every=float("inf"))([dying], store, kill)  # always from the start
    assert crash == (crashing, "KeyError: 'seconds'")
    assert loss.group == dying
    assert loss.reason.startswith("its worker was lost: ")
    assert len(died) == 2
    assert store.written == [fine[0].name]


def test_a_driver_that_is_killed_or_stopped_goes_on_when_it_is_started_again(cluster, tmp_path):
    runs = [dataclasses.replace(TINY, batches=1, epochs=600, seed=seed) for seed in (0, 1)]
    store, local = Store(tmp_path / "ray"), Counting(tmp_path / "local")
    client = f"ray://127.0.0.1:{CLIENT}"

    def command(address: str) -> list[str]:
        told = json.dumps([dataclasses.asdict(run) for run in runs])
        return [sys.executable, "-c", DRIVER, address, str(store.folder), told]

    for stop in (signal.SIGKILL, signal.SIGINT):
        with subprocess.Popen(command(cluster.address), stdout=subprocess.PIPE, text=True) as driver:
            before = epochs_of(store, runs)
            while driver.poll() is None and epochs_of(store, runs) <= before:
                time.sleep(0.02)
            driver.send_signal(stop)
            said, _ = driver.communicate(timeout=60)
        assert driver.returncode == {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[stop]
    assert "to go on from there: the same" in said
    until = time.monotonic() + 30
    while any(workers_on(node) for node in cluster.worker_nodes):
        assert time.monotonic() < until, "its tasks are cancelled"
        time.sleep(0.1)
    assert subprocess.run(command(client), stdout=subprocess.DEVNULL).returncode == 0
    assert len(store.finished()) == len(runs)
    assert LocalProcesses(1)([runs], local, lambda i, progress: None) == []
    assert_same(store, local, runs)


def epochs_of(store: Store, group: list[Run]) -> int:
    """Of the checkpoint that a group has."""
    found = store.load_checkpoint(group)
    return found.header["epochs"] if found else 0


def test_checkpoints_do_not_travel_more_often_than_they_should():
    events = [Checkpoint({}, {"epochs": 5}), Progress(5, 0.1), Checkpoint({}, {"epochs": 10}), Progress(10, 0.1)]
    assert list(sparing(events, 0.0)) == events
    assert list(sparing(events, 60.0)) == events[1::2]
    assert list(sparing(slowly(events, 0.02), 0.03)) == events[1:]


def slowly(events, seconds):
    for event in events:
        time.sleep(seconds)
        yield event


# A Ray of our own: trains a run, and prints the addresses on which any of its processes listens.
OWN = """
import json, re, sys
from pathlib import Path
from bplambda.config import Run
from bplambda.executors.cluster import cluster
from bplambda.runs import Store

def listening():
    parents = {int(f.name): int(f.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1]) for f in processes()}
    ours = {me}
    for _ in range(8):
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    links = [str(fd.readlink()) for pid in ours for fd in Path(f"/proc/{pid}/fd").glob("*") if fd.is_symlink()]
    sockets = {link[8:-1] for link in links if link.startswith("socket:")}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets]

def processes():
    return [f for f in Path("/proc").iterdir() if f.name.isdigit() and f.joinpath("stat").exists()]

me = int(Path("/proc/self").readlink().name)
group = [Run(length=4, units=3, batch_size=2, batches=10, epochs=50)]
store = Store(sys.argv[1])
store.prepare()
with cluster(None, 1, 0.0) as (executor, workers):
    found = []
    failures = executor([group], store, lambda i, progress: found.extend(listening()))
print(json.dumps([workers, len(failures), len(store.finished()), found]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_ray_of_our_own_listens_on_this_machine_alone(tmp_path):
    done = subprocess.run([sys.executable, "-c", OWN, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    workers, failures, finished, addresses = json.loads(done.stdout.splitlines()[-1])
    assert (workers, failures, finished) == (1, 0, 1)
    assert len(addresses) > 4, "raylet, control store, worker and driver"
    assert set(addresses) <= {"0100007F", "0000000000000000FFFF00000100007F"}, "127.0.0.1, in the order of the kernel"


def test_ray_that_is_not_there(monkeypatch):
    with (
        pytest.raises(ValueError, match=r"no Ray cluster at 127.0.0.1:1\. Start one"),
        connected("127.0.0.1:1", 1, 0.0),
    ):
        pass
    with pytest.raises(ValueError, match=r"address is 'head', but must be auto, HOST:PORT"), connected("head", 1, 0.0):
        pass
    with socket.create_server(("127.0.0.1", 0)) as server:  # reached, but its server for clients breaks each time
        tried = []

        def aborted(*_, **__):
            tried.append(1)
            raise ConnectionAbortedError("Initialization failure from server")

        monkeypatch.setattr("ray.init", aborted)
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ValueError, match=r"could not start a server for us"), connected(address, 1, 0.0):
            pass
        assert len(tried) == 4
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"needs Ray.*pip install \"\.\[ray\]\""), connected(None, 1, 0.0):
        pass
