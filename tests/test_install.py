"""What a user gets: the wheel, in a fresh environment away from the checkout, and the command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command, cwd, **kwargs):
    # The checkout must not leak into the fresh environment.
    env = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV", "JAX_ENABLE_X64"}}
    found = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, **kwargs)
    assert found.returncode == 0, f"{command}\n{found.stdout}\n{found.stderr}"
    return found.stdout


def test_the_wheel_works_in_a_fresh_environment(tmp_path):
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=ROOT)
    (wheel,) = tmp_path.glob("bplambda-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = ["--constraint", ROOT / "constraints.txt"]
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
        *constraints,
        wheel,
        cwd=tmp_path,
    )

    where = run(python, "-c", "import bplambda; print(bplambda.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path))
    printed = run(tmp_path / "venv" / "bin" / "bplambda", "verify", "--seed", "5", "--out", "figures", cwd=tmp_path)
    assert re.search(r"All \d+ identities hold", printed), printed
    assert (tmp_path / "figures" / "theorem.png").exists()
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    printed = run(python, "-c", example, cwd=tmp_path)
    assert "BP(1): squared error 0.00" in printed


def test_help_shows_the_commands_with_an_example():
    bplambda = Path(sys.executable).with_name("bplambda")
    assert "verify" in run(bplambda, "--help", cwd=ROOT)
    text = run(bplambda, "verify", "--help", cwd=ROOT)
    assert all(word in text for word in ("--seed", "--out", "Example: bplambda verify --seed 7"))


def test_verify_fails_when_an_identity_does(monkeypatch, tmp_path, capsys):
    from bplambda.verify import command, identities

    wrong = identities.Identity("two is three", "nowhere", 0.0, lambda seed: 1.0)
    monkeypatch.setattr(command, "IDENTITIES", [wrong])
    assert command.verify(seed=0, out=tmp_path) == 1
    assert "FAILS" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["", "elsewhere"])
def test_the_compilation_cache_can_be_moved_or_left_out(folder, tmp_path):
    code = "import bplambda.cache as c, jax; print(c.use_compilation_cache(), jax.config.jax_compilation_cache_dir)"
    env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"} | {"BPLAMBDA_CACHE": folder}
    found = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.split() == (["elsewhere", "elsewhere"] if folder else ["None", "None"])
