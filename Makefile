# Every target does its own set-up. Needs python3 (3.11 or newer) and the package index.
PYTHON ?= python3
BIN := .venv/bin
LEAKAGE := validations/evidence/leakage
ALONE = $(shell grep -rl --include="test_*.py" "pytest\.mark\.alone" tests)

.PHONY: run test test-long setup format lint types check bench docs wheel up clean

run: .venv/compiled.stamp  ## train Marin 8B at proxy scale, on this machine
	$(BIN)/phasewise run marin-8b --scale proxy

test: export PYTHONDONTWRITEBYTECODE =  # hundreds of processes import the same modules: compiled once, all are quicker
test: .venv/dev.stamp .venv/compiled.stamp  ## run all tests
	$(BIN)/python -m pytest -m "not alone and not long" --numprocesses 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m "alone and not long" $(ALONE)

test-long: .venv/dev.stamp  ## run the tests that take minutes each
	$(BIN)/python -m pytest -m long

setup: .venv/dev.stamp .venv/compiled.stamp  ## everything that development needs

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tests.architecture.english

types: .venv/dev.stamp
	$(BIN)/pyright

check: lint types test  ## what a change must pass

bench: .venv/dev.stamp  ## figures as ratios in one run
	$(BIN)/python -m experiments.bench

docs: .venv/dev.stamp  ## write the documentation as a website to site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build --strict --quiet

wheel: .venv/compiled.stamp  ## write a wheel with the compiled code of the leakage scan to dist/
	@rm -rf build
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

up: .venv/compiled.stamp  ## Prefect server, worker and deployments, on this machine
	$(BIN)/phasewise up

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "phasewise needs Python 3.11 or newer, found $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/run.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

.venv/compiled.stamp: .venv/run.stamp $(wildcard $(LEAKAGE)/*.py)
	@echo "Compiling the loops of the leakage scan, for about half a minute."
	@rm -rf $(LEAKAGE)/compiled
	@XDG_CACHE_HOME=$(LEAKAGE)/compiled $(BIN)/python -m phasewise.validations.evidence.leakage.scan
	@touch $@

.venv/dev.stamp: .venv/run.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,tpu]'
	@touch $@

clean:  ## remove the virtual environment and everything that was trained here
	rm -rf .venv .phasewise build dist $(LEAKAGE)/compiled
