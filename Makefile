# make demo      install into .venv and train the embedded team
# make test      the fast tests          make test-all   the slow ones too
# make lint      ruff and pyright        make clean      what the others left behind, runs/ excepted
#
# PYTHON: any Python >= 3.11.   TRAIN: arguments of `comas train`, e.g. make demo TRAIN="steps=20 seed=1"
# TORCH: what pip installs as torch. On Linux the package index serves a build with gigabytes of CUDA libraries; machines
# without an NVIDIA GPU get the CPU build instead, which lies at WHEELS. Override: make demo TORCH=torch

PYTHON ?= python3
VENV   ?= .venv
WHEELS ?= https://download.pytorch.org/whl/cpu
TORCH  ?= $(if $(filter Linux,$(shell uname -s)),$(if $(shell command -v nvidia-smi),torch,torch==2.13.0+cpu),torch)
TRAIN  ?=
JOBS   ?= auto

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-all lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/comas train $(TRAIN)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "comas needs Python 3.11 or newer, $(PYTHON) is older: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# without dependencies, so that only torch is looked up at WHEELS; the next step installs the rest from the usual index
	$(PIP) install --no-deps --extra-index-url $(WHEELS) "$(TORCH)" || echo "$(TORCH) is not to be had: taking the index's own torch"
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(PIP) install -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed pyproject.toml
	$(PIP) install -e ".[dev]"
	@touch $@
