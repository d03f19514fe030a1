# make quickstart   train, evaluate and use a small translator
# make test         the tests, 6 minutes at most on two cores
# make test-slow    the tests that start processes, kill them, or take long
# make test-peers   the tests beside torch, transformers, ctranslate2 and libtpu, which it installs
# make test-all     all three
# make docs         the site, in site/; runs the guide
# make lint types   ruff, mypy
PYTHON ?= python3
BIN := .venv/bin
# Compiled programs stay here between runs; small ones count too.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/xla
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.2
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: quickstart test test-slow test-peers test-all docs lint types clean

$(BIN)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plot]'
	@touch $@

$(BIN)/.installed-test: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

$(BIN)/.installed-peers: $(BIN)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,interop]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --target .cache/libtpu libtpu
	@touch $@

$(BIN)/.installed-docs: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

quickstart: $(BIN)/.installed
	$(BIN)/python train.py --config=quickstart --workdir=runs/quickstart
	$(BIN)/python eval.py --workdir=runs/quickstart --json=runs/quickstart/eval.json
	printf '%s\n' 'thirty-four' 'three hundred and forty-seven' \
	  'nine hundred and eighty-seven thousand, six hundred and fifty-four' > runs/quickstart/input.txt
	$(BIN)/python -m transformer_jax.plotting report --workdir=runs/quickstart --scores=runs/quickstart/eval.json
	@echo "--- decode.py --workdir=runs/quickstart --input=runs/quickstart/input.txt"
	@$(BIN)/python decode.py --workdir=runs/quickstart --input=runs/quickstart/input.txt \
	  | paste -d '\t' runs/quickstart/input.txt -

test: $(BIN)/.installed-test
	$(BIN)/python -m pytest -m 'not slow and not peers'

test-slow: $(BIN)/.installed-test
	$(BIN)/python -m pytest -m slow

test-peers: $(BIN)/.installed-peers
	$(BIN)/python -m pytest -m peers tests/peers

test-all: test test-slow test-peers

# Page 8 of the guide trains in runs/guide; here from the beginning.
docs: $(BIN)/.installed-docs
	rm -rf runs/guide
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(BIN)/.installed-test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(BIN)/.installed-test
	$(BIN)/mypy

clean:
	rm -rf .venv .cache build site *.egg-info
