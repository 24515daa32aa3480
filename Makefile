# Every target sets up what it needs. PYTHON picks the interpreter, TORCH the build of torch that is installed first
# (another package asking for torch would otherwise pull whatever is newest).
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help docs docs-serve demo demo-async demo-cluster dashboard page-shots test mutants test-core test-long test-cluster test-failures test-nightly test-soak test-histories crash crash-training simulate test-gpu bench-gpu test-automodel test-frameworks test-trl test-transfer-queue test-faults soak fuzz scaling bench-cluster overload test-matrix image-root test-image image-packages image-requirements audit check lint types derived format bench proto proto-check dist clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

# Large packages are compiled to bytecode by all cores, once; pip would use one.
$(VENV)/.torch: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile '$(TORCH)'
	@touch $@

KERNELS := hatch_build.py $(addprefix client/dataplane_client/_values/row_kernels/,row_kernels.c xxh3.h)

$(VENV)/.demo: pyproject.toml $(KERNELS) | $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --no-compile --group demo --editable '.[server,trainer,http,ray]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # some packages bring files for other Pythons
	@touch $@

$(VENV)/.dev: pyproject.toml $(KERNELS) | $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --group dev --editable '.[server,trainer,http,ray]'
	@touch $@

# promtool and prometheus, for the tests of alerts and dashboard: those on PATH, else Debian's package (93 MB), unpacked here
# and not installed, since it brings a service. Where neither can be had the tests skip and say so.
$(VENV)/.prometheus: | $(BIN)/python
	@if command -v promtool >/dev/null && command -v prometheus >/dev/null; then touch $@; \
	elif ! command -v apt-get >/dev/null; then echo "no promtool and no apt: the tests of alerts and dashboard will skip"; \
	else mkdir -p $(VENV)/prometheus && cd $(VENV)/prometheus && \
		{ apt-get -qq download prometheus 2>/dev/null || { apt-get -qq update && apt-get -qq download prometheus; }; } && \
		dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=2 ./usr/bin && rm prometheus_*.deb && \
		touch ../.prometheus || echo "Debian's prometheus cannot be had: the tests of alerts and dashboard will skip"; fi

# A headless Chromium for the page's tests, likewise unpacked and not installed, with the libraries that are missing here.
$(VENV)/.chromium: | $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet playwright || echo "no playwright: the tests of the page will skip"
	@mkdir -p $(VENV)/chromium && cd $(VENV)/chromium && \
	apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
		chromium-headless-shell | grep '^[a-z0-9]' | sort -u >wanted && \
	dpkg-query -W -f '$${Package}\n' | sort -u | comm -13 - wanted | xargs apt-cache policy | \
		awk '/^[^ ]/ {name = $$1} /Candidate: [0-9]/ {sub(":$$", "", name); print name}' | xargs apt-get -qq download && \
	for file in *.deb; do dpkg-deb --fsys-tarfile $$file | tar -x; done; rm -f *.deb wanted; \
	if test -x usr/lib/chromium/chromium-headless-shell; then touch ../.chromium; \
	else echo "Debian's chromium-headless-shell cannot be had: the tests of the page will skip"; fi

# mkdocs and its theme, for `make docs` and the test of the site, which skips without them.
$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

docs: $(VENV)/.docs  ## the documentation as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

docs-serve: $(VENV)/.docs  ## the same at http://127.0.0.1:8000, built anew when a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

page-shots: $(VENV)/.dev $(VENV)/.chromium  ## the page's tests in a browser, and the pictures of docs/page.md
	PAGE_SHOTS=docs/images $(BIN)/python -m pytest -m long tests/page

DEMO_ARGS ?=

demo: $(VENV)/.demo  ## set up, then watch a small language model learn arithmetic through the data plane (about 4 minutes)
	$(BIN)/python examples/grpo/run.py $(DEMO_ARGS)

demo-async: $(VENV)/.demo  ## the same, but generators and trainer do not wait for each other (DEMO_ARGS=--compare runs both)
	$(BIN)/python examples/grpo/run_async.py $(DEMO_ARGS)

demo-cluster: $(VENV)/.demo  ## the same on a Ray cluster of three nodes on this machine
	$(BIN)/python examples/grpo/run.py --cluster $(DEMO_ARGS)

