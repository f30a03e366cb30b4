# HoltMQ's verbs. `make` alone lists them. Everything runs inside .venv, which the verbs build when needed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# Extra arguments for pytest or `holt serve`: make test ARGS="tests/journal -x"
ARGS ?=

.PHONY: help setup setup-run setup-test check format test e2e soak soak-spark soak-failover damage reliability differential frameworks bench screenshots bench-spark dist docs demo run clean

help: ## List the verbs
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: ## Create .venv with the package and the development tools
	@scripts/setup.sh dev

setup-run:
	@scripts/setup.sh run

setup-test: setup
	@scripts/setup-system.sh

check: setup ## Format, lint, types (mypy strict), import rules
	@$(BIN)/ruff format --check src tests $(wildcard bench scripts)
	$(BIN)/ruff check src tests $(wildcard bench scripts)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Reformat and fix what ruff can fix
	@$(BIN)/ruff check --fix-only --quiet src tests $(wildcard bench scripts)
	$(BIN)/ruff format src tests $(wildcard bench scripts)

test: setup-test ## Install what the tests need, then run all of them
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

e2e: setup-test ## Run only the tests with real clients against a real broker
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/e2e $(ARGS)

soak: setup ## Simulated histories on all cores for MINUTES (10), from a new seed on: make soak MINUTES=480
	@PYTHONPATH=tests $(BIN)/python -m simulation --first $$(date +%s) --minutes $${MINUTES:-10} $(ARGS)

soak-spark: setup-test ## Kill Spark, archivers and the broker for ROUNDS (20): every sink exactly once
	@HOLT_SPARK_CRASH_ROUNDS=$${ROUNDS:-20} $(BIN)/python -m pytest --timeout 14400 tests/spark/test_spark_crashes.py \
	  tests/spark/lake/test_lake_crashes.py $(ARGS)

soak-failover: setup-test ## Bring FAULTS (210) faults upon two nodes and a PostgreSQL; in parts: ARGS="--minutes 25 --sum FILE"
	@PYTHONPATH=tests $(BIN)/python -m failover_soak --faults $${FAULTS:-210} $(ARGS)

damage: setup ## Damage data folders in CASES (200) ways, run a broker on each and drain it
	@PYTHONPATH=tests $(BIN)/python -m damage --cases $${CASES:-200} $(ARGS)

screenshots: setup-test ## Take pictures of every page of the dashboard, into ./screenshots
	@$(BIN)/python scripts/screenshots.py $(ARGS)

reliability: setup-test ## Try all that docs/reliability.md claims and print one table; SCALE=0.1 is a tenth of it
	@$(BIN)/python -m bench.reliability --scale $${SCALE:-1} $(ARGS)

differential: setup-test ## Play SEEDS (200) random sequences of methods on RabbitMQ and HoltMQ and compare every reply
	@for about in queues streams expiry; do
	  PYTHONPATH=tests $(BIN)/python -m differential --about $$about --first $$(date +%s) --seeds $${SEEDS:-200} $(ARGS)
	done

frameworks: setup-test ## Run the frameworks' hello worlds (dramatiq, taskiq, nameko, NestJS, rascal, ...) and clients in Go, Ruby, PHP
	@scripts/setup-frameworks.sh
	HOLT_TEST_FRAMEWORKS=$(CURDIR)/.venv-frameworks/bin/python $(BIN)/python -m pytest tests/e2e/frameworks $(ARGS)

bench: setup-test ## Measure: prints ratios, writes to bench/results
	@test -d bench || { echo "there is no bench/ folder in this version" >&2; exit 1; }
	$(BIN)/python -m bench $(ARGS)

bench-spark: setup-test ## Measure the Spark source and sink against their ceilings
	@$(BIN)/python -m bench.spark $(ARGS)

dist: setup ## Build sdist and wheel into dist/, check them, run the wheel alone in a clean environment
	@rm -rf dist build/dist-venv
	$(BIN)/python -m build --quiet --no-isolation --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m venv --clear build/dist-venv
	build/dist-venv/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	$(BIN)/python scripts/try_wheel.py build/dist-venv/bin/python

docs: setup ## Build the documentation as a site into site/; broken links and anchors are errors
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet it would not be strict
	echo "site/index.html"

demo: setup-test ## See it all: broker, orders, groups, then archive, rollup and a report on Spark
	@$(BIN)/python scripts/demo.py $(ARGS)

run: setup-run ## Start a broker here, with its data in ./holt-data (or HOLT_DATA_DIR)
	@exec $(BIN)/holt serve $(ARGS)

clean: ## Remove .venv and every cache (never data)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache site tests/e2e/node/node_modules tests/e2e/frameworks/node/node_modules .venv-frameworks
