# Each target sets up .venv by itself from a bare python3 (3.11+); the second time it finds it ready.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench proto clean

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Switchgear needs Python 3.11 or later; $(PYTHON) is {v.major}.{v.minor}. Name another with: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)
	$(BIN)/switchgear-chaos demo $(ARGS)

test: $(READY)
	$(BIN)/pytest $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

# The generated code is checked in; whoever edits the .proto runs this.
proto: $(READY)
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. engine/proto/engine_report.proto

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