# A worker more than the cores that are counted on: tests wait a third of their time.
PYTEST_ARGS ?= -n 3 --dist loadgroup

# Bytecode is kept whatever the environment says, and that of the library is written first: each of the hundreds of
# processes that tests start would compile it anew.
test test-long: export PYTHONDONTWRITEBYTECODE =
test: lint derived $(VENV)/.prometheus  ## set up, lint, run the tests
	@$(BIN)/python -m compileall -qq -j 0 proto dataplane_server client trainer_adapter integrations
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-long: $(VENV)/.dev $(VENV)/.prometheus $(VENV)/.chromium  ## the page in a browser, and the same promises with more kills, processes and ranks (15 minutes)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "long and not soak and not cluster"

dashboard: $(VENV)/.demo $(VENV)/.prometheus  ## draw docs/images/dashboard.png from a demo that Prometheus watches (about 4 minutes)
	$(BIN)/python -m scripts.record_dashboard $(DEMO_ARGS)

$(VENV)-core/.ready:
	$(PYTHON) -m venv $(VENV)-core
	$(VENV)-core/bin/python -m pip install --quiet numpy msgpack xxhash pytest hypothesis
	@touch $@

test-core: $(VENV)-core/.ready  ## the core's tests where neither gRPC nor torch is installed
	PYTHONPATH=dataplane_server:proto $(VENV)-core/bin/python -m pytest -c /dev/null --rootdir . --import-mode=importlib \
		-o 'markers=timeout(seconds): not enforced here' -p no:cacheprovider -W error tests/core

