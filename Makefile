# `make run` and `make test` set up .venv by themselves; nothing else needs to be installed.
PYTHON ?= python3
BIN := .venv/bin
# Threads that wait spin briefly, then sleep: with another busy process on two cores, spinning takes 7 times as long.
export GOMP_SPINCOUNT := 20000

.PHONY: setup run test test-slow lint clean

setup: .venv/.ready

# torch first: it alone decides whether a CPU or a CUDA build is taken, and everything else accepts what is there.
.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

run: setup
	$(BIN)/etude quickstart

test: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/pytest

test-slow: setup
	$(BIN)/pytest -m slow --timeout 1800

lint: setup
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

clean:
	rm -rf runs .pytest_cache .ruff_cache .mypy_cache
