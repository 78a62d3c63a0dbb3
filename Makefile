# The few commands of this project. Each sets up what it needs: a fresh clone needs no other step.
.DEFAULT_GOAL := help
.PHONY: help setup demo up test lint bench bench-engine bench-gateway clean
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
# With PyTorch, which is gigabytes that demo and up do without.
READY_FULL := $(VENV)/.ready-full

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

setup: $(READY_FULL) ## make .venv with everything; again when pyproject.toml or constraints.txt have changed

demo: $(READY) ## the main job, once: this project's files through Kafka and a real model, in all ways
	@$(RUN) -m local demo

up: $(READY) ## keep the demo's stack up until Ctrl-C, with curl lines to try; MODELS=dir for your own models
	@$(RUN) -m local up $(if $(MODELS),--models "$(MODELS)")

test: lint ## lint, then all tests
	@command -v chromium >/dev/null || { if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Chromium is missing: running apt-get update and apt-get install chromium" >&2; \
	    apt-get update -q >&2 && apt-get install -q -y --no-install-recommends chromium >&2; \
	  else echo "there is no Chromium: the tests of the status page are skipped" >&2; fi; }
	@$(RUN) -m pytest

lint: $(READY_FULL) ## format, lint, types, rooms
	@$(VENV)/bin/ruff format --quiet --check
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo

bench: $(READY_FULL) ## all benchmarks, against a local Kafka; needs wrk
	@$(RUN) -m tests.benchmarks

bench-engine: $(READY) ## the worker engine's benchmarks, five minutes of killing workers among them
	@$(RUN) -m tests.benchmarks.engine

bench-gateway: $(READY) ## the gateway's benchmarks, 120,000 made-up requests among them; needs wrk
	@$(RUN) -m tests.benchmarks.gateway

clean: ## remove the virtual environment, caches and results of runs
	@rm -rf $(VENV) .bench .tidegate .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "tidegate needs Python 3.11 or newer; name one, as in: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "python3-venv is missing: running apt-get update and apt-get install python3-venv" >&2; \
	    apt-get update -q >&2 && apt-get install -q -y --no-install-recommends python3-venv >&2; \
	  else echo "this Python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; \
	    exit 1; fi; }
	@echo "setting up $(VENV), once: about a minute"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[gateway,telemetry,onnx,s3]' --group dev
	@touch $(READY)

$(READY_FULL): $(READY)
	@echo "adding PyTorch to $(VENV), once: some minutes"
	@$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch]' --group dev-torch
	@touch $(READY_FULL)
