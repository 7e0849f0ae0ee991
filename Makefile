# The workshop. Every target sets up what it needs; nothing is installed by hand.
SHELL := /bin/bash
PYTHON ?= python3.11
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
DEMO_DIR ?= demo
# Processes that run tests.
JOBS ?= 2
# Where the native side is built, and how many compilers run at a time.
NATIVE := build/native
NATIVE_JOBS ?= $(shell nproc)
# Processes that run the cases against the native server, which is seldom the one that is waited for.
NATIVE_TEST_JOBS ?= 3
# What one clone has compiled serves the next one.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros

.PHONY: help setup demo test lint bench protos native native-build native-test native-run native-conformance native-test-packages native-thread soak wheel-check clean

help:
	@echo "make demo         train, export, serve and predict on this machine (no GPU needed)"
	@echo "make test         run the tests"
	@echo "make lint         ruff, mypy --strict, import-linter"
	@echo "make setup        the environment with all extras, peers included"
	@echo "make native       recsys-server, recsys-cpp-bench and the C++ libraries, in $(NATIVE)"
	@echo "make native-test  their style, tests, sanitizer and fuzzers, and the conformance cases"
	@echo "make native-thread  their tests of threads under ThreadSanitizer"
	@echo "make soak         200 000 requests to each server"
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

# Whole files to one process or the other: what a file's tests share is made once. tests/native belongs to native-test,
# which has built what they need.
test: $(VENV)/.peer
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --ignore tests/native

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

native: $(VENV)/.base
	cpp_client/packages.sh
	cmake -G Ninja -S cpp_client -B $(NATIVE) $$(command -v ccache >/dev/null && echo -DCMAKE_CXX_COMPILER_LAUNCHER=ccache) \
	  -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=12 $$($(BIN)/python cpp_client/wheels.py) >/dev/null
	cmake --build $(NATIVE) -j $(NATIVE_JOBS) --target native

# All that native-test runs, compiled; and what needs no run.
native-build: native-test-packages native
	cpp_client/test.sh $(CURDIR)/$(NATIVE) style build

native-test: native-build native-run

# Of native-test what runs.
native-run: $(VENV)/.peer
	cpp_client/test.sh $(CURDIR)/$(NATIVE) unit address fuzz
	RECSYS_CONFORMANCE_SERVER=$(CURDIR)/$(NATIVE)/recsys-server \
	  $(BIN)/python -m pytest -n $(NATIVE_TEST_JOBS) --dist loadfile tests/native tests/conformance

# The conformance cases alone.
native-conformance: native $(VENV)/.peer
	RECSYS_CONFORMANCE_SERVER=$(CURDIR)/$(NATIVE)/recsys-server \
	  $(BIN)/python -m pytest -n $(NATIVE_TEST_JOBS) --dist loadfile tests/conformance

# The parts that are left to threads under ThreadSanitizer, which takes a build of its own.
native-thread: native-test-packages
	cpp_client/test.sh $(CURDIR)/$(NATIVE) thread

native-test-packages:
	cpp_client/packages.sh --tests

# 200 000 requests of every kind to each server.
soak: native $(VENV)/.peer
	$(BIN)/python -m pytest tests/conformance/test_soak.py
	RECSYS_CONFORMANCE_SERVER=$(CURDIR)/$(NATIVE)/recsys-server $(BIN)/python -m pytest tests/conformance/test_soak.py

# Without what an earlier build left: files that are gone would be packed again.
wheel-check: $(VENV)/.base
	rm -rf build/lib build/bdist.*
	$(BIN)/python tests/wheel_check.py

clean:
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
