PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LIGHT := $(VENV)/.light
# Tests wait more than they compute, so there are more workers than cores. What belongs together and what comes first is decided
# in tests/conftest.py, and kept only if xdist does not sort by the number of tests.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help

.PHONY: help
help: ## show what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

.PHONY: run
run: $(LIGHT) ## serve the embedded queue over HTTP, and tell what to try
	@$(BIN)/python examples/serve.py

.PHONY: tour
tour: $(LIGHT) ## a short tour of the library
	@$(BIN)/python examples/tour.py

.PHONY: example
example: $(READY) ## a shop on Spark: orders, totals, dead letters, a report
	@$(BIN)/python examples/shop/run.py

.PHONY: test
test: $(READY) ## set everything up and run all tests
	@tools/provision
	@tools/provide-clients $(PYTHON) $(VENV)/clients
	$(PYTEST)

.PHONY: clients
clients: $(READY) ## install the clients of SQS that the tests run: boto3, Celery, the aws CLI, those of Node
	@tools/provide-clients $(PYTHON) $(VENV)/clients

.PHONY: quick
quick: $(READY) ## run the tests that need no server and no Spark, without the slow ones
	$(PYTEST) --ignore tests/spark -m "not (slow or server or spark)"

.PHONY: check
check: $(READY) ## format, lint, types, import direction, the shape of the code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/house.py

.PHONY: format
format: $(READY) ## put the code into the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: mutants
mutants: $(READY) ## plant known faults and show that the tests catch each
	@tools/provision
	@tools/provide-clients $(PYTHON) $(VENV)/clients
	$(BIN)/python tools/mutants

.PHONY: bench
bench: $(READY) ## measure, beside the machine's limit and the peers (ARGS=--quick for a short run)
	$(BIN)/penstock bench $(ARGS)

.PHONY: pictures
pictures: $(READY) ## take the pictures of the page in the docs
	@tools/provision
	$(BIN)/python tools/pictures.py

.PHONY: lock
lock: $(READY) ## renew the locks
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --all-extras --group dev pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --extra cli --extra server --group build --constraint requirements.lock \
		pyproject.toml -o requirements-run.lock
	for clients in python python-old; do \
		$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
			--no-emit-index-url tests/clients/$$clients.in -o tests/clients/$$clients.lock; done
	@tools/provide-clients $(PYTHON) $(VENV)/clients
	cd tests/clients && PATH="$(abspath $(VENV))/clients/python/bin:$$PATH" npm update --package-lock-only \
		--omit-lockfile-registry-resolved --no-audit --no-fund

.PHONY: clean
clean: ## remove everything that was made
	rm -rf $(VENV) dist bench-results .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The locks name all that is needed: left to look for more, pip wants the newest psycopg for psycopg[pool], which no lock has.
define install
	@tools/make-venv $(PYTHON) $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
endef

$(READY): requirements.lock pyproject.toml
	$(install)

# What the service needs: Spark and the benchmark's peers are a long download.
$(LIGHT): requirements-run.lock pyproject.toml
	$(install)
