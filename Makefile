# Everything a developer types; `make help` lists it. Set-up happens by itself and again when pyproject.toml changes.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
BIN := $(VENV)/bin
# The first interpreter that is new enough; name another with PYTHON=.
PYTHON ?= $(firstword $(foreach each,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	command -v $(each) >/dev/null && $(each) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(each))))

SEEDS ?= 100000
HISTORIES ?= 100000
CYCLES ?= 200
VERDICTS ?= rules equal_verdicts engines forgeries lineage oracle message_table command
WORKERS ?= 4
BROKER ?= memory,sqlite
SECONDS ?= 300
SEED ?= 1
EXAMPLES ?= 1000
JSON ?=
ONLY ?=
BENCH ?=
LOCKED ?=
UPGRADE ?=
SBOM ?= .artefacts/txcore.cdx.json
# The benchmark of recovery runs on Kafka unless a broker is named.
RECOVERED = $(if $(filter file,$(origin BROKER)),kafka,$(BROKER))
OLD ?= 10000000
RUNS ?= 3
LOAD ?= 8
HARNESS ?= txcore_sqlite.testing:SqliteHarness
# The other profiles of the memory broker run the suite in `make heavy`.
HARNESSES := txcore_conformance.memory:MemoryHarness txcore_sqlite.testing:SqliteHarness \
	txcore_kafka.testing:KafkaHarness txcore_rabbitmq.testing:RabbitmqHarness txcore_nats.testing:NatsHarness
# Other forms of the same brokers, signed records, and the skeleton of a backend, in `make forms`; what takes minutes runs on them in `make matrix` only.
FORMS := txcore_kafka.testing:KafkaTransactionHarness txcore_nats.testing:NatsAtomicHarness \
	txcore_conformance.memory:SignedHarness txcore_mybroker.testing:MyHarness
SKELETON := examples/backend-skeleton
SUITE := conformance/txcore_conformance/suite
CODE := txcore plugins conformance spark tests benchmarks docs/site examples/backend-redis examples/frameworks examples/from-rocketmq $(SKELETON)
TEXT := README.md CONTRIBUTING.md CHANGELOG.md Makefile .ci/run docs

# Starts the three brokers, or uses those that TXCORE_KAFKA_URL and its like name, for the command behind it.
WITH_BROKERS = $(BIN)/python -m txcore_conformance.brokers --run kafka,rabbitmq,nats --

DEMO := $(VENV)/.installed-demo
SERVERS := $(VENV)/.installed-servers
DEV := $(VENV)/.installed-dev

.PHONY: help
help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 17

