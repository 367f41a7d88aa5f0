# The two commands: `make demo` and `make test`. Both set up `.venv` first, once.

PYTHON ?= python3
# Options for installing PyTorch alone, for example an index of CPU builds.
TORCH_PIP_OPTIONS ?=
# Options for pytest, for example `make test PYTEST_OPTIONS='-k theory -x'`.
PYTEST_OPTIONS ?=
# How many cases `make fuzz` tries, and their seed.
CASES ?= 2000
SEED ?= 0
# The address of the repository, for the links of the description that the package index shows.
REPOSITORY ?=
# Where `make demo` writes.
OUTPUT ?= build/demo

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
EXTRAS := dev,docs,experiments
EXPERIMENTS := $(filter-out common,$(notdir $(patsubst %/__main__.py,%,$(wildcard experiments/*/__main__.py))))

# On some virtual machines oneDNN dispatches bfloat16 products to instructions that the processor lacks.
# The gate must not depend on the machine. The library itself never sets this.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16
export SHARPMAX_REPOSITORY := $(REPOSITORY)

.DEFAULT_GOAL := help
.PHONY: help setup demo tables figures fuzz test lint types docs notebooks wheel release format clean

help: ## Show the targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv and install exact versions of what the gate and the demo need.

# The stamp is written last and removed first. An interrupted set-up leaves no stamp, so the next one
# starts from an empty environment.
$(READY): pyproject.toml requirements/torch.txt requirements/dev.txt requirements/clrs.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "sharpmax needs Python 3.11 or later, and $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>&1); choose another: make setup PYTHON=python3.12" >&2; exit 1; }
	@test -e $(READY) || { echo "Making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@rm -f $(READY)
	@echo "Installing PyTorch"
	@$(PIP) install $(TORCH_PIP_OPTIONS) -r requirements/torch.txt -c requirements/dev.txt
	@echo "Installing everything else"
	@$(PIP) install -r requirements/dev.txt -c requirements/torch.txt
	@$(PIP) install --no-build-isolation -e '.[$(EXTRAS)]' -c requirements/torch.txt
	@$(PIP) install --no-deps -r requirements/clrs.txt
	@touch $(READY)

demo: $(READY) ## Set up and run the main job: heads that disperse, and heads that stay sharp.
	$(BIN)/python -m experiments.max_retrieval demo --output $(OUTPUT)

tables: $(READY) ## Fill the tables of the documents from the results of the experiments.
	$(BIN)/python -m experiments.common.documents

figures: $(READY) ## Draw the figures of the documents from the results of the experiments.
	@for name in $(EXPERIMENTS); do $(BIN)/python -m experiments.$$name figures || exit 1; done

test: lint types ## Set up and run the whole gate: lint, format, types, doctests, tests.
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile $(PYTEST_OPTIONS)

fuzz: $(READY) ## Compare attention with an oracle on CASES random problems; resumes an earlier run of SEED.
	$(BIN)/python -m experiments.reliability run --cases $(CASES) --seed $(SEED) --output build/reliability/$(SEED) --resume

lint: $(READY) ## Check style and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Check types.
	$(BIN)/mypy

docs: $(READY) ## Build the site strictly into build/site/html.
	$(BIN)/python scripts/build_site.py

notebooks: $(READY) ## Run the notebooks of docs/notebooks and keep their outputs in them.
	$(BIN)/python scripts/run_notebooks.py

wheel: $(READY) ## Build wheels with compiled kernels and the sdist into dist, and try the wheel of this machine.
	@$(PIP) install -r requirements/wheel.txt
	@rm -rf dist
	$(BIN)/python scripts/build_wheel.py
	SHARPMAX_WHEEL=$$(ls dist/*_$$(uname -m).whl) $(BIN)/python -m pytest -n 0 -s tests/test_wheel.py

release: wheel ## Build as `wheel` does, and check contents, README, citation and installation.
	$(BIN)/python scripts/check_release.py

format: $(READY) ## Format, and repair what can be repaired.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove everything that can be made again, .venv included.
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src experiments tests -type d -name __pycache__ -prune -exec rm -rf {} +
