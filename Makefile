# Everything a developer runs. `make help` lists it; `make check` before a commit; .ci/run runs it all.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# Of all that pip says, what takes long; its errors do not go through here. It takes from its cache what is there.
PIP_SHOWING := $(BIN)/python -m pip --disable-pip-version-check
SHORT_DOWNLOADS := awk '/Downloading .*MB\)/ { print "  downloading " $$2, $$3, $$4 } \
	/^Installing/ { print "  installing the packages" } { fflush() }'
LONG_DOWNLOADS := awk '/Downloading .*\([0-9][0-9]+\.[0-9]+ MB\)/ { print "  downloading " $$2, $$3, $$4 } \
	/^Collecting/ { found++ } /^Installing/ { print "  installing " found " packages" } { fflush() }'
LOCKED := $(VENV)/.locked
READY := $(VENV)/.ready
RULES_REPORT := .cache/rules.json
CLOCK_RULES_REPORT := .cache/rules-clock.json
MUTANTS_REPORT := .cache/mutants.json
DEMO_ARGS ?=
DIST_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=
# How many times as many chaos rounds and simulated seeds the long tests run.
LONG ?= 1

# Runs pytest under the name of the target, and each test that failed once more, by itself.
TESTS = $(BIN)/python tools/try_again.py

export LONG
# Compiled files are kept, whatever the environment says: without them every process that starts compiles all again.
unexport PYTHONDONTWRITEBYTECODE
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1

.PHONY: cluster-there cluster-build-there demo-cluster-there help setup try lock version format lint types imports spark-classes test test-clock compiled test-compiled test-long test-waiting test-busy cluster-up cluster-before cluster-build cluster-programs test-cluster test-cluster-api test-cluster-node cluster-down rules mutants bench docs pictures crd images dist chart chart-scan tracing-tools demo demo-cluster check clean java-there

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with the locked packages and this project in it
	@echo "ready: $$($(BIN)/python --version) in $(VENV)"

# In the lock, pip and setuptools come first: they build the packages that are published as source only. What is built is
# unpacked at once, so it is not compressed: PySpark is 450 MB of archives.
$(LOCKED): requirements.lock
	@tools/make-venv $(VENV)
	@echo "installing the build tools from requirements.lock"
	@awk '/^[A-Za-z]/ { take = /^(pip|setuptools)==/ } take' requirements.lock > $(VENV)/build-tools.lock
	@$(PIP) install --require-hashes -r $(VENV)/build-tools.lock
	@echo "installing the locked packages (PySpark is 450 MB: some minutes the first time)"
	@printf '[bdist_wheel]\ncompression = stored\n' > $(VENV)/build.cfg
	@DIST_EXTRA_CONFIG=$(CURDIR)/$(VENV)/build.cfg \
		$(PIP_SHOWING) install --progress-bar off --require-hashes --no-build-isolation -r requirements.lock | $(LONG_DOWNLOADS)
	@touch $@

$(READY): $(LOCKED) pyproject.toml
	@echo "installing epochal itself, as an editable package"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# Of the locked packages, with their hashes, what the library, catalog and publisher need, as the images have it; and what
# makes an editable install.
TRY := .venv-try

$(TRY)/.ready: requirements.lock pyproject.toml tools/component_lock.py
	@tools/make-venv $(TRY)
	@echo "installing what local mode needs from requirements.lock (some 20 MB, the first time only)"
	@$(TRY)/bin/python tools/component_lock.py build editable catalog publisher > $(TRY)/packages.lock
	@$(TRY)/bin/python -m pip --disable-pip-version-check install --progress-bar off --require-hashes \
		--only-binary :all: -r $(TRY)/packages.lock | $(SHORT_DOWNLOADS)
	@echo "installing epochal itself, as an editable package"
	@$(TRY)/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --no-build-isolation -e .
	@touch $@

try: $(TRY)/.ready ## see catalog, publishers, a program and a subscriber at work, without Java (in .venv-try)
	@$(TRY)/bin/python examples/first_look.py

lock: $(READY) ## write requirements.lock again from pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --group dev \
		--generate-hashes --no-header --no-emit-index-url --no-emit-find-links pyproject.toml -o requirements.lock
	@grep -c '==' requirements.lock | sed 's/$$/ packages locked/'

version: $(READY) ## write another version at all places (VERSION=1.2.3)
	@$(BIN)/python tools/set_version.py $(VERSION)

format: $(READY) ## format the code and fix what can be fixed
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

lint: $(READY) ## check form and common faults (ruff), and that load cannot make tests red
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/python tools/load_proof.py

types: $(READY) ## check types (mypy strict, pyright)
	@$(BIN)/mypy
	@$(BIN)/pyright

imports: $(READY) ## check which part may import which (import-linter)
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter

test-clock: $(READY) ## run the tests that measure seconds, bytes or rates: one at a time, with nothing beside
	@$(TESTS) test-clock -q -m "clock and not cluster" $(or $(TEST_ARGS),--rules-report=$(CLOCK_RULES_REPORT))

