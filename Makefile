# Every target sets up what it needs: .venv, pinned by constraints.txt, with the core and all other
# distributions of the repository installed editable. Set up once, each is immediate until a pyproject or the constraints change.
#
#   PYTHON=python3.12   the interpreter that .venv is made with, and that test-gpu runs
#   CUDA=system|pypi    where nvcc comes from; "none" leaves it out (the default finds out)
#   PYTEST="-k norm"    more arguments for test, test-slow and test-gpu
#   DIST="--commit TAG"  more arguments for dist; --pure leaves out the compiled wheels, --sign KEY signs what they carry
#   WORKERS=1           how many processes test and test-slow spread over (by default two more than there are cores, as
#                       some tests wait; 8 at most)
#   TEST_CACHE=DIR      the kernel cache of test and test-slow, for runs that share one (by default each begins with an
#                       empty one)

PYTHON ?= python3
VENV ?= .venv
PYTEST ?=
TEST_CACHE ?=
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 2)')
CUDA ?= $(shell { nvcc --version || "$${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" --version; } >/dev/null 2>&1 \
          && echo system || echo pypi)

# The tests start many processes: none of them compiles the project's Python again.
export PYTHONDONTWRITEBYTECODE :=

SHELL := /bin/bash
BIN := $(VENV)/bin
MINOR := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
READY := $(VENV)/.ready-$(MINOR)
OLDEST := .venv-oldest
OLDEST_TESTS := tests/compilers/test_toolchain.py tests/engines tests/families/test_discovery.py \
  tests/families/test_forwarding.py tests/headers/test_export.py tests/load \
  $(addprefix tools/sgljit-triton/sgljit_triton/tests/,test_source.py test_launch.py test_cache.py) \
  $(wildcard plugins/*/*/tests/test_*_errors.py)
# The distributions beside the core: the tools, what adapters share, adapters and plugins.
OTHERS := $(patsubst %/pyproject.toml,%,$(wildcard tools/*/pyproject.toml engines/*/pyproject.toml plugins/*/pyproject.toml))
CXX_FILES = $(shell find include tools plugins engines examples tests -name '*.h' -o -name '*.cuh' -o -name '*.cu' -o -name '*.cpp')
PARALLEL_PYTEST = SGLJIT_TEST_CACHE='$(TEST_CACHE)' $(BIN)/pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist worksteal
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup setup-oldest setup-servers demo docs dist test test-slow test-engines test-oldest test-gpu lint types format clean results-check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv, if it is not there yet

demo: $(READY) ## find the kernel families, compile rmsnorm for this machine, check and time it
	@$(BIN)/python examples/demo.py

docs: $(READY) ## build the site into build/site; a warning, such as of a link that leads nowhere, fails
	@$(BIN)/python -m sphinx -W --keep-going --quiet --fresh-env -d build/doctrees docs build/site
	@echo "build/site/index.html"

test: $(READY) ## run the tests that this machine can run, but for the slow ones
	@$(PARALLEL_PYTEST) -m "not slow" $(PYTEST)

test-slow: $(READY) ## run the slow tests: many kills, every header alone, plugins' suites from wheels, packaging
	@$(PARALLEL_PYTEST) -m "slow and not engine" $(PYTEST)

test-engines: $(READY) ## make environments with real engines (some GB, many minutes), and run the adapters' tests there
	@$(BIN)/pytest -m engine -o faulthandler_timeout=3600 $(PYTEST) engines

SERVERS = adlfs gcp-storage-emulator gcsfs 'moto[server]' ray s3fs
setup-servers: $(READY) ## install what more slow tests start: servers of buckets with their clients, and Ray
	@$(PIP) $(SERVERS)

setup-oldest: $(OLDEST)/.ready-$(MINOR) ## make .venv-oldest, the environment of test-oldest, if it is not there yet

# Nothing of the project is installed: it must run with what an engine's environment has.
test-oldest: $(OLDEST)/.ready-$(MINOR) ## run the quick tests with the oldest releases that the metadata allows
	@$(OLDEST)/bin/python tests/from_checkout.py -m pytest -p no:cacheprovider --numprocesses $(WORKERS) \
	  --maxprocesses 8 --dist worksteal -m "not slow and not gpu" $(PYTEST) $(OLDEST_TESTS)

$(OLDEST)/.ready-$(MINOR): pyproject.toml constraints.txt constraints-oldest.txt
	@echo "Setting up $(OLDEST) for Python $(MINOR) with the oldest releases"
	@$(PYTHON) -m venv --clear $(OLDEST)
	@sed 's/=.*/=/' constraints-oldest.txt | grep -v '^\#' | grep -vFf - constraints.txt > $(OLDEST)/constraints.txt
	@$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OLDEST)/constraints.txt \
	  --requirement constraints-oldest.txt numpy pytest pytest-xdist
	@touch $@

test-gpu: ## run the tests marked gpu with PYTHON as it is: installs nothing, needs no network
	@$(PYTHON) tests/from_checkout.py -m pytest -p no:cacheprovider -m gpu $(PYTEST) tests plugins engines examples tools/sgljit-triton tools/sgljit-remote/sgljit_remote/tests/test_ranks.py

results-check: $(READY) ## is every figure that README.md and docs/ quote on a page of bench/results?
	@$(BIN)/python bench/quoted.py

lint: $(READY) types ## check style, types and workflows; change nothing
	@$(BIN)/zizmor --offline --quiet .github
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

types: $(READY)
	@$(BIN)/mypy sgljit_core docs/generated $(wildcard $(addsuffix /sgljit_*,$(OTHERS)) examples/*/sgljit_*)

format: $(READY) ## rewrite the files in the project's style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format
	@$(BIN)/clang-format -i $(CXX_FILES)

clean: ## remove .venv and everything built
	@rm -rf $(VENV) $(OLDEST) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis

dist: $(READY) ## build the files of a release from the last commit: sdists, wheels, compiled wheels, hashes, materials
	@PYTHONPATH=tests $(BIN)/python release/dist.py $(DIST)

# The build backend goes in first, so that the editable installs build with the pinned one.
# A .venv of another Python version is made anew.
$(READY): pyproject.toml constraints.txt $(wildcard sgljit_core/_version.py) \
          $(addsuffix /pyproject.toml,$(OTHERS)) $(wildcard */*/*/_version.py)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "sgljit needs Python 3.10 or newer; '$(PYTHON)' is $(MINOR). Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) for Python $(MINOR) (nvcc: $(CUDA)); the first time takes some minutes"
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) hatchling editables hatch-fancy-pypi-readme
	@$(PIP) --no-build-isolation --editable '.[dev$(if $(filter pypi,$(CUDA)),$(comma)cuda)]' \
	  $(addprefix --editable ./,$(OTHERS))
	@touch $@

comma := ,
