# One entry for everything: `make check` is what CI runs. `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
# The first interpreter that runs and is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
DOCS = README.md $(shell find docs -name '*.md')
COG = $(BIN)/python -m cogapp -I docs --verbosity=1

DEMO_JOB := llama-3.1-70b --cluster h100-sxm --gpus 64 --seq 8192 --batch 512
DEMO_PLAN := build/demo/plan.toml

.DEFAULT_GOAL := help
# The checks run in the order they are listed, whatever -j says.
.NOTPARALLEL:
.PHONY: help setup check lint docs-check fix test test-dist docs bench demo clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- set-up: a stamp per level, so that the demo needs only the core --------------------------------------------

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; set PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[dev,runtime]'
	@touch $(VENV)/.core $@

$(VENV)/.docs: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

setup: $(VENV)/.dev  ## create .venv with torch and the development tools

# --- checks -----------------------------------------------------------------------------------------------------

check: lint docs-check test test-dist  ## everything that CI runs: format, lint, types, imports, spelling, docs, tests

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

docs-check: $(VENV)/.dev
	$(COG) --check $(DOCS)

fix: $(VENV)/.dev  ## format, repair what ruff can, and bring generated docs up to date
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(COG) -r $(DOCS)

test: $(VENV)/.dev  ## the tests that start no process
	$(BIN)/python -m pytest -q -m "not dist" -n auto --maxprocesses 8

test-dist: $(VENV)/.dev  ## the tests that start processes, one after another
	$(BIN)/python -m pytest -q -m dist

# --- the rest ---------------------------------------------------------------------------------------------------

docs: $(VENV)/.docs  ## bring generated docs up to date and build the site into site/
	$(COG) -r $(DOCS)
	$(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev  ## run the benchmark scripts (benchmarks/README.md)
	@for script in benchmarks/bench_*.py; do test -e "$$script" || continue; echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

demo: $(VENV)/.core  ## plan Llama-3.1-70B on 64 H100: the winner and why, its memory, one layer's shapes
	@mkdir -p $(dir $(DEMO_PLAN))
	$(BIN)/meshwright plan $(DEMO_JOB) --save $(DEMO_PLAN)
	$(BIN)/meshwright memory $(DEMO_PLAN)
	$(BIN)/meshwright explain $(DEMO_PLAN) --layer 1 --phase forward

clean:  ## remove the environment, caches and everything built
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
