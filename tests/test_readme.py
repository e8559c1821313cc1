"""Every line of Python in the README runs, and does what the README says."""

import re
from pathlib import Path

import bplambda as bp

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_every_line_runs(capsys, plain_jax, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks():
        exec(block, names)
    printed = capsys.readouterr().out
    errors = {name: float(e) for name, e in re.findall(r"(.+): squared error ([\d.]+)", printed)}
    assert errors["BP(1)"] < 0.01, printed
    assert errors["no BPTT"] > 0.03, printed
    assert "BPLambda(lam=1, gamma=0.9, scale=1) against full BPTT" in printed


def test_all_that_is_public_is_listed():
    page = README.with_name("docs").joinpath("api.md").read_text()
    for module, prefix in ((bp, "bp."), (bp.losses, "bp.losses.")):
        for name, value in vars(module).items():
            if getattr(value, "__module__", "").startswith("bplambda") and not name.startswith("_"):
                assert f"{prefix}{name}" in page


def test_the_example_is_twenty_lines():
    code = [line for line in blocks()[0].splitlines() if line.strip()]
    assert len(code) <= 25
