# Every target creates and uses the virtual environment .venv; only Python 3.11 or newer and make are needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# Without --no-compile pip would compile all of torch and Ray, which takes longer than to compile what is imported.

export PYTHONDONTWRITEBYTECODE =
# Empty, whatever the environment says: workers would otherwise compile the sources again each time one starts.

.PHONY: help race show-race test test-shuffled test-portable test-adapters warm-bytecode warm-kernels check wheel format docs bench-simulation bench-engines bench-training bench-methods golden mutants clean

help:
	@echo "make race              compare five methods with real workers (about two minutes)"
	@echo "make show-race         make race, and write its figure and table into README and the start page"
	@echo "make test              run the tests"
	@echo "make test-portable     run the tests of real workers in portable mode, as on macOS (ten minutes)"
	@echo "make test-shuffled     run the tests in random order; NOWAIT_SHUFFLE=7 sets the seed"
	@echo "make test-adapters     run the tests that use transformers, peft and Lightning"
	@echo "make check             check format, lint, types, layers and docs"
	@echo "make wheel             build the wheel and test it in an empty environment"
	@echo "make format            format the code and apply automatic fixes"
	@echo "make docs              build the site from docs/ into site/"
	@echo "make bench-engines     speed of real workers, local and on Ray, relative to baselines (installs Ray; ten minutes)"
	@echo "make bench-training    time to an accuracy: DistributedDataParallel and nowait; memory and stalls (ten minutes)"
	@echo "make bench-methods     all methods on the full suite: the results in docs/bench (an hour)"
	@echo "make mutants           make 60 small breaking changes and count how many the tests catch (half an hour)"
	@echo "make golden            rewrite the golden tables of methods and runs after an intended change"
	@echo "make bench-simulation  speed of simulations relative to a plain loop (three minutes)"

race: $(VENV)/.installed
	$(BIN)/nowait race

show-race: $(VENV)/.installed-dev # the figure and the tables of README and docs/index.md
	rm -rf runs/shown
	$(BIN)/nowait race --folder runs/shown
	$(BIN)/python docs_tools/show_race.py runs/shown

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 4 --dist worksteal

test-shuffled: $(VENV)/.installed-dev
	NOWAIT_SHUFFLE=$${NOWAIT_SHUFFLE:-1} PYTHONPATH=tests $(BIN)/python -m pytest -n 3 --dist worksteal -p shuffled

test-portable: $(VENV)/.installed-dev
	NOWAIT_PORTABLE=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/processes tests/fleet tests/engines

test-adapters: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/pytorch/test_adapters.py tests/test_examples.py

# What processes of `make test` would otherwise compile at the same time, each for itself. What fails here fails there, too.
warm-bytecode: $(VENV)/.installed-dev
	-$(BIN)/python -m pytest -n 0 --collect-only -qq > /dev/null

warm-kernels: $(VENV)/.installed-dev
	-$(BIN)/python tests/golden.py --check

wheel: | $(BIN)/python
	$(BIN)/python .ci/wheel.py

check: $(VENV)/.installed-dev docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench-simulation: $(VENV)/.installed
	$(BIN)/python benchmarks/simulation.py
	$(BIN)/python benchmarks/simulation.py huge

bench-engines: $(VENV)/.installed-ray
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/large_params.py
	$(BIN)/python benchmarks/network.py
	$(BIN)/python benchmarks/joining.py
	$(BIN)/python benchmarks/cluster.py

bench-training: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/training_costs.py

bench-methods: $(VENV)/.installed-dev
	$(BIN)/nowait bench --tier full --page docs/bench

mutants: $(VENV)/.installed-dev
	$(BIN)/python tests/mutants.py

golden: $(VENV)/.installed-dev
	$(BIN)/python tests/golden.py

clean:
	rm -rf $(VENV) site

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "nowait needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv --upgrade-deps $(VENV)
# --upgrade-deps: the pip that comes with Python 3.11 takes twice as long to choose versions.

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-ray: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[ray]'
	@touch $@ $(VENV)/.installed
