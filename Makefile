# The same commands for people and for CI.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup test demo docs release-check clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[plots,demo,video,hf,studio,docs,dev]"
	@command -v chromium >/dev/null \
		|| { test "$$(id -u)" = 0 && apt-get update --quiet --quiet && apt-get install --quiet --quiet --yes chromium; } \
		|| echo "make setup: the tests of the studio need a browser: sudo apt-get install chromium"
	touch $@

test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2

demo: setup
	$(BIN)/python tools/demo.py --out runs/digits

docs: setup
	$(BIN)/python tools/build_docs.py --out build/docs

release-check: setup
	$(BIN)/python tools/release_check.py --out build/release

clean:
	rm -rf .venv build
