# The commands of this project. Each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: train test test-heavy test-slow soak bench lint docs clean

train: $(VENV)/.core
	$(BIN)/hotloop train cartpole

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto --dist loadfile

# A module's tests share what they have compiled, so each module stays with one worker.
test-heavy: $(VENV)/.test
	$(BIN)/python -m pytest -n auto --dist loadfile -m heavy

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

# Actors killed fifty times, ten minutes of training with kills: memory and open files stay as they are.
soak: $(VENV)/.test
	$(BIN)/python -m pytest -m slow tests/faults/test_processes_kills.py tests/faults/test_processes_soak.py

bench: $(VENV)/.test
	for name in update qloss slm_lab train iteration startup family learning flood env snake treasure sfc sum_tree replay transport processes actors pixels emulators mario doctor tune doctor_scripts; do $(BIN)/hotloop bench $$name || exit 1; done

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.core  ## the reference of every spec field, from the spec itself
	$(BIN)/python -m hotloop.spec.docs > docs/spec.md

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e .
	touch $@

# torch first and alone: pinned in constraints.txt, so that no other package draws in another build of it.
$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) -e '.[test]'
	touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV)
