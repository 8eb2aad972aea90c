# One environment, made once: every target below works in a fresh clone with Python 3.11+ and make alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-oldest fuzz mutants lint format notebooks keep results-check gpu-check site wheel hooks clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(READY) $(COMPILED) ## create .venv from the pinned versions, and compile the kernels

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lmbm_torch needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

$(COMPILED): $(READY) $(shell find lmbm_torch/kernels -name '*.py')
	$(BIN)/python -m lmbm_torch.cli.compile
	@touch $@

demo: $(READY) ## train and decode on real images that need no download, and print the comparison
	$(BIN)/python scripts/demo.py

test: $(READY) $(COMPILED) ## run the tests (some 13 minutes on 2 cores)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(READY) ## run the tests that take minutes each
	$(BIN)/python -m pytest -n 2 -m slow

test-oldest: ## run the tests of the core with the oldest versions that are allowed, in .venv-oldest
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt -e ".[all]" \
		beartype httpx hypothesis jaxtyping pytest pytest-xdist
	.venv-oldest/bin/python -m pytest -n 2 -W default tests/energies tests/data tests/metrics tests/losses \
		tests/models tests/inference tests/estimators tests/prediction

fuzz: $(READY) ## fuzz every reader of files for a minute each (Linux)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[fuzz]"
	$(BIN)/python scripts/fuzz/readers.py all -max_total_time=60

mutants: $(READY) $(COMPILED) ## break the library line by line, and see that a test catches each
	$(BIN)/python scripts/mutants.py

lint: $(READY) ## ruff and basedpyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(READY) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

notebooks: $(READY) ## run the notebooks in full and write their outputs
	$(BIN)/python scripts/notebooks.py notebooks/*.ipynb

keep: $(READY) ## copy a finished table into results/: make keep RUN=runs/reproduce/lmbm_2009
	$(BIN)/python scripts/keep.py $(RUN)

results-check: $(READY) ## recompute a row of every table in results/ (LMBM_DATA names the data sets)
	$(BIN)/python scripts/check_results.py

gpu-check: $(READY) ## run all that needs a CUDA device, and keep its table in results/
	$(BIN)/python scripts/gpu_check.py

site: $(READY) $(COMPILED) ## build the manual with its gallery into docs/_build/html, and check its links
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -j auto -b html docs docs/_build/html
	$(BIN)/python scripts/check_site.py docs/_build/html

wheel: $(READY) ## build the wheel, and see that it carries the marker of typed packages
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python -m zipfile --list dist/lmbm_torch-*.whl | grep py.typed

hooks: $(READY) ## check every commit before it is made
	$(BIN)/pre-commit install

clean: ## remove the environment and caches, never your runs
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist docs/_build docs/gallery docs/reference docs/tutorials/[0-9]* *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
