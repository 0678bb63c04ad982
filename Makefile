# The two commands that matter: `make demo` and `make test`. Each makes .venv when it is missing.
PYTHON ?= python3
WORKERS ?= 2 # processes that share the tests, and the types
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# As an entry in Python's path: otherwise, beside a clone named fedatoms, `import fedatoms` would find the clone's folder.
EDITABLE := --config-settings editable_mode=compat --editable
# Each worker begins with its part of the files, so what a file builds is built once, and takes from others at the end.
SHARED = --numprocesses $(WORKERS) --dist worksteal
# The report is tested in a real browser; where Debian's cannot be had, those tests are skipped.
CHROMIUM := timeout 300 sh -c "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes chromium"

# Modules are compiled once, whatever the shell says: tests start a hundred interpreters.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-slow federation hostile lint format types bench docs dist clean

demo: .venv/installed
	$(BIN)/fedatoms demo

test: lint types # six minutes on two cores
	$(BIN)/python -m pytest $(SHARED)

test-slow: .venv/installed-for-tests # what must hold and takes long: deployments, the browser, long laws
	$(BIN)/python -m pytest -m slow $(SHARED)

federation: .venv/installed-for-tests # twenty minutes: three nodes against the simulator, and parts that are killed or hang
	$(BIN)/python -m pytest -m federation

hostile: .venv/installed-for-tests # an hour at most: kills, second writers, damage, wild flags, bad data, full disks
	PYTHONPATH=tests $(BIN)/python -m hostile --results tests/hostile/results.json --page docs/reliability.md

lint: .venv/installed-for-tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo --no-cache

format: .venv/installed-for-tests
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: .venv/installed-for-tests
	$(BIN)/mypy --num-workers $(WORKERS)

bench: .venv/installed
	$(BIN)/fedatoms bench

docs: .venv/installed-for-tests # the site, in site/; any broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: .venv/installed-for-tests # sources and wheel, in dist/
	rm -rf dist build
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf .venv build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) $(EDITABLE) ".[plot]"
	touch $@

.venv/installed-for-tests: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) $(EDITABLE) ".[test]"
	@command -v chromium > /dev/null || $(CHROMIUM) > /dev/null 2>&1 || echo "no chromium: tests in a browser are skipped"
	touch $@ .venv/installed