$(BIN)/python:
	@[[ -n "$(PYTHON)" ]] || { echo "txcore needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(DEMO): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[demo]"
	@touch $@

# Clients, drivers and the servers' programs: a tenth of what the tests need.
$(SERVERS): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[all,conformance]"
	@touch $@

# With LOCKED=1 every package is one of locks/, with its hash; else the newest that pyproject.toml allows.
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
BY_HASH := --require-hashes --no-deps --no-build-isolation -r
$(DEV): pyproject.toml $(if $(LOCKED),locks/dev.txt) | $(BIN)/python
ifneq ($(LOCKED),)
	$(PIP) install $(BY_HASH) locks/build.txt
	$(PIP) install $(BY_HASH) locks/dev.txt
	$(PIP) install --no-deps --no-build-isolation -e .
else
	$(PIP) install -e ".[dev]"
endif
	@touch $(DEMO) $(SERVERS) $@

# Tools that only these commands need, in an environment of their own.
TOOLS ?= $(VENV)/tools
IMAGE ?= $(VENV)/image
$(TOOLS)/.installed: locks/tools.txt | $(BIN)/python
	rm -rf $(TOOLS)
	$(BIN)/python -m venv --without-pip $(TOOLS)
	$(PIP) --python $(TOOLS)/bin/python install --no-compile $(BY_HASH) locks/tools.txt
	@touch $@

.PHONY: demo
demo: $(DEMO) ## see it work: a crash between database and broker, and what becomes of the message
	$(BIN)/txcore demo

.PHONY: test
test: $(DEV) ## the tests: real databases and brokers, conformance on each backend, simulator, model (minutes)
	$(WITH_BROKERS) $(BIN)/pytest -q -o faulthandler_timeout=300 -m "not heavy" -n $(WORKERS) --dist worksteal --ignore=tests/audit tests plugins $(SUITE) $(HARNESSES:%=--harness %)

.PHONY: forms
forms: $(DEV) ## the suite on Kafka's transactions, NATS's atomic batches, signed records, the skeleton of a backend
	PYTHONPATH=$(SKELETON) $(WITH_BROKERS) $(BIN)/pytest -q -o faulthandler_timeout=300 -n $(WORKERS) --dist worksteal $(SUITE) $(FORMS:%=--harness-form %)

.PHONY: audit
audit: $(DEV) ## the tests of the audit: one Java process, one after the other, on brokers of their own
	$(BIN)/pytest -q -o faulthandler_timeout=900 -m "not heavy" tests/audit

.PHONY: verdicts
verdicts: $(DEV) ## of these, what needs no broker: rules and engines, the oracle beside both, the command
	TXCORE_AUDIT_SEEDS=$${TXCORE_AUDIT_SEEDS:-100} $(BIN)/pytest -q -o faulthandler_timeout=900 $(VERDICTS:%=tests/audit/test_%.py)

.PHONY: heavy
heavy: $(DEV) ## what `make test` leaves out: clusters of three nodes, other versions, profiles of the memory broker
	$(BIN)/pytest -q -o faulthandler_timeout=300 -m heavy tests plugins

.PHONY: loaded
loaded: $(DEV) ## `make test` RUNS= times in a row beside a load of LOAD= running threads (three hours on two cores)
	$(BIN)/python tests/load.py $(LOAD) & trap "kill $$!; wait $$!" EXIT; \
	for run in $$(seq $(RUNS)); do echo "run $$run of $(RUNS), beside a load of $(LOAD)"; $(MAKE) test; done

.PHONY: smoke
smoke: $(DEV) ## the built wheel in empty environments: demo, checker, and one test run for each broker
	.ci/smoke "$(abspath $(BIN)/python)"

.PHONY: doctor-clusters
doctor-clusters: $(DEV) ## the doctor on a default node and a durable cluster of each broker; the page keeps its output
	$(BIN)/python tests/doctor/clusters.py --write

.PHONY: check
check: $(DEV) ## lint, types, floors, spelling and the tests that need no server (under a minute)
	@$(MAKE) --jobs 2 --output-sync=target static units

.PHONY: static
static: $(DEV) ## of `make check`, what reads the code: lint, format, types, import contracts, spelling
	$(BIN)/ruff check --quiet $(CODE)
	$(BIN)/ruff format --quiet --check $(CODE)
	$(BIN)/mypy --no-error-summary
	PYTHONPATH=$(subst $() ,:,$(wildcard plugins/*) spark examples/backend-redis $(SKELETON)) $(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.txt || { cat $(VENV)/lint-imports.txt; exit 1; }
	$(BIN)/codespell $(CODE) $(TEXT)
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec compose.yaml examples/deploy/compose.yaml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml

.PHONY: units
units: $(DEV) ## of `make check`, the tests that need no server
	$(BIN)/pytest -q -o faulthandler_timeout=120 -m "not heavy" -n 4 --dist worksteal tests/core tests/conformance/test_invariants.py tests/refine/test_refinement.py tests/words tests/deploy --ignore=tests/deploy/test_sbom.py --ignore=tests/deploy/test_confinement.py tests/test_*.py "tests/docs/test_blocks.py::test_the_programs_run_in_order[README.md]"

.PHONY: coverage
coverage: $(DEV) ## lines and branches of txcore/ that the tests without a server reach
	$(BIN)/pytest -q -n 2 --dist worksteal --cov txcore --cov-branch --cov-report term:skip-covered tests/core tests/fence tests/scenarios tests/cli

.PHONY: sim
sim: $(DEV) ## play SEEDS= histories of the real core on simulated brokers, with faults
	$(BIN)/python -m txcore_conformance.sim --seeds $(SEEDS)

.PHONY: refine
refine: $(DEV) ## fold HISTORIES= random logs in any order, and a hundredth of that on real owners; holes opened again
	$(BIN)/python -m txcore_conformance.refine --histories $(HISTORIES) --mutants

.PHONY: mutants
mutants: $(DEV) ## switch each rule off and find the first seed that shows it
	$(BIN)/python -m txcore_conformance.sim --mutants

.PHONY: model
model: $(DEV) ## explore every state of the protocol's model within its faults, and each mutant's shortest trace
	$(BIN)/python -m txcore_conformance.model
	$(BIN)/python -m txcore_conformance.model_order

.PHONY: kills
kills: $(DEV) ## kill real processes at every step of the flow, CYCLES= times, on HARNESS=
	$(BIN)/python -m txcore_conformance.crash --harness $(HARNESS) --cycles $(CYCLES)

.PHONY: chaos
chaos: $(DEV) ## SECONDS= of random faults on BROKER=kafka, rabbitmq or nats (and its processes and network); SEED= repeats
	$(BIN)/python -m txcore_conformance.chaos --broker $(BROKER) --seconds $(SECONDS) --seed $(SEED)

.PHONY: matrix
matrix: $(DEV) ## the conformance suite on each broker version; writes docs/versions.md (an hour)
	$(BIN)/python -m txcore_conformance.matrix --page docs/versions.md -n $(WORKERS) --dist worksteal \
		--run "kafka newest,3.9 txcore_kafka.testing:KafkaHarness txcore_kafka.testing:KafkaTransactionHarness" \
		--run "rabbitmq newest,4.0,3.10 txcore_rabbitmq.testing:RabbitmqHarness" \
		--run "nats newest txcore_nats.testing:NatsHarness txcore_nats.testing:NatsAtomicHarness" \
		--run "nats 2.9 txcore_nats.testing:NatsHarness"

.PHONY: guarantees
guarantees: $(DEV) ## write docs/guarantees.md anew from what the backends say of themselves
	$(BIN)/txcore backends --markdown > docs/guarantees.md

.PHONY: api
api: $(DEV) ## write docs/api.md anew: every public name, its signature and first sentence
	$(BIN)/python docs/site/api.py > docs/api.md

.PHONY: pictures
pictures: $(DEV) ## draw docs/pictures/*.svg anew from their sources, and list the pages in llms.txt
	$(BIN)/python docs/site/pictures.py
	$(BIN)/python docs/site/speed.py
	$(BIN)/python docs/site/llms.py

.PHONY: screens
screens: $(DEV) ## take the documents' pictures of the console and of the audit's report anew (Chromium, Java)
	TXCORE_SCREENS=1 TXCORE_REQUIRE=chromium,spark $(BIN)/pytest -q tests/sidecar/console/test_walk.py -k parked_transaction
	TXCORE_SCREENS=1 TXCORE_REQUIRE=chromium,spark $(BIN)/pytest -q tests/audit/test_steps.py -k writes_the_report

.PHONY: recording
recording: $(DEV) ## record the demo anew as docs/pictures/demo.svg, from its real output
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python docs/site/recording.py docs/pictures/demo.svg txcore demo

.PHONY: options
options: $(DEV) ## write the table of URL options into each plugin's README, from the declarations
	$(BIN)/python docs/site/options.py

.PHONY: docs
docs: $(DEV) ## build the documentation as a static site in .artefacts/site; a broken link fails
	$(BIN)/python docs/site/build.py .artefacts/site

.PHONY: playground
playground: docs ## the site with its playground: Python for browsers by npm and pip, and a walk in a real Chromium
	$(BIN)/python docs/site/playground.py .artefacts/site
	TXCORE_SITE=.artefacts/site TXCORE_REQUIRE=chromium $(BIN)/pytest -q -m "heavy or not heavy" tests/docs/test_playground.py
	@cat .artefacts/playground/*.txt

LOCK = $(TOOLS)/bin/uv pip compile --quiet --custom-compile-command "make lock" --universal --python-version 3.11 \
	--generate-hashes $(if $(UPGRADE),--upgrade)
.PHONY: lock
lock: $(TOOLS)/.installed ## pin what image and CI install, in locks/; UPGRADE=1 takes the newest versions
	$(LOCK) pyproject.toml --extra all --output-file locks/image.txt
	$(LOCK) pyproject.toml --extra dev --group build --output-file locks/dev.txt
	$(LOCK) --group build --output-file locks/build.txt
	$(LOCK) --group tools --output-file locks/tools.txt

.PHONY: sbom
sbom: $(TOOLS)/.installed ## list the image's packages with versions and licences in SBOM=, as CycloneDX
	rm -rf $(IMAGE)
	$(BIN)/python -m venv --without-pip $(IMAGE)
	$(TOOLS)/bin/uv pip install --quiet --python $(IMAGE)/bin/python --require-hashes --no-deps -r locks/image.txt
	mkdir -p $(dir $(SBOM))
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-file $(SBOM) $(IMAGE)

.PHONY: brokers
brokers: $(SERVERS) ## start Kafka, RabbitMQ, NATS and PostgreSQL (or ONLY=nats,postgresql) on their usual ports, until Ctrl-C
	@$(BIN)/python -m txcore_conformance.brokers $(if $(ONLY),--only $(ONLY))

.PHONY: bench
bench: $(DEV) ## measure BROKER= against raw yardsticks; JSON=file keeps the figures, BENCH="--quick --profile" says more
	$(BIN)/python -m benchmarks --broker $(BROKER) $(if $(JSON),--json $(JSON)) $(BENCH)

.PHONY: bench-recovery
bench-recovery: $(DEV) ## how fast a checker finishes 10,000 and 100,000 orphans, restarts on a long log, and its memory
	$(BIN)/python -m benchmarks.recovery --broker $(RECOVERED) --count 10000 --fence postgresql
	$(BIN)/python -m benchmarks.recovery --broker $(RECOVERED) --count 10000 --fence listener
	$(BIN)/python -m benchmarks.recovery --broker $(RECOVERED) --count 100000 --fence postgresql
	$(BIN)/python -m benchmarks.recovery --broker $(RECOVERED) --count 100000 --fence listener
	$(BIN)/python -m benchmarks.recovery --broker $(RECOVERED) --waiting 100000
	$(if $(filter kafka,$(RECOVERED)),$(BIN)/python -m benchmarks.recovery --broker kafka --old $(OLD))

.PHONY: bench-scale
bench-scale: $(DEV) ## whether a transaction costs the same however many there are: sent, partitions, waiting, checkers
	$(BIN)/python -m benchmarks.scale --broker $(RECOVERED) $(if $(JSON),--json $(JSON))

.PHONY: bench-rivals
bench-rivals: $(DEV) ## measure txcore beside outboxes, faststream-outbox and RocketMQ (an hour or more); JSON=file keeps it
	$(BIN)/python -m benchmarks.rivals $(if $(JSON),--json $(JSON))

.PHONY: bench-goals
bench-goals: $(DEV) ## compare the files of figures in FIGURES="bench.json rivals.json" with the goals of speed
	$(BIN)/python -m benchmarks.goals $(FIGURES)

.PHONY: console
console: $(DEV) ## walk the checker's console in a real Chromium; pictures in .artefacts/console
	TXCORE_REQUIRE=chromium $(BIN)/pytest -q tests/sidecar/console

.PHONY: fuzz
fuzz: $(DEV) ## EXAMPLES= requests to each operation over HTTP, and SECONDS= of bytes for the wire decoders
	TXCORE_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -q -s tests/sidecar/test_fuzz.py
	$(BIN)/python -m benchmarks.fuzz --seconds $(SECONDS)

.PHONY: acceptance
acceptance: $(DEV) ## what was promised of the checker, measured on BROKER=; figures in .artefacts/acceptance-BROKER.txt
	$(BIN)/python -m benchmarks.acceptance --broker $(BROKER)

.PHONY: conform
conform: $(DEV) ## run the conformance suite on one backend: HARNESS=module:Class
	$(BIN)/pytest -q --pyargs txcore_conformance.suite --harness $(HARNESS)

# An example of a backend by a third party, built as its users would; the other commands do not see it.
THIRD := $(VENV)/backend-redis
$(THIRD): $(DEV) $(wildcard examples/backend-redis/*.toml examples/backend-redis/txcore_redis/*.py)
	rm -rf $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ examples/backend-redis
	@touch $@

.PHONY: backend-redis
backend-redis: $(THIRD) ## the suite and its own tests on the example of a third party's backend
	PYTHONPATH=$(abspath $(THIRD)) $(BIN)/pytest -q -o faulthandler_timeout=300 -n $(WORKERS) --dist worksteal examples/backend-redis/tests $(SUITE) --harness txcore_redis.testing:RedisHarness

.PHONY: backend-redis-kills
backend-redis-kills: $(THIRD) ## kill real processes at every step of the flow, CYCLES= times, on the same backend
	PYTHONPATH=$(abspath $(THIRD)) $(BIN)/python -m txcore_conformance.crash --harness txcore_redis.testing:RedisHarness --cycles $(CYCLES)

# The frameworks of examples/frameworks, in an environment of their own with the newest versions.
FRAMEWORKS ?= $(VENV)/frameworks
$(FRAMEWORKS)/.installed: pyproject.toml examples/frameworks/requirements.txt | $(BIN)/python
	rm -rf $(FRAMEWORKS)
	$(BIN)/python -m venv --without-pip $(FRAMEWORKS)
	$(PIP) --python $(FRAMEWORKS)/bin/python install -r examples/frameworks/requirements.txt -e ".[asyncio,checker,cli,kafka,postgresql,rabbitmq,conformance]"
	@touch $@

.PHONY: frameworks
frameworks: $(DEV) $(FRAMEWORKS)/.installed ## kill the examples for Flask, Celery, Temporal and others, on real Kafka and RabbitMQ (minutes)
	$(BIN)/python -m txcore_conformance.brokers --run kafka,rabbitmq -- $(FRAMEWORKS)/bin/pytest -q -o faulthandler_timeout=300 examples/frameworks/tests

# The schedules of examples/audit, each in an environment of its own.
SCHEDULES ?= $(VENV)/schedules
$(SCHEDULES)-%/.installed: pyproject.toml examples/audit/requirements-%.txt | $(BIN)/python
	rm -rf $(SCHEDULES)-$*
	$(BIN)/python -m venv --without-pip $(SCHEDULES)-$*
	$(PIP) --python $(SCHEDULES)-$*/bin/python install -r examples/audit/requirements-$*.txt -e ".[audit]"
	@touch $@

.PHONY: schedules
schedules: $(DEV) $(SCHEDULES)-airflow/.installed $(SCHEDULES)-dagster/.installed ## run the audit's schedules for Airflow and Dagster (minutes)
	TXCORE_SCHEDULE=airflow_audit $(SCHEDULES)-airflow/bin/python -m pytest -q -c /dev/null examples/audit/tests
	TXCORE_SCHEDULE=dagster_audit $(SCHEDULES)-dagster/bin/python -m pytest -q -c /dev/null examples/audit/tests

# A server that speaks S3, in an environment of its own.
MOTO ?= $(VENV)/moto
$(MOTO)/.installed: | $(BIN)/python
	rm -rf $(MOTO)
	$(BIN)/python -m venv --without-pip $(MOTO)
	$(PIP) --python $(MOTO)/bin/python install "moto[server]>=5"
	@touch $@

.PHONY: audit-s3
audit-s3: $(DEV) $(MOTO)/.installed ## the audit on DuckDB with its store on S3, which a local server speaks (minutes)
	TXCORE_MOTO_SERVER=$(abspath $(MOTO))/bin/moto_server $(BIN)/pytest -q -o faulthandler_timeout=300 tests/audit/test_s3.py

S3_JARS ?= $(VENV)/s3-jars
$(S3_JARS)/.installed: tests/audit/s3_jars.py | $(DEV)
	$(BIN)/python tests/audit/s3_jars.py $(S3_JARS)
	@touch $@

.PHONY: audit-s3-spark
audit-s3-spark: $(S3_JARS)/.installed ## the same on Spark, too, with Hadoop's jars for S3, which are 690 MB (minutes)
	TXCORE_S3_JARS=$(abspath $(S3_JARS)) $(MAKE) audit-s3

# What pyspark's extra `connect` adds to the packages of $(DEV).
CONNECT ?= $(VENV)/connect
$(CONNECT)/.installed: $(DEV)
	rm -rf $(CONNECT)
	$(PIP) install --no-deps --target $(CONNECT) "grpcio>=1.76" "grpcio-status>=1.76" "zstandard>=0.25"
	@touch $@

.PHONY: audit-connect
audit-connect: $(CONNECT)/.installed ## the audit on a Spark Connect server of this machine (minutes)
	PYTHONPATH=$(abspath $(CONNECT)) $(BIN)/pytest -q -o faulthandler_timeout=600 tests/audit/test_connect.py

.PHONY: cutover
cutover: $(FRAMEWORKS)/.installed ## move examples/from-rocketmq from a real RocketMQ to Kafka and back, with killed shops (minutes)
	PYTHONPATH=. $(FRAMEWORKS)/bin/pytest -q -s -o faulthandler_timeout=500 examples/from-rocketmq/tests

.PHONY: clean
clean: ## remove what these commands made, the virtual environment included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* .artefacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
