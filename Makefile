# make setup | demo | uninstall | clean; to change tpiedge: make dev | test | test-all | test-lab | check | format.
# PYTHON=python3.12 make setup   chooses the interpreter.
PYTHON ?= python3
# PyTorch's index of builds for CPUs, taken where no CUDA card is and pip's settings name no place of their own.
TORCH_INDEX ?= $(shell sed -n 's/^TORCH_INDEX: Final = "\(.*\)"/\1/p' tpiedge/local/distribution.py)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
DEV := $(VENV)/.dev-done
NATIVE := $(wildcard $(foreach kind,cpp h inl,tpiedge/*/native/*.$(kind) tpiedge/lab/*/native/*.$(kind)))

.PHONY: setup dev demo test test-all test-lab check types layers compiled format clean uninstall

setup: $(STAMP)

dev: $(DEV)

$(STAMP): pyproject.toml setup.py constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "setup: $(PYTHON) is no Python 3.11 or newer: PYTHON=/path/to/python make setup" >&2; exit 1; }
	@$(PYTHON) tools/install.py --torch-index '$(TORCH_INDEX)'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(STAMP)
	@$(PYTHON) tools/install.py --dev
	@touch $@

demo: $(STAMP)
	$(BIN)/tpiedge demo

# Half of what process tests take is waiting: four workers keep two cores busy.
PYTEST := $(BIN)/python -m pytest -n 4
# Hundreds of processes import the same modules, whatever the shell says about keeping them compiled.
export PYTHONDONTWRITEBYTECODE :=

# Every part once.
test: $(DEV)
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
test-all: $(DEV)
	@mkdir -p build; git rev-parse HEAD >build/tested || true; $(BIN)/python -m tools.touched >build/marks
	$(call whole,$$(cat build/marks))
	@$(BIN)/python -m tools.touched --passed "$$(cat build/tested)" || true

test-lab: $(DEV)
	$(call whole,lab)

check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --jobs 2 --output-sync types layers compiled
	$(MAKE) test-all

types: $(DEV)
	$(BIN)/mypy

layers: $(DEV)
	$(BIN)/lint-imports
	$(BIN)/python tools/check_docs.py
	$(BIN)/python -m tools.check_words

# Otherwise each of pytest's workers would compile all tests.
compiled: $(DEV)
	$(BIN)/python -m pytest --collect-only --quiet >/dev/null

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find tpiedge -name '*.so' -delete

uninstall:
	@$(PYTHON) tools/uninstall.py
	@$(MAKE) --no-print-directory --silent clean
	@echo "uninstall: removed .venv and what was built; the rest is this folder, and the PATH line if you kept it"
