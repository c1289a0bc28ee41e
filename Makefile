# make setup | demo | test | test-all | check | clean.   PYTHON=python3.12 make setup   chooses the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
NATIVE := $(wildcard tpiedge/*/native/*.cpp tpiedge/*/native/*.h tpiedge/*/native/*.inl)

.PHONY: setup demo test test-all check format clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tpiedge needs Python 3.11 or newer: PYTHON=/path/to/python make setup"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/tpiedge demo

# Half of what process tests take is waiting: four workers keep two cores busy.
PYTEST := $(BIN)/python -m pytest -n 4
# Hundreds of processes import the same modules, whatever the shell says about keeping them compiled.
export PYTHONDONTWRITEBYTECODE :=

# Every part once.
test: $(STAMP)
	$(PYTEST) -m 'not slow and not alone'

# Everything. What measures time or speed, or holds a promised deadline, runs afterwards, when no other test does.
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)

test-all: $(STAMP)
	@mkdir -p build; rm -f build/failures; export FAILURES=build/failures; \
	$(PYTEST) -m 'not alone'; beside=$$?; \
	$(BIN)/python -m pytest -m alone $(ALONE); alone=$$?; \
	if test -s build/failures; then echo 'failed in one of the two parts:'; cat build/failures; fi; \
	test $$beside -eq 0 -a $$alone -eq 0

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_docs.py
	$(MAKE) test-all

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find tpiedge -name '*.so' -delete
