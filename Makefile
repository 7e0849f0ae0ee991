# The workshop. Every target sets up what it needs; nothing is installed by hand.
SHELL := /bin/bash
PYTHON ?= python3.11
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
DEMO_DIR ?= demo
# Processes that run tests.
JOBS ?= 2

.PHONY: help setup demo test lint bench protos wheel-check clean

help:
	@echo "make demo         train, export, serve and predict on this machine (no GPU needed)"
	@echo "make test         run the tests"
	@echo "make lint         ruff, mypy --strict, import-linter"
	@echo "make setup        the environment with all extras, peers included"
	@echo "make bench        the benchmarks, peers included"
	@echo "make protos       generate the wire's Python code anew from protos/"
	@echo "make wheel-check  build the wheel and check its top-level names"

# torch first and alone: a bare resolve could take a newer build with gigabytes of CUDA packages.
$(VENV)/.base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$(TORCH)"
	$(BIN)/pip install -q -e ".[cpu,dev]"
	touch $@

$(VENV)/.peer: $(VENV)/.base
	$(BIN)/pip install -q -e ".[cpu,dev,peer]"
	$(BIN)/pip install -q --no-deps torchrec==1.8.0 tritonclient==2.73.0 kserve==0.21.0
	touch $@

setup: $(VENV)/.peer

demo: $(VENV)/.base
	$(BIN)/python examples/demo.py --dir $(DEMO_DIR)

# Whole files to one process or the other: what a file's tests share is made once.
test: $(VENV)/.peer
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(VENV)/.base
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.peer
	$(BIN)/python -m benchmarks.artifact
	$(BIN)/python -m benchmarks.load
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.planner
	$(BIN)/python -m benchmarks.delta
	$(BIN)/python -m benchmarks.serving

protos: $(VENV)/.base
	$(BIN)/python protos/generate.py

# Without what an earlier build left: files that are gone would be packed again.
wheel-check: $(VENV)/.base
	rm -rf build
	$(BIN)/python tests/wheel_check.py

clean:
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
