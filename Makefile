# The workshop. Every target sets up what it needs; nothing is installed by hand.
SHELL := /bin/bash
PYTHON ?= python3.11
# What the whole suite runs on; `make stacks` has the newest.
TORCH ?= torch==2.13.0
# The index with torch's CPU builds, which are preferred where it answers: PyPI's for Linux bring 4 GB of CUDA libraries.
# Empty: only the index that pip is configured for.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
# The environments of `make stacks`, kept for later runs also of other checkouts.
STACKS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/recsys-serving/stacks
VENV := .venv
BIN := $(VENV)/bin
DEMO_DIR ?= demo
# Processes that run tests; COVERAGE=1 counts the lines that they run.
JOBS ?= 2
# Where the native side is built, and how many compilers run at a time.
NATIVE := build/native
export NATIVE_JOBS ?= $(shell nproc)
# Processes that run the cases with the native engine, which is seldom the one that is waited for.
NATIVE_TEST_JOBS ?= 3
# Smokes of benchmarks that need the native kernels.
NATIVE_BENCHMARKS := tests/benchmarks/test_mlperf.py
# The engine that answers the conformance cases, and one thread: tests run side by side, and threads of each would wait
# for the others' for more than half of the time.
ON_REFERENCE := OMP_NUM_THREADS=1 RECSYS_CONFORMANCE_ENGINE=reference
ON_NATIVE := OMP_NUM_THREADS=1 RECSYS_CONFORMANCE_ENGINE=native
.PHONY: help setup demo test stacks stacks-install newest oldest languages lint lock docs bench protos native native-peers wheel client-wheel native-build native-apart native-test native-run native-wheel native-conformance native-test-packages native-thread soak wheel-check clean

help:
	@echo "make demo         train, export, serve and predict on this machine (no GPU needed)"
	@echo "make test         run the tests"
	@echo "make stacks       a smoke on other Pythons and the newest torch, in $(STACKS)"
	@echo "make newest        a smoke with the newest of each dependency; make oldest with the oldest"
	@echo "make languages    what builds the tests' clients in Go, Java and JavaScript"
	@echo "make lint         ruff, codespell, mypy --strict, import-linter"
	@echo "make lock          requirements/ci.txt again: the versions that CI installs"
	@echo "make docs         the documentation as a site, in build/site"
	@echo "make setup        the environment of developers: tools, all extras, peers"
	@echo "make native       the native engine and sender for this environment, and the C++ libraries in $(NATIVE)"
	@echo "make native-test  their style, tests, sanitizer and fuzzers, and the conformance cases"
	@echo "make native-thread  their tests of threads under ThreadSanitizer"
	@echo "make soak         200 000 requests to each engine"
	@echo "make bench        the benchmarks, peers included"
	@echo "make protos       generate the wire's Python code from protos/"
	@echo "make wheel        a wheel with the native modules, in dist; WHEEL=pure without them"
	@echo "make client-wheel  a wheel of the client alone, in dist"
	@echo "make wheel-check  build the wheel and check its top-level names"

# torch first and alone: the builds of fbgemm-gpu and torch must fit, and only torch is asked of its own index.
$(VENV)/.user: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing $(TORCH) into $(VENV): minutes."
	$(BIN)/pip install -q --no-deps --timeout 15 --retries 2 $(TORCH_INDEX_URL:%=--extra-index-url %) "$(TORCH)"
	fbgemm=$$($(BIN)/python -m recsys.base.stack fbgemm) && $(BIN)/pip install -q -e ".[rest]" "$$fbgemm"
	touch $@

# Developers' tools, which need older versions of some of what users have; groups need pip 25.1.
$(VENV)/.dev: $(VENV)/.user
	@echo "Installing developers' tools into $(VENV): minutes."
	$(BIN)/pip install -q --upgrade "pip>=25.1"
	$(BIN)/pip install -q -e ".[rest]" --group dev
	touch $@

$(VENV)/.peer: $(VENV)/.dev
	@echo "Installing torchrec and the other packages that tests and benchmarks compare with into $(VENV): minutes."
	$(BIN)/pip install -q -e ".[rest]" --group dev --group peer
	torchrec=$$($(BIN)/python -m recsys.base.stack torchrec) && $(BIN)/pip install -q --no-deps "$$torchrec"
	touch $@

setup: $(VENV)/.peer

demo: $(VENV)/.user
	$(BIN)/python examples/demo.py --dir $(DEMO_DIR)

