# Everything that people and CI run. `make help` lists it. Nothing is installed outside this folder.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# The first Python that is new enough; deploy/preflight.py says what to do when there is none.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && exit; done; echo python3)
BIN := .venv/bin
STAMP := .venv/.installed
SPARK := .venv/.spark
DOCS := .venv/.docs
TYPES := build/types/ledgermq
PACKAGES := proto rpc raft broker nameserver client spark_jobs
NODES ?= 3
KILLS ?= 1
DOCKER ?= 0
MESSAGES ?= 200000

FOR ?= 60m
SOAK ?= build/sim-soak.jsonl
COVERED_SEEDS ?= 1 2 3 4 5 6 7 8

.PHONY: help preflight setup spark lowest fmt lint types test unit sim fuzz h2spec sim-soak coverage mutants integration e2e bench bench-quick docs proto image up demo clean

help: ## this list
	@grep -hE '^[a-z0-9 -]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-27s %s\n", $$1, $$2}'

preflight: # is everything there that cannot be installed into this folder? Less than 2 s, before any download.
	@$(PYTHON) deploy/preflight.py

setup: ## make .venv with client, server and tools, at the versions of constraints.txt
	@$(PYTHON) deploy/preflight.py --without-spark
	@$(MAKE) --no-print-directory $(STAMP)

spark: preflight $(SPARK) ## the same with Spark (456 MB), for `ledgermq check`, `make demo` and `make test`

$(STAMP): pyproject.toml constraints.txt deploy/install.py
	@$(PYTHON) deploy/install.py
	@touch $@

$(SPARK): $(STAMP)
	@$(PYTHON) deploy/install.py spark
	@touch $@

$(DOCS): $(STAMP)
	@$(PYTHON) deploy/install.py docs
	@touch $@

fmt: $(STAMP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP) ## format, lint rules, and generated code that is up to date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m ledgermq.proto.generate --check

# The folders are the packages ledgermq.<folder>; a type checker wants to see a folder of that name.
$(TYPES): pyproject.toml
	@mkdir -p $(TYPES)
	@for package in $(PACKAGES); do ln -sfn ../../../$$package $(TYPES)/$$package; done
	@touch $(TYPES)

types: $(SPARK) $(TYPES) ## mypy --strict on the packages, and mypy on what is around them
	MYPYPATH=build/types $(BIN)/mypy $(PACKAGES:%=-p ledgermq.%)
	MYPYPATH=build/types $(BIN)/mypy tests $(wildcard bench/*.py bench/failover/*.py bench/steady/*.py examples/*.py) deploy/install.py deploy/docs_reference.py deploy/docs_site.py

test: preflight lint types docs ## everything: lint, types, the documentation site and all suites, with one summary at the end
	@$(BIN)/python tests/run_suites.py unit sim integration e2e

unit sim integration e2e: $(SPARK) ## one suite of tests (WORKERS=1: in one process)
	@$(BIN)/python tests/run_suites.py $@

# Tests of the client against what its users may have: the oldest versions that pyproject.toml allows.
lowest: $(SPARK) ## the client's tests with the lower bounds of its dependencies
	@$(PYTHON) deploy/install.py lowest
	.venv/lowest/bin/python -m pytest -q --numprocesses 2 tests/client tests/proto

fuzz: $(STAMP) ## feed every decoder with mutated bytes, for a time in all (FOR=60s); one of them: TARGET=name
	$(BIN)/python -m tests.fuzz --for $(if $(filter file,$(origin FOR)),60s,$(FOR)) $(if $(TARGET),--target $(TARGET))

h2spec: $(STAMP) ## the conformance test of HTTP/2 against a server of rpc/, on asyncio and uvloop; builds it with Go
	@$(BIN)/python -m tests.rpc.h2spec

sim-soak: $(STAMP) ## seeds of the simulator that nobody ran yet, for a time (FOR=60m); goes on where it was stopped
	$(BIN)/python -m tests.sim --soak $(SOAK) --for $(FOR)

coverage: $(STAMP) ## branches of the Raft core that simulation and paper tests reach; fails below 98 %
	@mkdir -p build
	$(BIN)/python -m coverage run -m pytest -q tests/raft/core tests/raft/test_scenarios.py
	@for seed in $(COVERED_SEEDS); do $(BIN)/python -m coverage run --append -m tests.sim --seed $$seed; done
	$(BIN)/python -m coverage report

mutants: $(STAMP) ## put every known bug into the code and see the simulator or the unit tests find it (docs/reliability.md)
	$(BIN)/python -m tests.sim.mutants
	$(BIN)/python -m tests.mutation

bench: $(STAMP) ## measure throughput, latency and failover (docs/performance.md)
	$(BIN)/python -m bench

bench-quick: $(STAMP) ## a guard against slow-downs, at most 2 minutes: ratios beside a baseline (ARGS=--strict, ARGS=--update)
	@$(BIN)/python -m bench.quick $(ARGS)

docs: $(DOCS) ## the documentation site, in build/site; every warning is an error (broken links and anchors, too)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "documentation: build/site/index.html"

proto: $(STAMP) ## generate the code of proto/*.proto again
	$(BIN)/python -m ledgermq.proto.generate

image: $(STAMP) ## container images ledgermq:dev and ledgermq-spark:dev; works without a container registry
	@deploy/build_images.sh

up: setup ## a cluster of three brokers and a nameserver on this machine
	@$(BIN)/ledgermq up

demo: spark ## watch a broker group lose its leader and no message (NODES=5 KILLS=10, DOCKER=1)
	@if [ "$(DOCKER)" = 1 ]; then deploy/build_images.sh; fi
	@$(BIN)/ledgermq demo --nodes $(NODES) --kills $(KILLS) --messages $(MESSAGES) $(if $(filter 1,$(DOCKER)),--docker)

clean: ## remove what the build made; the data of `ledgermq up` stays
	rm -rf build dist .mypy_cache .ruff_cache .hypothesis *.egg-info spark-warehouse metastore_db derby.log
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
