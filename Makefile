# make setup | demo | test | check | clean.   PYTHON=python3.12 make setup   chooses the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
NATIVE := $(wildcard tpiedge/*/native/*.cpp tpiedge/*/native/*.h tpiedge/*/native/*.inl)

.PHONY: setup demo test check format clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tpiedge needs Python 3.11 or newer: PYTHON=/path/to/python make setup"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/tpiedge demo

# Tests of parts without a network use what time of the processors the others leave, which may be little for a while.
APART := tests/native $(addprefix tests/unit/,kernels kv memory model pack planner)

test: $(STAMP)
	@mkdir -p build; \
	nice -n 15 $(BIN)/python -m pytest --timeout 300 -o cache_dir=build/pytest-cache $(APART) \
		> build/tests-apart.log 2>&1 & apart=$$!; \
	trap 'kill $$apart 2> /dev/null' EXIT; trap 'exit 130' INT TERM HUP; \
	$(BIN)/python -m pytest $(addprefix --ignore=,$(APART)); others=$$?; \
	wait $$apart; status=$$?; trap - EXIT; cat build/tests-apart.log; \
	test $$others -eq 0 -a $$status -eq 0

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_docs.py
	$(MAKE) test

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find tpiedge -name '*.so' -delete