SPARK_CLASSES := .cache/spark/classes.jsa

spark-classes: java-there $(SPARK_CLASSES) ## archive Spark's classes: it starts in half the time then, for tests

# A JVM takes no archive of files that were installed again since.
$(SPARK_CLASSES): requirements.lock $(wildcard $(VENV)/lib/python3*/site-packages/pyspark/jars/spark-core_*.jar) | $(READY)
	@$(BIN)/python -m tests.java

# Much of a run is waiting, for processes to start and to end: three at a time keep two cores busy.
TEST_PROCESSES ?= 3

# A run of some tests only (TEST_ARGS) says nothing about the other rules, so it writes no report.
test: $(READY) ## run the tests (without those marked long or cluster)
	@tools/get-kube-tools # the chart is tried with the real helm
	@$(TESTS) test -q $(or $(TEST_ARGS),-n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --rules-report=$(RULES_REPORT))
	@echo "the tests on a real Kubernetes are separate: make test-cluster"

# The protocol as a compiled wheel, unpacked. PYTHONPATH comes before the sources, also in all processes that tests start.
COMPILED := .cache/compiled
# What has little or nothing of it is left out: tools, charts, manifests and schemas; catalog and operator, whose images are
# pure Python; topics and log files, which are not compiled; what waits for leases, and answers over HTTP; whole programs,
# which the long rounds of chaos and the images in pods run on compiled code; what runs the same parts once more (demo,
# traces, Spark's writers); and what `make test-long` runs on it, with more seeds.
NOT_COMPILED := $(addprefix tests/, catalog chaos charts cli cluster demo e2e exploration kube local model operator resources \
	service spark tools tracing logfiles/test_simulation.py protocol/test_simulation.py \
	protocol/epochs/test_simulated_readers.py hostile/test_epochs.py \
	$(addprefix publisher/test_, disk.py hung_disk.py lease.py schemathesis.py)) \
	$(wildcard tests/publisher/test_epochs_*.py tests/publisher/test_http_*.py)

