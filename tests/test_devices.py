"""One run on several devices: the numbers of one device, to rounding, with every example's trace on its own device."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bplambda as bp
from bplambda.config import Run
from bplambda.runs import Store
from bplambda.work import train_group

FOUR = "--xla_force_host_platform_device_count=4"
BPLAMBDA = str(Path(sys.executable).with_name("bplambda"))
TOY = ["--length", "3", "--epochs", "5", "--batches", "10", "--batch-size", "8", "--units", "4", "--seeds", "1"]

# Four devices need a process of their own: JAX counts them once, when it starts.
PROGRAM = """
import json, re
import equinox as eqx, jax, jax.numpy as jnp
import bplambda as bp
jax.config.update("jax_enable_x64", True)
k = jax.random.split(jax.random.key(0), 5)
network = bp.Network(bp.RNNCell(3, 5, key=k[0]), eqx.nn.Linear(5, 2, key=k[1]), bp.losses.squared_error)
g = jax.tree.map(lambda p: p + 0.1 * jax.random.normal(k[4], p.shape), bp.LinearSynthesiser(network.state_size))
xs, ys, weights = (jax.random.normal(key, (7, 8, n)) for key, n in zip(k[2:], (3, 2, 1)))
errors = {}
lam = bp.BPLambda(0.7, 0.9, 0.3)
for rule, window in ((lam, None), (lam, 3), (bp.NStepSG(3, 0.9, 0.1), 3), (bp.TruncatedBPTT(2), None)):
    problem = xs, ys, weights[..., 0], window
    one = bp.sequence_gradients(network, g, rule, *problem)
    four = bp.sequence_gradients(network, g, bp.DataParallel(rule, 4), *problem)
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(four), strict=True)
    errors[f"{type(rule).__name__} {window}"] = float(jnp.max(jnp.array([jnp.max(jnp.abs(a - b)) for a, b in pairs])))
rule = bp.DataParallel(lam, 4)
step = eqx.filter_jit(lambda carry, window: rule.window(network, g, carry, window))
carry = rule.init(network, g, 8)
for t in range(3):
    _, carry, _ = step(carry, bp.Window(xs[t : t + 1], ys[t : t + 1]))
program = step.lower(carry, bp.Window(xs[:1], ys[:1])).compile().compiled.as_text()
print(json.dumps({
    "errors": errors,
    "shares": [[shard.data.shape for shard in e.addressable_shards] for e in jax.tree.leaves(carry.memory)],
    "devices": [len({shard.device for shard in e.addressable_shards}) for e in jax.tree.leaves(carry.memory)],
    "traffic": re.findall(r" (all-reduce|all-gather|all-to-all|collective-permute)[-(]", program),
}))
"""


def run(command, **env):
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | env
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_gradients_are_those_of_one_device_and_traces_stay_where_their_examples_are():
    found = run([sys.executable, "-c", PROGRAM], XLA_FLAGS=FOUR)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["errors"].keys() == {"BPLambda None", "BPLambda 3", "NStepSG 3", "TruncatedBPTT None"}
    assert all(error < 1e-14 for error in result["errors"].values())
    assert result["shares"] == [[[2, 5, 5, 5]] * 4, [[2, 5, 5]] * 4], "two of the eight examples on each"
    assert result["devices"] == [4, 4]
    assert result["traffic"] == ["all-reduce"], "one sum of gradients for each window, and no more"


def parameters(store: Store, devices: int) -> list[np.ndarray]:
    found = [f.run for f in store.finished() if f.run.devices == devices]
    arrays = []
    for run in sorted(found, key=lambda run: run.seed):
        with np.load(store.folder / run.name / "checkpoint.npz") as file:
            arrays += [file[name] for name in file.files]
    return arrays


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def two_processes(*folders):
    """A run of two processes, each with its store. **Returns:** their exit codes, and what they said."""
    together = ["--distributed", "--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--devices", "4"]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    processes = [
        subprocess.Popen(
            [BPLAMBDA, "train", "toy", *TOY, *together, "--process", str(k), "--store", str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k, folder in enumerate(folders)
    ]
    said = [process.communicate(timeout=300) for process in processes]
    return [process.returncode for process in processes], said


def test_if_the_first_process_cannot_begin_the_others_end_in_peace(tmp_path):
    (tmp_path / "file").write_text("in the way")
    codes, said = two_processes(tmp_path / "file", tmp_path / "nothing")
    assert codes == [1, 0]
    assert "there is a file of that name" in said[0][1]
    assert "Traceback" not in said[1][1]


def test_devices_and_processes_train_alike(tmp_path, plain_jax):
    """One device; four; and four of two processes, of which the first alone writes and prints."""
    one, four, both = (tmp_path / name for name in ("one", "four", "both"))
    store = Store(one)
    store.prepare()
    train_group([Run(length=3, epochs=5, batches=10, batch_size=8, units=4)], store, lambda progress: None)
    found = run([BPLAMBDA, "train", "toy", *TOY, "--devices", "4", "--store", str(four)])
    assert found.returncode == 0, found.stderr
    codes, said = two_processes(both, tmp_path / "nothing")
    assert codes == [0, 0], said
    assert "final error" in said[0][0]
    assert "final error" not in said[1][0]
    assert not (tmp_path / "nothing").exists()
    expected = parameters(store, devices=1)
    assert len(expected) == 7
    for folder in (four, both):
        for a, b in zip(expected, parameters(Store(folder), devices=4), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_devices_that_do_not_fit():
    with pytest.raises(ValueError, match=r"batch_size is 10, but must be a multiple of 4, the number of devices"):
        Run(batch_size=10, devices=4)
    with pytest.raises(ValueError, match=r"devices is 7, but must be at most 1: that is how many CPU devices JAX sees"):
        bp.DataParallel(bp.BPLambda(), devices=7)
    with pytest.raises(ValueError, match=r"rule is 'TrueOnlineBPLambda'.*each example for itself"):
        bp.DataParallel(bp.TrueOnlineBPLambda(), devices=1)
    found = run([BPLAMBDA, "train", "toy", "--coordinator", "127.0.0.1:1"])
    assert found.returncode == 1
    assert "coordinator is '127.0.0.1:1', but must be left out, unless with --distributed" in found.stderr


def test_devices_do_not_change_the_names_of_the_runs_that_there_are():
    assert "devices" not in Run().to_json()
    assert Run(batch_size=8, devices=2).name != Run(batch_size=8).name
