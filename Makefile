# The only task runner. Every target sets up what it needs in .venv, once.
PYTHON ?= python3
CUTS ?= 500
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup run demo test check features bench powercut

setup: .venv/setup-core  ## a virtual environment with the core dependencies, pinned

run: setup  ## the broker on embedded defaults, data in ./data
	$(BIN)/penstock serve --data ./data

demo: .venv/setup-spark  ## a tour of every door, the tiers and Spark
	$(BIN)/python -m demo

test: .venv/setup-test  ## every test
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

check: .venv/setup-test .venv/setup-check  ## style, types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

features: .venv/setup-test  ## every promised behaviour, its tests and whether they passed
	$(BIN)/python -m tests.features

bench: .venv/setup-test  ## figures of this machine, as ratios
	$(BIN)/python -m bench

powercut: .venv/setup-test  ## CUTS real power cuts, and as many with tiers (needs root)
	$(BIN)/python -m tests.powercut --cuts $(CUTS)
	$(BIN)/python -m tests.powercut --tiers --cuts $(CUTS)

.venv/setup-core: pyproject.toml constraints.txt
	@echo "Setting up .venv; the first time this downloads the core dependencies."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --editable .
	touch $@

.venv/setup-%: .venv/setup-core
	$(INSTALL) --editable '.[$*]'
	touch $@
