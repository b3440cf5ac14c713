PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: run test lint docs clean

run: .venv/installed  ## adapt the small model to the embedded benchmark
	$(BIN)/testdg run --method testdg,testdg_aligned

test: lint  ## lint, types, import direction, tests
	$(BIN)/pytest -n 2

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/docs  ## the site, strictly, into site/; nothing in it is loaded from elsewhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/docs: .venv/installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv runs site dist build
