# The two commands you need: `make run` and `make test`. Both set everything up by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test check format bench clean

run: .venv/ready ## a tour of what works today, on a real file with real processes
	$(BIN)/python examples/tour.py

test: check ## lint, types and all tests, against real servers
	$(BIN)/python -m pytest

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/ready ## every claim about speed, measured side by side
	$(BIN)/python -m benchmarks.store

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Holdfast needs Python 3.11 or later")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1' -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[postgres]' --group dev
	touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