compiled: $(READY) ## make a wheel with the protocol compiled, and unpack it (mypyc, a C compiler)
	@rm -rf $(COMPILED)/wheel $(COMPILED)/site
	@EPOCHAL_COMPILED=1 $(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(COMPILED)/wheel .
	@$(PIP) install --no-deps --no-index --no-compile --target $(COMPILED)/site $(COMPILED)/wheel/*.whl

ON_COMPILED := PYTHONPATH=$(CURDIR)/$(COMPILED)/site

test-compiled: compiled ## run the tests that use the protocol again, on compiled code
	@$(ON_COMPILED) $(TESTS) test-compiled --compiled -q $(or $(TEST_ARGS),-n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(NOT_COMPILED:%=--ignore %))

LONG_TESTS := -q -m "long and not cluster and not clock" -o faulthandler_timeout=900
# These keep all processors busy by themselves. They run on compiled code, as in the images: `make test` has them on pure Python.
BUSY := tests/chaos/test_rounds.py tests/protocol/epochs/test_simulated_readers.py tests/protocol/test_simulation.py
# The others, without reading all tests for them.
WAITING = $(filter-out $(BUSY),$(shell grep -rlE 'mark\.long\b' tests --include='test_*.py' --exclude-dir=cluster))

test-long: $(READY) ## run the tests marked long (LONG=4: four times as many rounds and seeds)
ifeq ($(TEST_ARGS),)
	@$(MAKE) test-waiting
	@$(MAKE) test-busy
else
	@$(TESTS) test-long $(LONG_TESTS) $(TEST_ARGS)
endif

test-waiting: $(READY) tracing-tools # of test-long, what waits for most of its time
	@$(TESTS) test-waiting $(LONG_TESTS) -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(WAITING)

test-busy: compiled # of test-long, the rounds and the seeds
	@$(ON_COMPILED) $(TESTS) test-busy --compiled $(LONG_TESTS) $(BUSY)

# docs/cluster-tests.md: what it needs, what it makes. TIER=api starts the API server alone: seconds, and no root.
TIER ?= node

cluster-up: cluster-there $(READY) ## start a throw-away Kubernetes (TIER=api: without a node)
	@$(BIN)/python -m tests.cluster up --tier $(TIER)

# The tests of the API alone wait for most of their time: two processes, with an API server each, take half as long.
CLUSTER_TESTS := -q -m cluster -o faulthandler_timeout=900

# Images take one core for most of their time; so they are made beside the programs, and each says what it is doing.
cluster-build: cluster-build-there $(READY) ## build the images and programs that the tests on a Kubernetes need (minutes, once)
ifeq ($(KUBECONFIG),)
	@$(BIN)/python -m tests.cluster build --images
else
	@$(BIN)/python -m tests.cluster build --tier api
endif

cluster-build-there:
	@tools/require "a throw-away Kubernetes with our images" python $(if $(KUBECONFIG),api,node images)

cluster-programs: $(READY) # of these, the programs
	@$(BIN)/python -m tests.cluster build

cluster-before: $(READY) # of the images, those of the version before: the tests in pods make them too, if need be
	@$(BIN)/python -m tests.cluster build --before

test-cluster: $(if $(TEST_ARGS),,cluster-build-there) $(READY) ## run the tests on a real Kubernetes: ours, or that of KUBECONFIG
ifeq ($(TEST_ARGS),)
	@$(MAKE) cluster-build
	@$(MAKE) test-cluster-api
	@$(MAKE) test-cluster-node
else
	@$(TESTS) test-cluster $(CLUSTER_TESTS) $(TEST_ARGS)
endif

test-cluster-api: $(READY) ## of these, only those that need no node
	@$(BIN)/python -m tests.cluster build --tier api
	@$(TESTS) test-cluster-api $(CLUSTER_TESTS) -n 2 --dist loadfile --no-loadscope-reorder tests/cluster/api

test-cluster-node: $(READY) ## of these, only those that run pods
	@$(TESTS) test-cluster-node $(CLUSTER_TESTS) --ignore tests/cluster/api tests/cluster

cluster-down: $(READY) ## remove the throw-away Kubernetes (keeps what was built)
	@$(BIN)/python -m tests.cluster down

mutants: $(READY) ## put known faults back, each alone, and see the named test catch it
	@$(BIN)/python tools/mutants.py --report $(MUTANTS_REPORT)

rules: $(READY) ## show for every behaviour rule what shows it (after test, test-clock and mutants)
	@test -f $(RULES_REPORT) || $(MAKE) test
	@test -f $(CLOCK_RULES_REPORT) || $(MAKE) test-clock
	@$(BIN)/python tools/rule_report.py docs/rules.md $(RULES_REPORT) $(MUTANTS_REPORT) --more $(CLOCK_RULES_REPORT)

bench: $(READY) ## measure against other servers on this machine
	@PYTHONPATH=. $(BIN)/python benchmarks/run.py $(BENCH_ARGS)

# Before the minutes of installing and building, and all at once.
WITH_IMAGES := $(if $(findstring --registry,$(DEMO_ARGS)),,images)

demo-cluster-there:
	@tools/require "make demo-cluster" java python $(if $(KUBECONFIG),,node) $(WITH_IMAGES)

cluster-there:
	@tools/require "a throw-away Kubernetes" python $(TIER)

java-there: # before the minutes of installing, not after
	@tools/require-java

crd: $(READY) ## write the definitions of the custom resources into the chart
	@for each in streams relays; do $(BIN)/epochal-operator crd $$each > charts/epochal/files/$$each.epochal.dev.yaml; done

docs: $(READY) ## build the documentation into site/
	@$(BIN)/mkdocs --quiet build --strict

# The run that one of them shows is recorded by tools/record_time.py; it is another one each time.
pictures: $(READY) ## draw the pictures of the README and the documentation again
	@$(BIN)/python tools/draw_pictures.py

# The collector is built like the Kubernetes of the cluster tests: with the machine's Go, or one from PyPI.
tracing-tools: java-there $(READY) ## make the OpenTelemetry Collector and Zipkin that tests and demos run (minutes, once)
	@$(BIN)/python -m tests.tracing.tools

images: ## build the images of all components (root, buildah, mmdebstrap)
	@tools/images

dist: $(READY) ## make the files of a release in dist/ (root, buildah; DIST_ARGS=--no-images leaves the images out)
	@tools/get-kube-tools
	@$(BIN)/python tools/dist.py $(DIST_ARGS)

chart: $(READY) ## check the Helm chart by helm and the tests, and write its table of values
	@tools/get-kube-tools
	@$(BIN)/python tools/chart_readme.py
	@.cache/tools/helm lint --strict --quiet charts/epochal
	@$(BIN)/python -m pytest -q tests/charts

chart-scan: ## scan the rendered chart for risks with checkov, in an environment of its own (290 MB)
	@tools/chart-scan

demo: java-there $(READY) ## run a Spark job over real flights and follow it, hour by complete hour
	@PYTHONPATH=. $(BIN)/python -m examples.demo $(DEMO_ARGS)

# The cluster of KUBECONFIG, or the node of cluster-up, or one for the time of the demo; KEEP=1 leaves everything there.
demo-cluster: demo-cluster-there $(READY) ## run the same in pods, on a real Kubernetes (root, unless KUBECONFIG is set)
	@PYTHONPATH=. $(BIN)/python -m examples.demo.cluster $(DEMO_ARGS)

check: lint types imports docs test ## all of the above that a commit must pass

clean: ## remove what was built or cached (keeps .venv and .venv-try)
	@! test -e .cache/cluster/node.lock -o -e .cache/cluster/api || $(MAKE) cluster-down
	@rm -rf .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis site dist build spark-warehouse metastore_db derby.log
	@find core services operator spark examples tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
