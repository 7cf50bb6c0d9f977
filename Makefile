# One place for every command; `make setup` is run by whatever needs it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools
RESEARCH := $(VENV)/.research
# Which build of torch: auto, cpu (without CUDA's gigabytes, where an index offers it) or cuda.
TORCH ?= auto
# Several small processes of one thread are faster than one of many.
export OMP_NUM_THREADS ?= 1

.PHONY: setup tools research demo demo-sites test test-all test-rest test-tenth test-slow fuzz chaos chaos-clusters chaos-sites hostile check format types serve results docs bench gpu-day clean test-floor

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python .ci/install.py --torch $(TORCH)
	touch $@

# What tests, checks and pages need besides the product.
tools: $(TOOLS)

$(TOOLS): $(STAMP)
	$(BIN)/python .ci/install.py --tools
	touch $@

# The laboratory: studies of papers, kept results and benchmarks, with the commands `shoal study` and `shoal claims`.
research: $(RESEARCH)

$(RESEARCH): $(STAMP) research/pyproject.toml
	$(BIN)/python -m pip install --quiet --no-deps --editable research
	touch $@

demo: setup
	$(BIN)/shoal demo

# A lead and three sites on this machine, over NVFlare.
demo-sites: setup
	$(BIN)/python -m tests.demo_sites

test: tools
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The oldest versions of torch, Prefect, MLflow and DVC that pyproject.toml allows, in an environment of their own (7 GB).
FLOOR := .floor
$(FLOOR)/.installed: pyproject.toml constraints.txt .ci/floor.txt
	$(PYTHON) -m venv $(FLOOR)
	grep -vE '^(torch|triton|nvidia|cuda|prefect|mlflow|dvc|packaging|python-slugify|setuptools|virtualenv)' constraints.txt > $(FLOOR)/others.txt
	$(FLOOR)/bin/python -m pip install --quiet --constraint .ci/floor.txt --constraint $(FLOOR)/others.txt \
	  --editable ".[lead,dev,dask,search,s3,team]" "setuptools>=77"
	touch $@

# TESTS=tests/methods runs a part of them.
test-floor: $(FLOOR)/.installed
	$(FLOOR)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(TESTS)

# All but the slow ones, and the tests of the laboratory.
test-all: tools research
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" tests research/tests

# What `make test` leaves out of `make test-all`.
test-rest: tools research
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "long and not slow" tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" research/tests

# A tenth of the slow tests, another one for each commit. They start servers and kill processes; one that fails beside
# another is run once more, alone.
TENTH = $(BIN)/python -m pytest -m slow --tenth $$(git rev-parse HEAD) tests research/tests
test-tenth: tools research
	$(TENTH) -n 2 --dist loadfile --no-loadscope-reorder || $(TENTH) --last-failed

test-slow: tools research
	$(BIN)/python -m pytest -m slow tests research/tests

# Broken inputs for every reader of outside bytes; ends with a table.
fuzz: tools
	$(BIN)/python -m tests.fuzz.run --count $(or $(COUNT),100000)

# Runs that are killed, moved, stopped and starved, over every method; sets of the user's own that are killed while they
# are replaced (a third as many); whole nights that are killed (a seventh); and damaged files of finished runs for every
# reader. The tables go to results/chaos.
chaos: tools
	$(BIN)/python -m tests.chaos --count $(or $(COUNT),300)
	$(BIN)/python -m tests.chaos --damage --count $(or $(COUNT),300)

# Runs on Dask clusters whose parts are killed and stopped: their table goes to results/chaos.
chaos-clusters: tools
	$(BIN)/python -m tests.chaos --clusters --count $(or $(COUNT),20)

# Sites over NVFlare whose parts die, lie and refuse: their table goes to docs/reliability.md.
chaos-sites: tools
	$(BIN)/python -m tests.chaos.on_network

check: tools
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: tools
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: tools
	$(BIN)/mypy

serve: setup
	$(BIN)/shoal serve

# The tables and claims on the pages of results, from research/shoal_research/results.
results: research
	$(BIN)/shoal claims --write > /dev/null

# The documentation as a site, in docs/_build; any warning is an error.
docs: tools
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo "docs/_build/index.html"

# Flower and pfl live in an environment of their own: their pins are not ours.
PEERS := .bench
$(PEERS)/.installed:
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet "torch==$$($(BIN)/python -c 'import torch; print(torch.__version__.split("+")[0])')" "flwr[simulation]" pfl
	touch $@

bench: tools research
	$(MAKE) $(PEERS)/.installed || echo "without Flower and pfl: they could not be installed"
	mkdir -p results/bench
	env -u OMP_NUM_THREADS $(BIN)/python -m shoal_research.benchmarks.peers --json results/bench/peers.json \
	  $$(test -e $(PEERS)/.installed && echo --peers $(PEERS)/bin/python) > results/bench/peers.md
	$(BIN)/python -m shoal_research.benchmarks.many_clients --plot results/bench/clients.png > results/bench/clients.md
	$(BIN)/python -m shoal_research.benchmarks.orchestration > results/bench/orchestration.md
	$(BIN)/python -m shoal_research.benchmarks.command_line > results/bench/command_line.md
	$(BIN)/python -m shoal_research.benchmarks.steps > results/bench/steps.md
	$(BIN)/python -m shoal_research.benchmarks.profile_round > results/bench/profile.md
	$(BIN)/python -m shoal_research.benchmarks.device > results/bench/device.md
	cat results/bench/*.md

# What needs a GPU, MINUTES at a time: goes on where it was stopped, and fails while anything is left.
gpu-day: tools research
	$(BIN)/python -m shoal_research.benchmarks.gpu_day --minutes $(or $(MINUTES),9)

# One hostile client in every method, in every way: fails where one ends a run. Before that, what pages of another origin
# and another user of the machine try; two users are tried as root.
hostile: tools research
	mkdir -p results/hostile
	$(BIN)/python -m tests.outsiders --out results/hostile
	$(BIN)/python -m tests.hostile --json results/hostile/outcomes.json > results/hostile/outcomes.md
	cat results/hostile/outcomes.md

clean:
	rm -rf $(VENV) $(PEERS) $(FLOOR) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
