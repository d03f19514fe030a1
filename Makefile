# make quickstart   train, evaluate and use a small translator
# make demo         serve the quickstart's model, with a page to try it
# make test         the tests, 7 to 9 minutes on two slow cores where nothing is compiled yet
# make test-newest  the same with the newest Python here and the newest JAX
# make test-slow    the tests that start processes, kill them, take long, or follow the README
# make test-peers   the tests with torch, transformers, ctranslate2, libtpu and MLflow
# make test-all     all four
# make docs         the site, in site/; runs the guide
# make bench-accelerator   all benchmarks on the accelerator here, at most 40 minutes
# make lint types   ruff, mypy
# make wheel        dist/transformer_jax-VERSION-py3-none-any.whl
# Some tests:       make test TESTS="tests/test_step.py tests/test_model.py"
# Another Python:   make test PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Compiled programs of tests, pages and benchmarks are kept here, small ones too. Those of the
# quickstart and the demo are where all commands keep theirs.
test test-slow test-peers docs bench-accelerator: \
  export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/xla
test test-slow test-peers docs bench-accelerator: \
  export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.2
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Bytecode is written even where the environment forbids it: without it, each process would compile
# the sources of JAX again, which takes most of its start.
export PYTHONDONTWRITEBYTECODE :=
# pip shows errors only: its warnings are about the machine's set-up. Python compiles what it
# imports, which is a small part of what is installed.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile \
  -c constraints.txt
# Test processes: one for each core that this process may use.
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
# COSTS=FOLDER measures what tests cost: tests/costs.py.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=15 \
  $(if $(COSTS),-p tests.costs --costs=$(COSTS)/$@.json)

.PHONY: quickstart demo test test-newest test-slow test-peers test-all docs lint types wheel clean \
  bench-accelerator

# PYTHON=... has to be the Python of the environment, if there is one already.
ifneq ($(origin PYTHON),file)
ifeq ($(filter clean test-newest,$(MAKECMDGOALS)),)
  version = $(shell $(1) -c 'import sys; print(sys.version_info[:2])' 2>/dev/null)
  ifeq ($(call version,$(PYTHON)),)
    $(error PYTHON=$(PYTHON) does not run)
  endif
  ifneq ($(wildcard $(BIN)/python),)
    ifneq ($(call version,$(PYTHON)),$(call version,$(BIN)/python))
      $(error $(VENV) has another Python than $(PYTHON): name another folder with VENV=, or run make clean)
    endif
  endif
endif
endif

$(BIN)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with make PYTHON=..."; exit 1; }
	@echo "installing the package and JAX, which takes a minute or two"
	@{ n=0; while sleep 8; kill -0 $$$$; do n=$$((n + 8)); echo "still installing after $$n s"; done; } \
	  2>/dev/null & reminder=$$!; trap 'kill $$reminder' EXIT; trap 'exit 130' INT TERM; \
	  $(PYTHON) -m venv $(VENV) && $(INSTALL) -e '.[plot]'
	@touch $@

$(BIN)/.installed-serve: $(BIN)/.installed
	$(INSTALL) -e '.[serve]'
	@touch $@

$(BIN)/.installed-test: $(BIN)/.installed
	$(INSTALL) -e '.[test,serve]'
	@touch $@

$(BIN)/.installed-peers: $(BIN)/.installed-test
	$(INSTALL) -e '.[test,serve,interop,align,ray]' alembic mlflow-skinny sqlalchemy
	$(INSTALL) --no-deps joeynmt subword-nmt
	$(INSTALL) --no-deps --upgrade --target $(VENV)/libtpu libtpu
	@touch $@

$(BIN)/.installed-docs: $(BIN)/.installed
	$(INSTALL) -e '.[docs]'
	@touch $@

quickstart: $(BIN)/.installed
	@echo "starting Python, whose first start compiles modules; then it trains"
	@$(BIN)/python examples/quickstart.py --workdir=runs/quickstart
	@echo "next: source $(BIN)/activate, then transformer-jax --help"

# The evaluation is the last file of a quickstart that is complete.
runs/quickstart/eval.json:
	@$(MAKE) --no-print-directory quickstart

PORT ?= 8080
demo: $(BIN)/.installed-serve runs/quickstart/eval.json
	@echo "The first start compiles for minutes. After \"ready\", open http://127.0.0.1:$(PORT)/"
	@echo "and type a number in words. Ctrl-C ends the server."
	@$(BIN)/transformer-jax serve --model=numbers=runs/quickstart --port=$(PORT)

# Most of these targets' time is compilation. Test processes use all cores already, so none splits a
# program into parts. Before jaxlib 0.11 XLA for CPU can use older emitters, which compile a third
# faster. `make test-newest` runs the same tests with the newer ones.
OLDER = $(shell $(BIN)/python -c 'import jaxlib; print(int(jaxlib.__version__ < "0.11"))')
FASTEST_XLA = --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 \
  --xla_cpu_opt_preset=FAST_COMPILE $(if $(filter 1,$(OLDER)),--xla_cpu_use_fusion_emitters=false)

test: $(BIN)/.installed-test
	XLA_FLAGS="$(FASTEST_XLA)" $(PYTEST) -m 'not slow and not peers' $(TESTS)

# Tries Pythons on PATH, then those of pyenv, and skips any that cannot create an environment.
test-newest:
	@for minor in 14 13 12; do \
	  for python in python3.$$minor "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.$$minor.*/bin/python3; do \
	    if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	      exec $(MAKE) test PYTHON="$$python" VENV=.venv-3.$$minor \
	        $(if $(COSTS),COSTS=$(COSTS)/newest); \
	    fi; \
	  done; \
	done; echo "make test-newest: there is no Python 3.12 or newer here, so nothing was tested with it."

test-slow: $(BIN)/.installed-test
	XLA_FLAGS="$(FASTEST_XLA)" $(PYTEST) -m slow

test-peers: $(BIN)/.installed-peers
	XLA_FLAGS="$(FASTEST_XLA)" $(PYTEST) -m peers tests/peers

test-all: test test-newest test-slow test-peers

# Peers (torch, transformers, ctranslate2) are compared with where they are installed.
FOLDER ?= runs/accelerator
bench-accelerator: $(BIN)/.installed-test
	$(BIN)/python benchmarks/accelerator.py --folder=$(FOLDER)

# Page 8 of the guide trains in runs/guide. Without the folder it starts from the beginning.
docs: $(BIN)/.installed-docs
	rm -rf runs/guide
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(BIN)/.installed-test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(BIN)/.installed-test
	$(BIN)/mypy

wheel: $(BIN)/.installed-test
	rm -rf dist build
	$(BIN)/python -m pip wheel -qq --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist

clean:
	rm -rf .venv .venv-* .cache build dist site *.egg-info
