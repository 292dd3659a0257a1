# Two verbs set everything up on a fresh machine: `make demo` and `make test`. The rest is for daily work.

PYTHON ?= python3
VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
PYTEST ?=

# Some thousand worker processes import the same modules: they are compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-bare test-oldest lint lint-style lint-mypy lint-pyright mutants mutants-lua mutants-python simulate bench docs clean

demo: $(VENV)/made-demo
	$(BIN)/throttlekit demo $(DEMO)

# What is tested is the wheel that was built from the sdist, from another directory. Six processes, also on two cores:
# most tests wait for workers, and their time-outs hold on a far busier machine. Each more collects all tests once more.
PROCESSES ?= 6
test: $(VENV)/made-test
	cd $(VENV) && $(BIN)/python -m pytest -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) $(CURDIR)/tests -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST)

# The tests that need RabbitMQ, a browser or TLS, where none of them is installed: each skips with its reason.
BARE := $(CURDIR)/$(VENV)/bare
test-bare: $(VENV)/made-test
	rm -rf $(BARE); mkdir $(BARE)
	find /bin/ /usr/bin/ -maxdepth 1 ! -type d ! -name 'redis*' ! -name 'valkey*' ! -name 'chrom*' -exec ln -sf -t $(BARE) {} +
	cd $(VENV) && PATH=$(BARE) THROTTLEKIT_TEST_RABBITMQ=$(BARE)/rabbitmq-server $(BIN)/python -m pytest -c $(CURDIR)/pyproject.toml \
		--rootdir $(CURDIR) $(CURDIR)/tests --bare -rs -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST)

# The promises of an adapter, which real workers keep, with the oldest Celery, the oldest RQ and the newest RQ 2: each is
# laid over the newest release, which `make test` has.
test-oldest: $(VENV)/made-oldest
	set -e; cd $(VENV); for each in celery-5.4 rq-2.2 rq-2; do \
		framework=$${each%%-*} version=$${each#*-}; export PYTHONPATH=$(CURDIR)/$(VENV)/$$each; \
		$(BIN)/python -c "from importlib.metadata import version as v; assert f'{v(\"$$framework\")}.'.startswith('$$version.')"; \
		$(BIN)/python -m pytest -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) \
			$(CURDIR)/tests/adapters/contract/test_$$framework.py -n $(PROCESSES) --dist worksteal $(PYTEST); \
	done

lint: lint-style lint-mypy lint-pyright

