# jobrunner: `make demo` shows it at work on this machine alone, `make test` runs the tests.
# PYTHON=/path/to/python3 chooses the interpreter (3.10 or newer).

PYTHON ?=
PYTEST_ARGS ?=
WORKERS ?= 3
export PYTHON
.DEFAULT_GOAL := help
.PHONY: help demo demo-stop test faults bench check format clean venv dev

help:
	@echo "make demo       a host with simulated cards on this machine: submit, follow and fetch a training job"
	@echo "               (DEMO_ARGS=--sweep, DEMO_ARGS=--schedule: other stories; DEMO_ARGS=--keep leaves the host running)"
	@echo "make demo-stop  end what 'make demo' has left running"
	@echo "make test       the whole test suite      (PYTEST_ARGS='-k logs -x' for a part of it)"
	@echo "make bench      timings beside rsync, ssh, scp, task-spooler, Slurm (BENCH_ARGS='--only submit'); see benchmarks/README.md"
	@echo "make faults     seeded faults over whole lives of jobs: N=500 SEED=1 JOBS=4 (needs Linux; root for reboots and full disks)"
	@echo "make check      linters, types, layers, and that the agent is fit for Python 3.6"
	@echo "make format     bring the layout of the code in order"
	@echo "make clean      remove what the others made"

venv:
	@sh scripts/bootstrap.sh demo

dev:
	@sh scripts/bootstrap.sh dev,demo,sweep

# The demo's host, ledger and checkpoints lie in .demo: nothing of your own is read or changed.
demo: venv
	@JOBRUNNER_DEMO_BY=make JOBRUNNER_HOME="$(CURDIR)/.demo" .venv/bin/python -m jobrunner demo $(DEMO_ARGS)

demo-stop: venv
	@JOBRUNNER_HOME="$(CURDIR)/.demo" .venv/bin/python -m jobrunner demo --stop

# One file of tests stays on one worker: what a file shares (hosts, namespaces) is started once; the long files come first
# (tests/conftest.py). Tests wait more than they compute, so that three workers suit two cores. What fails beside other
# tests is tried once more alone, and said: real processes on a busy machine can be late. What fails again has failed.
test: dev
	@sh scripts/system_packages.sh
	@.venv/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -q $(PYTEST_ARGS) || { \
	    code=$$?; [ $$code -eq 1 ] || exit $$code; \
	    echo "FAILED BESIDE OTHERS, once more alone:" >&2; \
	    .venv/bin/python -m pytest -q --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }

bench: dev
	.venv/bin/python benchmarks/run.py $(BENCH_ARGS)

# Any number of scenarios from any seed on; each prints what happened if something did not hold. See docs/faults.md.
# From a hundred on, also what takes minutes: 64 processes that write 200 times each to one ledger while some are killed,
# a network that is gone for three minutes, and ten sweeps that are killed twelve times each.
N ?= 100
SEED ?= 1
JOBS ?= 4
faults: dev
	.venv/bin/python -m tests.faults $(N) $(SEED) --jobs $(JOBS)
	@[ $(N) -lt 100 ] || FULL=1 .venv/bin/python -m pytest -q -rP -n 2 tests/unit/test_truth_ledger.py tests/faults/test_long_loss.py \
	    tests/ssh/test_dead_links.py tests/agent/test_share_users.py tests/faults/test_sweep_kills.py tests/e2e/test_sweeps.py

check: dev
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy
	.venv/bin/lint-imports
	sh scripts/check_agent.sh
	.venv/bin/python scripts/check_sizes.py

format: dev
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .

clean:
	-@if [ -x .venv/bin/python ] && [ -d .demo ]; then JOBRUNNER_HOME="$(CURDIR)/.demo" .venv/bin/python -m jobrunner demo --stop; fi
	rm -rf .venv build dist .demo *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
