# make setup | demo | test | test-all | test-lab | check | clean.   PYTHON=python3.12 make setup   chooses the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
NATIVE := $(wildcard $(foreach kind,cpp h inl,tpiedge/*/native/*.$(kind) tpiedge/lab/*/native/*.$(kind)))

.PHONY: setup demo test test-all test-lab check types layers compiled format clean

setup: $(STAMP)

# Minutes pass here: every part says what it is. What `pip` says beside that are warnings and errors.
STARTED := $(shell date +%s)
# A tenth of the modules is ever imported: compiling them all would take a minute.
PIP = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# The dependencies of tpiedge and of its extras, apart from tpiedge, so that downloading and compiling are told apart.
DEPENDENCIES = $(BIN)/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	lists = [project["dependencies"], *project["optional-dependencies"].values()]; \
	print(*(one for some in lists for one in some if not one.startswith("tpiedge[")))'

$(STAMP): pyproject.toml setup.py constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "setup: $(PYTHON) is no Python 3.11 or newer: PYTHON=/path/to/python make setup" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	echo "setup: creating the virtual environment $(VENV) with $(PYTHON)"; \
	$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	echo "setup: '$(PYTHON) -m venv $(VENV)' failed (Debian, Ubuntu: apt install python3-venv; run it to see why)" >&2; \
	exit 1; }; }
	@echo "setup: installing the dependencies, torch among them: some minutes the first time"
	@echo "setup: meanwhile compiling the native kernels and installing tpiedge"
	@$(PIP) --no-deps --editable . & compiling=$$!; \
	dependencies=$$($(DEPENDENCIES)) && $(PIP) $$dependencies; failed=$$?; wait $$compiling || { \
	echo "setup: tpiedge was not installed, as pip says above: make setup tries again" >&2; exit 1; }; \
	test $$failed -eq 0 || { \
	echo "setup: not all dependencies were installed, as pip says above: make setup tries again" >&2; exit 1; }
	@ls tpiedge/kernels/_native*.so >/dev/null 2>&1 || \
	echo "setup: the native kernels did not compile (is there a C++ compiler?): no q8, no q4, slower f32 and bf16"
	@$(BIN)/python -c 'import tpiedge.cli.master, tpiedge.cli.worker, tpiedge.node.process, torch'
	@touch $@
	@spent=$$(($$(date +%s) - $(STARTED))); \
	echo "setup: done after $$((spent / 60)) min $$((spent % 60)) s: 'make demo' shows it"

demo: $(STAMP)
	$(BIN)/tpiedge demo

# Half of what process tests take is waiting: four workers keep two cores busy.
PYTEST := $(BIN)/python -m pytest -n 4
# Hundreds of processes import the same modules, whatever the shell says about keeping them compiled.
export PYTHONDONTWRITEBYTECODE :=

# Every part once.
test: $(STAMP)
	$(PYTEST) -m 'not slow and not alone and not lab'

# What measures time or speed, or holds a promised deadline, runs afterwards, when no other test does.
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)

# $(call whole,MARKS): of the tests with those marks.
define whole
	@mkdir -p build; rm -f build/failures; export FAILURES=build/failures; \
	$(PYTEST) -m "not alone and ($(1))"; beside=$$?; \
	$(BIN)/python -m pytest -m "alone and ($(1))" $(ALONE); alone=$$?; \
	if test -s build/failures; then echo 'failed in one of the two parts:'; cat build/failures; fi; \
	test $$beside -eq 0 -a $$alone -eq 0
endef

# Everything that may have changed since all tests passed.
test-all: $(STAMP)
	@mkdir -p build; git rev-parse HEAD >build/tested || true; $(BIN)/python -m tools.touched >build/marks
	$(call whole,$$(cat build/marks))
	@$(BIN)/python -m tools.touched --passed "$$(cat build/tested)" || true

test-lab: $(STAMP)
	$(call whole,lab)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --jobs 2 --output-sync types layers compiled
	$(MAKE) test-all

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports
	$(BIN)/python tools/check_docs.py
	$(BIN)/python -m tools.check_words

# Otherwise each of pytest's workers would compile all tests.
compiled: $(STAMP)
	$(BIN)/python -m pytest --collect-only --quiet >/dev/null

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find tpiedge -name '*.so' -delete
