# Two commands matter: `make run` bisects the quickstart, `make test` passes the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOWEST := .venv-lowest
OLDER  := tests/trials tests/cluster tests/cli tests/test_running.py
STAMP  := $(VENV)/.setup-stamp

# With bytecode kept, the hundreds of processes that tests start need not compile what they import.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test words test-all test-fast test-lowest test-older test-new lint format cases cases-heavy bench soak bench-search lock schema reference docs clean

help:           ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything pinned (does nothing when nothing changed)

# uv's own pins are cut out of requirements.lock, so that even the installer is verified by hash.
$(STAMP): pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "bisect-env needs Python 3.11 or newer: make PYTHON=python3.12 setup")'
	@awk '/^[a-z0-9]/ {keep = /^uv==/} keep' requirements.lock > $(VENV)/uv-requirements.txt
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --require-hashes --no-deps -r $(VENV)/uv-requirements.txt
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
# uv leaves no bytecode behind: what the commands load is compiled once, here, by loading it.
	@$(BIN)/python -m tools.bytecode
	@touch $@

run: setup      ## bisect a real flaky crash: matrices/quickstart.yaml
	$(BIN)/bisect-env run matrices/quickstart.yaml

test: setup     ## run the tests that every change must pass
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: setup ## run what `make test` leaves out: slow tests, and studies with a planted truth by the hundred
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "(slow or statistical) and not heavy"

test-fast: setup ## run the unit tests alone
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not integration and not network and not slow and not statistical and not heavy"

test-lowest: setup ## run the unit tests with the lowest versions that pyproject.toml allows
	@rm -rf $(LOWEST) && $(BIN)/uv venv --quiet -p $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet -p $(LOWEST)/bin/python --resolution lowest-direct --editable . --group dev
	$(LOWEST)/bin/python -m pytest -q -n 2 --dist worksteal -m "not integration and not network and not slow and not statistical and not heavy"

test-older: setup ## run tests without what older Pythons lack, then without what older kernels lack
	$(BIN)/python -m tests.older_host names $(BIN)/python -m pytest -q -n 2 --dist worksteal $(OLDER)
	$(BIN)/python -m tests.older_host calls $(BIN)/python -m pytest -q -n 2 --dist worksteal $(OLDER)

test-new:       ## run the tests of trials under Python 3.14 and 3.15, from a Debian sid (as root)
	tests/new_pythons.sh tests/trials

lint: setup     ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup   ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cases: setup    ## bisect every real regression in matrices/ and compare with the known answers
	$(BIN)/python -m tests.cases.run_cases
	$(BIN)/python -m tests.cases.run_asked

cases-heavy: setup ## the same for the cases with wheels of 500 MB and more
	$(BIN)/python -m tests.cases.run_cases --heavy

bench: setup    ## measure what running trials costs beside the trials (REPODATA=DIR: real conda channels, too)
	$(BIN)/python -m benchmarks.cluster
	$(BIN)/python -m benchmarks.environments
	$(BIN)/python -m benchmarks.database
	$(BIN)/python -m benchmarks.harness
	$(if $(REPODATA),$(BIN)/python -m benchmarks.real_metadata $(REPODATA))

soak: setup     ## play faults at random instants of studies for ten minutes (ARGS="--minutes 60 --seed 7")
	$(BIN)/python -m benchmarks.faults $(ARGS)

bench-search: setup ## compare the search with git_bayesect on planted truths (ARGS="--studies 300": hours)
	$(BIN)/python -m benchmarks.search --studies 20 $(ARGS)
	$(BIN)/python -m benchmarks.answers

schema: setup   ## write matrices/schema.json and docs/reference/report-schema.json
	$(BIN)/bisect-env plan --schema > matrices/schema.json
	$(BIN)/bisect-env report --schema --output docs/reference/report-schema.json

reference: setup ## write the parts of docs/ that follow from the code
	$(BIN)/python -m tools.reference_pages
	$(BIN)/python -m tools.outcomes_page

words: setup    ## write tests/words: the words of help and messages that tests hold
	BISECT_ENV_WRITE_WORDS=1 $(BIN)/python -m pytest -q tests/test_words.py

docs: setup     ## build the documentation as a site: docs/_site/index.html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_site

lock:           ## renew requirements.lock from pyproject.toml
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --group dev pyproject.toml -o requirements.lock

clean:          ## remove the virtual environment and every cache of the tools
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist docs/_site *.egg-info
