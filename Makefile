# Everything runs in .venv, which each target makes ready by itself.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
NAME ?=
KAFKAS := tests/kafkas tests/stores/test_kafka_store.py tests/readers/test_readers_exact.py \
	tests/engines/test_engine_guarantees.py tests/sinks/test_topic_faults.py
QUICK := tests/stores/test_memory.py tests/stores/test_sqlite.py tests/stores/test_sqlite_errors.py \
	tests/stores/test_urls.py tests/cli/test_help.py tests/cli/test_commands.py tests/cli/test_looking.py
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0

# Hundreds of processes import the package in the tests: each would compile all of it, where this is set.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test wide test-all quick soak histories failover sparks kafkas release-check check docs bench mutants sample simulate swarm chaos lock clean
.DEFAULT_GOAL := test

.venv/ready: requirements.lock pyproject.toml native/pyproject.toml native/hatch_build.py $(wildcard native/src/offsetkeeper_native/*.[ch] native/src/offsetkeeper_native/*.py)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "offsetkeeper needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": install one and run make PYTHON=python3.11")'
	@echo "Making .venv ready, once (about a minute)…"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@if { $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall ./native \
	&& $(BIN)/python -c 'import offsetkeeper_native; offsetkeeper_native.library()'; } >.venv/native.log 2>&1; \
	then echo "Kafka is read by the compiled reader: it was built with $${CC:-cc}."; \
	else $(BIN)/python -m pip uninstall --quiet --yes offsetkeeper-native >/dev/null 2>&1; \
	echo "Kafka is read in Python: the compiled reader could not be built, .venv/native.log says why."; fi >.venv/native
	@touch $@

demo: .venv/ready  ## kill a pipeline again and again, and prove that nothing is lost or doubled
	@cat .venv/native
	@$(BIN)/offsetkeeper demo $(ARGS)

# A JVM that shares archived classes starts in half the time, and the tests start hundreds. Without them all is as before.
.venv/classes: .venv/ready
	@echo "Archiving the classes that Kafka and Spark load, once (half a minute)…"
	@rm -rf $@
	@PYTHONPATH=tests $(BIN)/python -m fixtures.archives $@ 2>.venv/classes.log && touch $@ || { rm -rf $@; echo "…not possible: .venv/classes.log says why."; }

test: .venv/classes  ## each promise, on the real servers; three processes share the tests
	@cat .venv/native
	$(PYTEST) -m "not wide and not soak" $(ARGS)

wide: .venv/classes  ## what `make test` shows, on the slower servers too, and driver after driver killed; CI runs both
	$(PYTEST) -m "wide and not soak" $(ARGS)

test-all: test wide  ## both

quick: .venv/ready  ## rules, ledger, SQLite, memory and the commands: while you work; CI runs all of them
	$(PYTEST) -m "not soak" -q tests/unit $(QUICK) $(ARGS)

soak: .venv/classes  ## the further variants of tests that take long, before a release; CONTRIBUTING.md says which
	$(PYTEST) -m soak $(ARGS)
	OFFSETKEEPER_THOROUGH=3 $(PYTEST) -k "agree_with_a_simple_model or answers_of_a_simple_model" tests/stores $(ARGS)
	$(MAKE) histories N=1000 FAULTS=50 ARGS=
	$(MAKE) failover N=50 ARGS=
	OFFSETKEEPER_EXAMPLES=2000 $(BIN)/python -m pytest -o timeout=0 -o faulthandler_timeout=0 tests/sinks/test_exact_*.py $(ARGS)

histories: .venv/classes  ## what concurrent clients of each store are answered, against one register: N=10000, with FAULTS=200; a line of JSON each
	OFFSETKEEPER_HISTORIES=$(or $(N),10000) OFFSETKEEPER_DISTURBED=$(or $(FAULTS),200) $(BIN)/python -m pytest -q -s -o timeout=0 -o faulthandler_timeout=0 -k answered_as_by_one_register $(or $(ARGS),tests/stores)

failover: .venv/classes  ## standbys take over under running pipelines: N=50 rounds of each kind, ARGS="-k postgresql"; a line of JSON each
	OFFSETKEEPER_FAILOVERS=$(or $(N),50) $(BIN)/python -m pytest -q -s -o timeout=0 -o faulthandler_timeout=0 tests/failover $(ARGS)

sparks: .venv/ready  ## the core pipelines on Spark 3.5 to 4.3, each installed apart (5 x 0.6 GB, minutes): ARGS="3.5 4.1" for some
	OFFSETKEEPER_SPARKS="$(or $(ARGS),all)" $(BIN)/python -m pytest tests/sparks tests/checkpoints/test_checkpoint_others.py

kafkas: .venv/classes  ## the core pipelines, the store and Topic with brokers of 2.8 to 4.4 (minutes each): ARGS="2.8 4.0" for some
	@for release in $(or $(ARGS),2.8 3.9 4.0 4.3 4.4); do echo "Kafka $$release"; OFFSETKEEPER_KAFKA=$$release $(PYTEST) -m "not soak" -k "not user_without_permissions" $(KAFKAS) || exit 1; done

release-check: .venv/ready  ## wheel and sdist, built, checked, and the first pipeline on each Python from 3.11 to 3.13 that is here
	OFFSETKEEPER_RELEASE=1 $(BIN)/python -m pytest -ra tests/release $(ARGS)

check: .venv/ready  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/docs: .venv/ready docs/requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.lock
	@touch $@

docs: .venv/docs  ## the site, into docs/_build; warnings are errors
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build
	@$(BIN)/python docs/generated.py docs/_build
	@echo "Open docs/_build/index.html"

bench: .venv/ready  ## make bench NAME=reading: one benchmark, its JSON as the last line
	@test -n "$(NAME)" || { echo "make bench NAME=…, one of: $(basename $(notdir $(wildcard benchmarks/*.py)))"; exit 2; }
	@$(BIN)/python benchmarks/$(NAME).py $(ARGS)

mutants: .venv/ready  ## break the code on purpose, one breakage at a time: each must be noticed
	@$(BIN)/python mutants/breakages.py $(ARGS)

sample: .venv/ready  ## break core and engines by the operators of cosmic-ray: ARGS="--seed 32 --number 500 --minutes 30", a line of JSON each
	@$(BIN)/python mutants/sample.py $(ARGS)

simulate: .venv/ready  ## try schedules of runs, faults and operators: ARGS="--minutes 30", --break NAME, --replay …
	@$(BIN)/python mutants/simulate.py $(ARGS)

swarm: .venv/classes  ## whole lives of real pipelines, drawn by chance, and every row counted: ARGS="--minutes 10 --seed 7 --json"
	@PYTHONPATH=tests $(BIN)/python -m swarm $(ARGS)

chaos: .venv/classes  ## pipelines on a cluster of three workers; executors, drivers and servers are killed, and every row counted: ARGS="--minutes 60 --seed 7 --json"
	@PYTHONPATH=tests $(BIN)/python -m kills $(ARGS)

lock:  ## choose the versions of the development set anew
	uv pip compile --generate-hashes --no-header --all-extras --no-emit-package offsetkeeper-native --group dev pyproject.toml -o requirements.lock
	uv pip compile --python-version 3.11 --generate-hashes --no-header --group docs -c requirements.lock -o docs/requirements.lock

clean:
	rm -rf .venv .sparks .mypy_cache .ruff_cache .pytest_cache .hypothesis
