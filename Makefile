# Two verbs set everything up on a fresh machine: `make demo` and `make test`. The rest is for daily work.

PYTHON ?= python3
VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
PYTEST ?=

.PHONY: demo test lint bench clean

demo: $(VENV)/made-demo
	$(BIN)/throttlekit demo $(DEMO)

# What is tested is the wheel that was built from the sdist, from another directory.
test: $(VENV)/made-test
	cd $(VENV) && $(BIN)/python -m pytest -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) $(CURDIR)/tests $(PYTEST)

lint: $(VENV)/made-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy throttlekit adapters/throttlekit_dramatiq lua/throttlekit_lua cli/throttlekit_cli tests/typing
	$(BIN)/basedpyright

bench: $(VENV)/made-test
	$(BIN)/python tests/benchmarks/dramatiq_flood.py --markdown docs/benchmarks.md $(BENCH)

clean:
	rm -rf $(VENV) dist build

SOURCES := $(shell find throttlekit adapters lua cli -name '*.py' -o -name '*.lua' -o -name py.typed) pyproject.toml README.md

$(VENV)/made-venv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1" build
	touch $@

$(VENV)/made-wheel: $(VENV)/made-venv $(SOURCES)
	rm -rf dist
	$(BIN)/python -m build --quiet .
	touch $@

$(VENV)/made-demo: $(VENV)/made-wheel
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps dist/*.whl
	$(BIN)/python -m pip install --quiet "$$(ls $(CURDIR)/dist/*.whl)[demo]"
	touch $@

$(VENV)/made-test: $(VENV)/made-demo
	$(BIN)/python -m pip install --quiet --group test
	touch $@

$(VENV)/made-lint: $(VENV)/made-test
	$(BIN)/python -m pip install --quiet --group lint
	touch $@