lint-style: $(VENV)/made-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/twine check --strict dist/*

lint-mypy: $(VENV)/made-lint
	$(BIN)/mypy throttlekit adapters/throttlekit_* lua/throttlekit_lua tests/typing examples/partner.py

lint-pyright: $(VENV)/made-lint
	$(BIN)/basedpyright

# Mutants of the pure core, made by mutmut: `make mutants` for all (hours), or `make mutants OF="throttlekit/_core/line.py …"`.
# Below, the diff of each that survived. Works in mutants/, which it may use again.
OF ?= throttlekit/_core/
mutants: $(VENV)/made-mutants
	$(MUTMUT) run $(foreach path,$(OF),'$(subst /,.,$(path:.py=.x))*')
	@$(MUTMUT) results | sed -n 's/: survived//p' | while read -r name; do $(MUTMUT) show "$$name"; done

MUTMUT := PYTHONPATH=mutants/adapters:mutants/lua $(BIN)/mutmut

# Mutants of the scripts, and of the engine and the adapters, from lists by hand: `make mutants-lua OF=pause.lua`.
mutants-lua: $(VENV)/made-test
	$(BIN)/python tests/mutants.py -n 2 $(or $(filter %.lua,$(OF)),.lua)
mutants-python: $(VENV)/made-test
	$(BIN)/python tests/mutants.py -n 2 $(or $(filter %.py,$(OF)),.py)

# Runs on virtual time, each from a seed, with faults: for an hour, from a seed of the day. `make simulate MINUTES=5 FIRST=0`.
MINUTES ?= 60
FIRST ?= $(shell date +%Y%m%d)00000
simulate: $(VENV)/made-test
	$(BIN)/python tests/simulation/run.py --minutes $(MINUTES) --first $(FIRST)

bench: $(VENV)/made-bench
	$(BIN)/python tests/benchmarks/page.py docs/results/decisions.md "Results: one decision, and jobs with a limit" peers.py \
		"peers.py --hiredis --only TokenBucket" one_core.py tails.py prefetch.py throughput.py backlog.py campaign.py
	$(BIN)/python tests/benchmarks/dramatiq_flood.py --markdown docs/results/dramatiq.md $(BENCH)
	$(BIN)/python tests/benchmarks/rq_flood.py --markdown docs/results/rq.md $(BENCH)
	$(BIN)/python tests/benchmarks/celery_flood.py --markdown docs/results/celery.md $(BENCH)
	$(BIN)/python tests/benchmarks/taskiq_flood.py --markdown docs/results/taskiq.md $(BENCH)
	$(BIN)/python tests/benchmarks/huey_flood.py --markdown docs/results/huey.md $(BENCH)
	$(BIN)/python tests/benchmarks/page.py docs/results/concurrency.md "Results: concurrency, and a 429" \
		dramatiq_concurrency.py rq_concurrency.py celery_concurrency.py
	$(BIN)/python tests/benchmarks/page.py docs/results/kills.md "Results: workers that are killed" \
		"kills.py dramatiq" "kills.py celery" "kills.py taskiq" "kills.py huey"
	$(BIN)/python tests/benchmarks/faults.py --markdown docs/results/faults.md
	$(BIN)/python tests/benchmarks/page.py docs/results/waiting.md "Results: many jobs that wait" \
		"waiting_jobs.py --workers Redis --jobs 100000" "waiting_jobs.py --jobs 10000"
	$(BIN)/python tests/benchmarks/operations.py
	$(BIN)/python tests/benchmarks/expiry.py
	$(BIN)/python tests/benchmarks/shares.py --write docs
	$(BIN)/python tests/benchmarks/adapt.py --write docs
	$(BIN)/python tests/benchmarks/waitlist_cost.py
	$(BIN)/python tests/benchmarks/charts.py
	$(BIN)/python tests/benchmarks/stalls.py --write docs/guarantees.md
	$(BIN)/python tests/benchmarks/store_costs.py --into docs/store.md

# The site, in site/. Warnings are errors. (The variable silences an advertisement of the theme's.)
docs: $(VENV)/made-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:
	rm -rf $(VENV) dist build site mutants

SOURCES := $(shell find throttlekit adapters lua examples -name '*.py' -o -name '*.lua' -o -name py.typed -o -path '*/static/*.*' -o -path 'examples/*.*' ! -name '*.pyc') pyproject.toml README.md

$(VENV)/made-venv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1" build
	touch $@

$(VENV)/made-wheel: $(VENV)/made-venv $(SOURCES)
	rm -rf dist
	$(BIN)/python -m build --quiet .
	touch $@

$(VENV)/made-demo: $(VENV)/made-wheel
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps dist/*.whl
	$(BIN)/python -m pip install --quiet "$$(ls $(CURDIR)/dist/*.whl)[demo]"
	touch $@

$(VENV)/made-test: $(VENV)/made-demo
	$(BIN)/python -m pip install --quiet --group test
	touch $@

$(VENV)/made-bench: $(VENV)/made-test
	$(BIN)/python -m pip install --quiet --group bench
	touch $@

$(VENV)/made-mutants: $(VENV)/made-test
	$(BIN)/python -m pip install --quiet --group mutants
	touch $@

$(VENV)/made-oldest: $(VENV)/made-test
	$(BIN)/python -m pip install --quiet --upgrade --target $(VENV)/celery-5.4 "celery==5.4.*" "kombu==5.3.*"
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target $(VENV)/rq-2.2 "rq==2.2.*"
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target $(VENV)/rq-2 "rq==2.*"
	touch $@

$(VENV)/made-docs: $(VENV)/made-venv pyproject.toml
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

$(VENV)/made-lint: $(VENV)/made-test
	$(BIN)/python -m pip install --quiet --group lint
	touch $@
