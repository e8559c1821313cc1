# make install | test | run | dist | bench. Needs python3 (3.11 or later), pip and make; all else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install test run dist bench clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --editable .
	touch $@

# The tools of the tests, beside what a user installs.
.venv/dev: .venv/installed
	$(INSTALL) --editable ".[dev]"
	touch $@

test: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyrefly check
	$(BIN)/pytest

run: install
	$(BIN)/bplambda reproduce --preset quick

dist: .venv/dev
	$(BIN)/python -m build --no-isolation --outdir dist .

# PyTorch, to be compared with; nothing else needs it.
.venv/bench: .venv/installed
	$(INSTALL) --editable ".[bench]"
	touch $@

bench: .venv/bench
	$(BIN)/bplambda bench

clean:
	rm -rf .venv dist