# Whole files to one process or the other: what a file's tests share is made once; tests/conftest.py orders them.
# tests/native belongs to native-test, which has built what they need.
test: $(VENV)/.peer
	$(ON_REFERENCE) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --ignore tests/native $(if $(COVERAGE),--cov --cov-report=)
	$(if $(COVERAGE),@for room in recsys export serve; do \
	  echo "coverage of $$room: $$($(BIN)/coverage report --format=total --include="$$room/*") %"; done; \
	  echo "coverage in all: $$($(BIN)/coverage report --format=total) %")

# The stacks that .venv does not have: imports, the demo, conformance cases. Pythons that are not here are skipped.
stacks: $(VENV)/.dev
	$(BIN)/python -m tests.stacks $(STACKS)

# Their environments alone, which pip needs minutes for.
stacks-install: $(VENV)/.dev
	$(BIN)/python -m tests.stacks --install $(STACKS)

# A smoke with the newest, or the oldest, of each dependency.
newest oldest: $(VENV)/.dev
	$(BIN)/python -m tests.bounds $@ build/bounds "$(TORCH)" $(TORCH_INDEX_URL)

# What the conformance cases of clients in Go, Java and JavaScript are built with; without it they are skipped.
languages:
	tests/conformance/languages/packages.sh build/languages

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports

# The versions that CI installs, but for torch and what fits it.
lock: $(VENV)/.dev
	$(BIN)/uv pip compile -q --upgrade pyproject.toml --extra rest --group dev --group peer --python-version 3.11 \
	  --no-annotate --no-emit-package torch --custom-compile-command "make lock" -o requirements/ci.txt

# The documentation as a site, with the API reference, in build/site. Broken links and docstrings are errors.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(VENV)/.peer
	$(BIN)/python -m benchmarks.artifact
	$(BIN)/python -m benchmarks.ranking
	$(BIN)/python -m benchmarks.loading.load
	$(BIN)/python -m benchmarks.loading.program_load
	$(BIN)/python -m benchmarks.rows
	$(BIN)/python -m benchmarks.trainers.sharded
	$(BIN)/python -m benchmarks.trainers
	$(BIN)/python -m benchmarks.planner
	$(BIN)/python -m benchmarks.delta
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.torchrec_models

protos: $(VENV)/.dev
	$(BIN)/python protos/generate.py

# For the torch that is installed in the environment, whatever build it is.
native: $(VENV)/.dev
	PYTHON=$(BIN)/python cpp_client/packages.sh
	PYTHON=$(BIN)/python cpp_client/build.sh $(NATIVE) native

# The servers that benchmarks compare with.
native-peers: $(VENV)/.dev native-test-packages
	PYTHON=$(BIN)/python cpp_client/build.sh $(NATIVE) peers

# Into dist/: with the native modules and the libraries that they need inside, but for torch's and FBGEMM's, which come
# from their own packages. WHEEL=pure: without native modules, for any platform.
WHEEL ?= platform
wheel: $(if $(filter pure,$(WHEEL)),$(VENV)/.dev,native)
	RECSYS_WHEEL=$(WHEEL) BIN=$(CURDIR)/$(BIN) cpp_client/wheel.sh

# Into dist/: recsys-serving-client, what programs that only ask a server need, without torch.
client-wheel: $(VENV)/.dev
	rm -rf clients/python/build
	$(BIN)/pip wheel -q --no-deps --no-build-isolation --no-index -w dist clients/python

# All that native-test runs with torch, compiled. The Python modules stay in $(NATIVE): tests that run meanwhile see no
# other engine than before.
native-build: $(VENV)/.dev native-test-packages
	PYTHON=$(BIN)/python cpp_client/build.sh $(NATIVE) compiled
	cpp_client/test.sh $(CURDIR)/$(NATIVE) build

# What needs no Python environment: style, and what tests under sanitizers and of other processors run, compiled.
native-apart: native-test-packages
	cpp_client/test.sh $(CURDIR)/$(NATIVE) style apart

native-test: native-apart native-build native-run native-wheel

# Of native-test what runs: C++ tests, which leave a processor idle, beside the conformance cases with the native engine.
native-run: native $(VENV)/.peer
	cpp_client/test.sh $(CURDIR)/$(NATIVE) unit address arm fuzz >$(NATIVE)/test.log 2>&1 & cpp=$$!; \
	$(ON_NATIVE) $(BIN)/python -m pytest -n $(NATIVE_TEST_JOBS) --dist loadfile --no-loadscope-reorder tests/native tests/conformance $(NATIVE_BENCHMARKS); \
	code=$$?; wait $$cpp || code=1; cat $(NATIVE)/test.log; exit $$code

# The wheel with native modules, checked.
native-wheel: wheel
	$(BIN)/python tests/wheel_check.py "$$(ls -t dist/*.whl | head -1)"

# The conformance cases alone.
native-conformance: native $(VENV)/.peer
	$(ON_NATIVE) $(BIN)/python -m pytest -n $(NATIVE_TEST_JOBS) --dist loadfile --no-loadscope-reorder tests/conformance

# The parts that are left to threads under ThreadSanitizer, which takes a build of its own.
native-thread: native-test-packages
	cpp_client/test.sh $(CURDIR)/$(NATIVE) thread

native-test-packages:
	PYTHON=$(PYTHON) cpp_client/packages.sh --tests

# 200 000 requests of every kind to each engine.
soak: export RECSYS_SOAK_REQUESTS ?= 200000
soak: native $(VENV)/.peer
	$(ON_REFERENCE) $(BIN)/python -m pytest tests/conformance/load/test_soak.py
	$(ON_NATIVE) $(BIN)/python -m pytest tests/conformance/load/test_soak.py

# Without what an earlier build left: files that are gone would be packed again.
wheel-check: $(VENV)/.dev
	rm -rf build/lib build/bdist.*
	$(BIN)/python tests/wheel_check.py

clean:
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
