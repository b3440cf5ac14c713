PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE # tests start many processes, which share what is compiled

.PHONY: run test lint docs coverage wheel clean

run: .venv/installed  ## adapt the small model to the embedded benchmark
	$(BIN)/testdg run --method testdg,testdg_aligned

test: lint  ## lint, types, import direction, tests
	$(BIN)/pytest -n 3 --dist worksteal

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/docs  ## the site, strictly, into site/; nothing in it is loaded from elsewhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

coverage: .venv/docs  ## all tests, with the branches that they take; site-coverage/ shows what they leave out
	$(BIN)/pytest -n 2 --cov=testdg --cov-branch --cov-report=term:skip-covered --cov-report=html:site-coverage

wheel: .venv/installed  ## wheel and sdist in dist/, and the wheel tried in an empty environment
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	scripts/try_wheel.sh $(BIN)/python

.venv/docs: .venv/installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv runs site site-coverage dist build .coverage*
