# make demo   set up, then train, measure and show the miniature recipe
# make test   set up, then run the tests
# make check  set up, then lint, types and import rules
# make docs   set up, then build the site of the documentation in build/docs; a broken link fails
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check docs clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch==2.13.0" -e ".[laptop,dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/rstar2 demo

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.docs-installed: $(STAMP)
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	touch $@

docs: $(VENV)/.docs-installed
	$(BIN)/python docs/generate_cli_reference.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs . build/docs
	@echo "build/docs/index.html"

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
