# The whole workflow. Each target works from a fresh clone: the environment is made when it is missing or outdated.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
READY := .venv/.ready
PROVE := $(BIN)/bitproof prove

.PHONY: demo test lint slow bench site clean

$(READY): pyproject.toml constraints.txt
	@echo "making .venv and installing bitproof and its pinned dependencies, a few minutes …"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test,dev,docs,report]"
	touch $@

demo: $(READY)  ## Prove a script that resumes rightly, then one that forgets its schedule.
	$(PROVE) --resume-args=--resume -- $(BIN)/python examples/digits.py --out {out}
	@echo
	@echo "The same script, resumed without its learning rate schedule (a finding is the right answer: exit status 1):"
	$(PROVE) --resume-args="--resume --forget scheduler" -- $(BIN)/python examples/digits.py --out {out}; test $$? -eq 1

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint  ## Everything that is not marked slow.
	$(BIN)/pytest -n $(WORKERS) -m "not slow" $(PYTEST_ARGS)

slow: $(READY)
	$(BIN)/pytest -n $(WORKERS) -m slow $(PYTEST_ARGS)

site: $(READY)  ## The documentation, into site/.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)
	set -e; for file in benchmarks/bench_*.py; do $(BIN)/python $$file; done

clean:
	rm -rf .venv .bitproof dist build site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
