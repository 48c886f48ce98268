# Inference Optimization Lab. Bare `make` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
PRESET ?= quick
PORT ?= 8000
export NO_MKDOCS_2_WARNING := 1

record_flags = --preset $(PRESET) $(if $(ONLY),--only $(ONLY)) $(if $(DEVICE),--device $(DEVICE)) \
	$(if $(MODEL),--model "$(MODEL)") $(if $(OUT),--out "$(OUT)") $(if $(SEED),--seed $(SEED)) \
	$(if $(FORCE),--force) $(if $(ATTENTION),--attention $(ATTENTION))

.PHONY: help traces validate machine generate site serve test browser check fix bench kernels gpu carry clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo "Variables: PRESET=quick|full ONLY=a,b MODEL=path DEVICE=cuda|mps|cpu SEED=n OUT=folder FORCE=1 ATTENTION=sdpa|triton PORT=$(PORT)"

traces: $(BIN)/.record ## record every technique on this machine (skips what is up to date)
	@$(BIN)/python -m tracegen record $(record_flags)

validate: $(BIN)/.record ## check all trace files
	@$(BIN)/python -m tracegen validate

machine: $(BIN)/.record ## measure this machine's memory bandwidth and matmul rates
	@$(BIN)/python -m tracegen machine $(if $(DEVICE),--device $(DEVICE))

site: $(BIN)/.site ## build both languages into site/ from the traces there are
	@$(BIN)/python -m docs.figures.site

serve: site ## build, then show the site on http://localhost:$(PORT)
	@echo "http://localhost:$(PORT)  (Ctrl-C stops)"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory site $(PORT)

test: $(BIN)/.test browser ## all tests: model, recorder, kernels, figures, site in a real browser
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

browser: $(BIN)/.test
	@sh tests/browser/install.sh $(BIN)/python

check: $(BIN)/.dev ## lint, format and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

fix: $(BIN)/.dev ## apply lint fixes and format
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(BIN)/.test ## engine against transformers, and what recording costs (leave the machine idle)
	@$(BIN)/python -m tests.bench.engine && $(BIN)/python -m tests.bench.recorder

kernels: $(BIN)/.record ## compile every kernel ahead of time for four architectures, no GPU needed
	@$(BIN)/python -m kernels.compile

gpu: ## on a GPU machine: native tests, benches, full recording in 8 minutes (results in OUT; no network)
	@$(if $(wildcard $(BIN)/.test),$(BIN)/python,$(PYTHON)) -m kernels.gpu $(if $(OUT),--out "$(OUT)")

carry: $(BIN)/.record ## pack what `make gpu` needs on a machine without a network into .carry/
	@$(BIN)/python -m kernels.carry

clean: ## remove the built site and caches (never traces/)
	rm -rf site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis

# One stamp a dependency group: recording does not install the site, the site no torch.
$(BIN)/.record $(BIN)/.site $(BIN)/.test $(BIN)/.dev: $(BIN)/.%: pyproject.toml | $(BIN)/.pip
	$(BIN)/pip install --quiet --disable-pip-version-check --group $*
	@touch $@

$(BIN)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv .venv || \
		{ echo "python -m venv failed: on Debian or Ubuntu, apt install python3-venv" >&2; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@touch $@
