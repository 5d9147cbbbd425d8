# The commands of this project. Everything is installed into .venv, from the exact versions in constraints.txt.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# constraints.txt is a lock for Python 3.11; some machines call it python3.
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$p && break; done)
PYTEST := $(BIN)/python -m pytest
# keras-hub for the tests, without what it needs to fetch models and to read text: its tensorflow-text would install a
# second TensorFlow over the first.
ALONE := keras-hub regex tokenizers
ARGS ?=

.PHONY: help demo test test-all lint format bench clean
.DELETE_ON_ERROR:

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

demo: $(VENV)/.demo  ## train on real digit images over 4 virtual devices, in one process
	$(BIN)/python models/digits.py --virtual-devices 4 $(ARGS)

test: $(VENV)/.horovod  ## all tests, real ranks included; large products of cases are sampled pairwise
	$(PYTEST) $(ARGS)

test-all: $(VENV)/.horovod  ## all tests, on every case of the large products
	$(PYTEST) --all-cases $(ARGS)

lint: $(VENV)/.dev  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## let ruff put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.horovod  ## the benchmarks of docs/benchmarks.md (root: emulated networks)
	$(BIN)/python -m tools.bench $(ARGS)

clean:  ## remove the environment and the caches (the Horovod wheel in ~/.cache/whaleish stays)
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache

# Stamps, so that a second `make` installs nothing.
$(VENV)/.created: constraints.txt
	@test -n "$(PYTHON)" || { echo "whaleish needs Python 3.11, and neither python3.11 nor python3 is one." \
		"Install it, or name it: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt pip setuptools wheel
	@touch $@

$(VENV)/.demo: $(VENV)/.created setup.py
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[cpu,demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[cpu,demo,dev]'
	$(PIP) install -c constraints.txt --no-deps $(ALONE)
	@touch $@

$(VENV)/.horovod: $(VENV)/.dev whaleish/launch/install.py
	$(BIN)/whaleish install-horovod
	@touch $@
