# Every target sets up what it needs. PYTHON picks the interpreter, TORCH the build of torch that is installed first
# (another package asking for torch would otherwise pull whatever is newest).
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-core test-nightly test-soak test-histories test-gpu test-automodel check lint types derived format bench proto clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/.torch: | $(BIN)/python
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	@touch $@

KERNELS := hatch_build.py client/dataplane_client/row_kernels/row_kernels.c

$(VENV)/.demo: pyproject.toml $(KERNELS) | $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --group demo --editable '.[server,trainer,ray]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(KERNELS) | $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --group dev --editable '.[server,trainer,ray]'
	@touch $@

DEMO_ARGS ?=

demo: $(VENV)/.demo  ## set up, then watch a small language model learn arithmetic through the data plane (about 4 minutes)
	$(BIN)/python examples/grpo/run.py $(DEMO_ARGS)

test: check $(VENV)/.dev  ## set up, lint, check types, run the tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

$(VENV)-core/.ready:
	$(PYTHON) -m venv $(VENV)-core
	$(VENV)-core/bin/python -m pip install --quiet numpy pytest hypothesis
	@touch $@

test-core: $(VENV)-core/.ready  ## the core's tests where neither gRPC nor torch is installed
	PYTHONPATH=dataplane_server $(VENV)-core/bin/python -m pytest -c /dev/null --rootdir . --import-mode=importlib \
		-o 'markers=timeout(seconds): not enforced here' -p no:cacheprovider -W error tests/core

test-nightly: $(VENV)/.dev  ## the core's state machine for many minutes, with other calls in every run
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest tests/core/test_state_machine.py tests/core/claim_machine --timeout 7200

test-soak: $(VENV)/.dev  ## what takes many minutes: clients killed by the hundred, every layout of ranks
	$(BIN)/python -m pytest -m soak

# HISTORIES_SECONDS, HISTORIES_PROCESSES, HISTORIES_GRACE (of sessions, in seconds) and HISTORIES_SEED choose another campaign.
test-histories: $(VENV)/.dev  ## 32 clients are killed and stopped for 10 minutes, then every row is accounted for
	$(BIN)/python -m pytest -m soak -s tests/integration/histories

# What NeMo Automodel's own requirements name beside these is for datasets, kernels and other strategies; some of it
# comes for CUDA only. Its release pins transformers, which is why it has an environment of its own.
$(VENV)-automodel/.ready: pyproject.toml $(KERNELS)
	$(PYTHON) -m venv $(VENV)-automodel
	$(VENV)-automodel/bin/python -m pip install --quiet '$(TORCH)'
	$(VENV)-automodel/bin/python -m pip install --quiet --editable '.[server,trainer]' transformers==5.18.0 torchao==0.18.0 \
		pytest pytest-asyncio pytest-timeout pytest-xdist
	$(VENV)-automodel/bin/python -m pip install --quiet --no-deps nemo-automodel==0.7.0
	@touch $@

test-automodel: $(VENV)-automodel/.ready  ## models that NeMo Automodel divides, in an environment of its own (Python 3.11)
	$(VENV)-automodel/bin/python -m pytest -m automodel tests/trainer_adapter/automodel tests/trainer_adapter/worker

test-gpu: $(VENV)/.dev  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

check: lint types derived  ## everything that needs no running

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy proto dataplane_server client trainer_adapter scripts examples benchmarks tests

derived: $(VENV)/.dev
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python scripts/generate_proto.py --check
	$(BIN)/python scripts/unasync.py --check

format: $(VENV)/.dev  ## sort imports, format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)/.dev  ## generate the contract's modules and the blocking client
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python scripts/generate_proto.py
	$(BIN)/python scripts/unasync.py

BENCH_ARGS ?=

bench: $(VENV)/.dev  ## which goals of speed and memory hold here, beside the floor of copying and beside peers (about 15 minutes)
	$(BIN)/python benchmarks/claim_wakeups.py
	$(BIN)/python benchmarks/claim_latency.py
	$(BIN)/python benchmarks/session_cost.py
	$(BIN)/python benchmarks/bench.py --torch '$(TORCH)' $(BENCH_ARGS)

clean:  ## remove everything that is not tracked: environment, caches, runs
	rm -rf $(VENV) $(VENV)-core $(VENV)-automodel $(VENV)-bench-* runs dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f client/dataplane_client/row_kernels/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