test-nightly: $(VENV)/.dev  ## random histories of the core for many minutes, others in every run (SEED repeats one)
	@seed=$${SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; echo "the same again: make test-nightly SEED=$$seed"; \
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest tests/core/machine -m 'not soak' --timeout 7200 --hypothesis-seed $$seed

test-cluster: $(VENV)/.dev  ## what needs a Ray cluster, the client's tests on three nodes among it (10 minutes)
	$(BIN)/python -m pytest -m "cluster and not soak"

test-failures: $(VENV)/.dev  ## kill coordinators and nodes of a cluster under load, and account for every row (an hour)
	$(BIN)/python -m tests.cluster.failures --coordinator-kills 50 --node-kills 50 --mirrored-node-kills 50

test-soak: $(VENV)/.dev  ## what takes many minutes: clients killed by the hundred, every layout of ranks
	$(BIN)/python -m pytest -m soak

MUTANTS_ARGS ?=

mutants: $(VENV)/.dev  ## make some 250 faults, each in a copy of the library, and see the tests find it (half an hour)
	@mkdir -p build
	$(BIN)/python -m tests.mutants --out build/mutants.md $(MUTANTS_ARGS)

# HISTORIES_SECONDS, HISTORIES_PROCESSES, HISTORIES_GRACE (of sessions, in seconds) and HISTORIES_SEED choose another campaign.
test-histories: $(VENV)/.dev  ## 32 clients are killed and stopped for 10 minutes, then every row is accounted for
	$(BIN)/python -m pytest -m soak -s tests/integration/histories

KILLS ?= 2000
CRASH_ARGS ?=

crash: $(VENV)/.dev  ## the server is killed KILLS times at random moments (2000; about 25 minutes), and every row is accounted for
	$(BIN)/python -m tests.integration.histories.crash --kills $(KILLS) $(CRASH_ARGS)

SEEDS ?= 10000
EVENTS ?= 1000
FIRST ?= 0

simulate: $(VENV)/.dev  ## SEEDS simulated clusters of EVENTS events each die in every way (hours for the default of 10000 x 1000)
	$(BIN)/python -m tests.simulate --first $(FIRST) --seeds $(SEEDS) --events $(EVENTS)

crash-training: KILLS = 30
crash-training: $(VENV)/.dev  ## server, generators, trainer or all are killed KILLS times (30), and training goes on as without (6 minutes)
	CRASH_KILLS=$(KILLS) $(BIN)/python -m pytest -m soak -s tests/integration/training

# What NeMo Automodel's own requirements name beside these is for datasets, kernels and other strategies; some of it
# comes for CUDA only. Its release pins transformers, which is why it has an environment of its own.
$(VENV)-automodel/.ready: pyproject.toml $(KERNELS)
	$(PYTHON) -m venv $(VENV)-automodel
	$(VENV)-automodel/bin/python -m pip install --quiet '$(TORCH)'
	$(VENV)-automodel/bin/python -m pip install --quiet --editable '.[server,trainer]' transformers==5.18.0 torchao==0.18.0 \
		hypothesis pytest pytest-asyncio pytest-timeout pytest-xdist
	$(VENV)-automodel/bin/python -m pip install --quiet --no-deps nemo-automodel==0.7.0
	@touch $@

test-automodel: $(VENV)-automodel/.ready  ## models that NeMo Automodel divides, in an environment of its own (Python 3.11)
	$(VENV)-automodel/bin/python -m pytest -m automodel tests/trainer_adapter/automodel tests/trainer_adapter/worker tests/trainer_adapter/equality

$(VENV)-trl/.ready: pyproject.toml $(KERNELS)
	$(PYTHON) -m venv $(VENV)-trl
	$(VENV)-trl/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-trl/bin/python -m pip install --quiet '$(TORCH)'
	$(VENV)-trl/bin/python -m pip install --quiet --editable '.[server]' --group client-test trl==1.16.0 requests
	@touch $@

$(VENV)-transfer-queue/.ready: pyproject.toml $(KERNELS)
	$(PYTHON) -m venv $(VENV)-transfer-queue
	$(VENV)-transfer-queue/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-transfer-queue/bin/python -m pip install --quiet '$(TORCH)'
	$(VENV)-transfer-queue/bin/python -m pip install --quiet --editable '.[server]' --group client-test TransferQueue==0.1.11
	@touch $@

# verl's requirements, less the TransferQueue that ours takes the place of, and what its trainer and NeMo-RL's GRPO import
# beside them.
$(VENV)-verl/.ready: pyproject.toml $(KERNELS)
	$(PYTHON) -m venv $(VENV)-verl
	$(VENV)-verl/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-verl/bin/python -m pip install --quiet '$(TORCH)'
	$(VENV)-verl/bin/python -m pip install --quiet --editable '.[server,ray]' --group client-test verl==0.9.1 cachetools fastapi uvicorn \
		matplotlib mlflow-skinny nvidia-ml-py pyzmq scipy soundfile swanlab
	$(VENV)-verl/bin/python -m pip install --quiet --no-deps ./deploy/transfer_queue
	@touch $@

test-frameworks: test-trl test-transfer-queue $(VENV)-verl/.ready  ## the adapters beside TRL, TransferQueue and verl, each in an environment of its own
	$(VENV)-verl/bin/python -m pytest -m frameworks integrations/dataplane_transfer_queue/tests/test_verl.py integrations/dataplane_nemo_rl/tests/test_their_source.py integrations/dataplane_slime/tests/test_their_source.py

test-trl: $(VENV)-trl/.ready
	$(VENV)-trl/bin/python -m pytest -m frameworks integrations/dataplane_trl/tests/test_trl.py

test-transfer-queue: $(VENV)-transfer-queue/.ready
	$(VENV)-transfer-queue/bin/python -m pytest -m frameworks integrations/dataplane_transfer_queue/tests/test_transfer_queue_side_by_side.py integrations/dataplane_transfer_queue/tests/test_their_interface.py

# MATRIX chooses environments: make test-matrix MATRIX=tensordict-0.10.0
MATRIX ?=

test-matrix:  ## the client's tests beside other versions of Python, tensordict and protobuf (a table; about 20 GB, 40 minutes)
	$(PYTHON) scripts/test_matrix.py --torch '$(TORCH)' $(MATRIX)

# The server's root file system as deploy/Dockerfile builds it, without a container engine: on Debian 12, as root.
IMAGE_INPUTS := $(wildcard deploy/image/*) pyproject.toml hatch_build.py README.md LICENSE \
	$(shell find proto client/dataplane_client dataplane_server/dataplane_server -name '*.py') \
	$(wildcard dataplane_server/dataplane_server/page/assets/*)

build/.image-root: $(IMAGE_INPUTS)
	@/usr/bin/python3 -m pip --version >/dev/null 2>&1 || apt-get install --yes --no-install-recommends python3-pip || \
		{ echo "Debian's python3-pip is missing and cannot be installed: run this as root on Debian 12" >&2; exit 1; }
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} deploy/image/build_root.sh build/image-root
	@touch $@

image-root: build/.image-root  ## the server's root file system in build/image-root (as root, on Debian 12)

test-image: build/.image-root $(VENV)/.dev $(VENV)-audit/.ready  ## what is in that root, and the server run in it, read-only and not as root
	$(VENV)-audit/bin/python -c 'import sys; from cyclonedx.schema import SchemaVersion; from cyclonedx.validation.json import JsonStrictValidator; \
		sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))' <build/image-root.cdx.json
	$(BIN)/python -m pytest -m image -s tests/deploy/image

# What pip may install, as name==version with hashes: image (server), build (our wheel), trainer (all but torch and CUDA,
# which come from torch's own index). The versions are those that the tests run with.
PIP_COMPILE = CUSTOM_COMPILE_COMMAND='make image-requirements' $(VENV)-pins/bin/pip-compile --quiet --upgrade --generate-hashes \
	--allow-unsafe --strip-extras --no-annotate --no-emit-index-url --no-emit-find-links --constraint $(VENV)-pins/constraints.txt

image-packages:  ## pin the image's Debian packages to the versions of today's archive (as root, on Debian 12)
	deploy/image/build_root.sh --pin

image-requirements: $(VENV)/.dev  ## pin what the images install to what the tests ran with, with hashes (minutes)
	$(PYTHON) -m venv $(VENV)-pins
	$(VENV)-pins/bin/python -m pip install --quiet pip-tools
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '[@+]' >$(VENV)-pins/constraints.txt
	$(PIP_COMPILE) --output-file deploy/image/requirements.txt deploy/image/requirements.in
	$(PIP_COMPILE) --output-file deploy/image/build-requirements.txt deploy/image/build-requirements.in
	echo '$(TORCH)' >>$(VENV)-pins/constraints.txt
	$(PIP_COMPILE) --output-file $(VENV)-pins/trainer.txt deploy/image/trainer-requirements.in
	awk '/^[a-z]/ { keep = !/^(torch|triton|setuptools|nvidia-.*|cuda-.*)==/ } /^#/ || keep' $(VENV)-pins/trainer.txt >deploy/image/trainer-requirements.txt

build/dist-tools/.ready: pyproject.toml
	$(PYTHON) -m venv build/dist-tools
	build/dist-tools/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	build/dist-tools/bin/python -m pip install --quiet --group dist
	@touch $@

# Wheels are built from the sdists. They are tried where nothing else is installed: the client alone, then what the
# README shows with a server, then the module transfer_queue. Their contents are compared with this tree, where .dev has
# compiled the row kernels.
TRIED := build/dist-tried/bin

dist: build/dist-tools/.ready $(VENV)/.dev  ## sdists and wheels in dist/, checked, installed into an empty environment, and the README run there
	rm -rf dist build/dist-tried
	build/dist-tools/bin/python -m build --outdir dist .
	build/dist-tools/bin/python -m build --outdir dist deploy/transfer_queue
	build/dist-tools/bin/twine check --strict dist/*
	build/dist-tools/bin/check-wheel-contents dist/rl_dataplane-*.whl
	build/dist-tools/bin/check-wheel-contents --no-config dist/transferqueue-*.whl
	$(PYTHON) -m venv build/dist-tried
	$(TRIED)/python -m pip install --quiet '$(TORCH)'
	$(TRIED)/python -m pip install --quiet dist/rl_dataplane-*.whl
	$(TRIED)/dataplane --version
	$(TRIED)/python -m pip install --quiet dist/*.whl pytest
	$(TRIED)/python -m pip check
	$(TRIED)/python -m pytest -c /dev/null --rootdir . --noconftest -p no:cacheprovider tests/repository/test_readme.py
	$(TRIED)/python -c 'import transfer_queue as tq; tq.init(); tq.kv_put("k", "p", tag={"of": 1}); print(tq.kv_list())'

FAULTS ?= latency slices resets

test-faults: $(VENV)/.dev  ## the client's tests through a network with each of FAULTS (latency slices resets)
	@for fault in $(FAULTS); do \
		FAULT=$$fault $(BIN)/python -m pytest $(PYTEST_ARGS) tests/integration/test_*.py tests/integration/loader tests/semantics || exit 1; done

SOAK_MINUTES ?= 30

soak: $(VENV)/.dev  ## work for SOAK_MINUTES (30): what server and clients take stays flat, and no row is lost
	@mkdir -p build
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES) --out build/soak.csv

FUZZ_SECONDS ?= 600

fuzz: $(VENV)/.dev  ## mutate what others may send or have written: 13 targets, FUZZ_SECONDS each (600; 2 hours)
	$(BIN)/python -m pip install --quiet --group fuzz
	$(BIN)/python -m tests.hostile.fuzz all --seconds $(FUZZ_SECONDS)

bench-cluster: $(VENV)-transfer-queue/.ready  ## puts and gets in a cluster beside TransferQueue and Ray (5 to 10 minutes)
	$(VENV)-transfer-queue/bin/python benchmarks/cluster_transfer.py

scaling: $(VENV)/.dev  ## what one coordinator carries, from the times in benchmarks/scaling/inputs.json (30 s)
	$(BIN)/python -m benchmarks.scaling simulate

overload: $(VENV)/.dev  ## offer a server up to twenty times what it can do, three ways, and look at goodput, waits, claims and health (as root)
	$(BIN)/python benchmarks/overload.py

# Both ask about pins and install none of them. cyclonedx checks the image's SBOM against its schema.
$(VENV)-audit/.ready:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet pip-audit==2.10.1 'cyclonedx-python-lib[json-validation]>=11,<12'
	@touch $@

audit: $(VENV)-audit/.ready $(VENV)/.dev  ## known vulnerabilities of the images' pins and of this environment (3: no advisories can be had)
	@$(BIN)/python -m pip freeze --exclude-editable | grep -v @ | sed 's/+.*//' >$(VENV)-audit/environment.txt
	@$(BIN)/python deploy/image/audit.py $(VENV)-audit/bin/pip-audit deploy/image/requirements.txt \
		deploy/image/build-requirements.txt deploy/image/trainer-requirements.txt $(VENV)-audit/environment.txt

test-gpu: $(VENV)/.dev  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

bench-gpu: $(VENV)/.dev  ## reads to a GPU beside the bus, and a whole GRPO step (2 minutes)
	$(BIN)/python benchmarks/gpu.py $(BENCH_ARGS)

check: $(VENV)/.dev  ## lint, types, derived files
	@$(MAKE) --no-print-directory -j 2 --output-sync lint types derived

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/python scripts/page_blocks.py build/pages
	$(BIN)/mypy proto dataplane_server client trainer_adapter integrations scripts examples benchmarks tests build/pages

derived: $(VENV)/.dev
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python scripts/generate_proto.py --check
	$(BIN)/python scripts/unasync.py --check
	$(BIN)/python scripts/document_metrics.py --check
	$(BIN)/python scripts/document_api.py --check
	$(BIN)/python scripts/document_errors.py --check

format: $(VENV)/.dev  ## sort imports, format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build/buf/.ready: pyproject.toml
	$(PYTHON) -m venv build/buf
	build/buf/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	build/buf/bin/python -m pip install --quiet --group proto-check
	@touch $@

proto-check: build/buf/.ready  ## lint the contract, and compare it with the last release's
	build/buf/bin/buf lint
	build/buf/bin/buf breaking proto --against tests/proto/released.binpb

proto: $(VENV)/.dev  ## generate the contract's modules, the blocking client, the pages of metrics, errors and of the API
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python scripts/generate_proto.py
	$(BIN)/python scripts/unasync.py
	$(BIN)/python scripts/document_metrics.py
	$(BIN)/python scripts/document_api.py
	$(BIN)/python scripts/document_errors.py

BENCH_ARGS ?=

bench: $(VENV)/.dev  ## which goals of speed and memory hold here, beside the floor of copying and beside peers (about 20 minutes)
	$(BIN)/python benchmarks/bench.py --torch '$(TORCH)' $(BENCH_ARGS)

clean:  ## remove everything that is not tracked: environment, caches, runs
	rm -rf $(VENV) $(VENV)-core $(VENV)-automodel $(VENV)-trl $(VENV)-transfer-queue $(VENV)-verl $(VENV)-pins $(VENV)-audit $(VENV)-bench-* .venv-matrix-* build runs dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f client/dataplane_client/_values/row_kernels/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
