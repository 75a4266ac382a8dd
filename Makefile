# The only task runner. Every target sets up what it needs in .venv, once.
PYTHON ?= python3
CUTS ?= 500
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help setup run demo test check proto features bench powercut

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

setup: .venv/setup-core  ## create .venv with the core dependencies, pinned

run: setup  ## start a broker with the default settings, data in ./data
	$(BIN)/penstock serve --data ./data

demo: .venv/setup-spark  ## a tour of every protocol, the tiers and Spark
	$(BIN)/python -m demo

test: .venv/setup-test  ## run every test
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

check: .venv/setup-test .venv/setup-check  ## check style, types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

proto: .venv/setup-test  ## compile the .proto files into descriptor sets
	$(BIN)/python -m tests.descriptors

features: .venv/setup-test  ## list every feature row with its tests and state; rewrite docs/features.md
	$(BIN)/python -m tests.features

bench: .venv/setup-test  ## run the benchmarks on this machine
	$(BIN)/python -m bench

powercut: .venv/setup-test  ## cut the power of a broker CUTS times, and again with tiers (needs root)
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
