# One place for every command; `make setup` is run by whatever needs it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Several small processes of one thread are faster than one of many.
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test test-slow check format types serve clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/shoal demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: setup
	$(BIN)/python -m pytest -m slow

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: setup
	$(BIN)/mypy

serve: setup
	$(BIN)/shoal serve

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
