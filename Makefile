# `make demo` and `make test` are all that a fresh machine with Python 3.11 or newer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS := 1

.PHONY: demo test lint format bench clean

demo: $(VENV)/installed
	$(BIN)/fedgraft compare fedper fedapa --dataset digits --clients 10 --partition dirichlet:0.1 --rounds 30 --lr 0.05 --seeds 3

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/kernels.py

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing (a minute or two on a fresh machine) ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
