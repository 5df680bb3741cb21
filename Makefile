# Everything starts here: `make demo` and `make test` set up what they need, once.
# Where there is no make (Windows), README.md gives the same steps as pip lines.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
MODEL := smollm2-135m
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq  # errors only

# The first interpreter that is new enough; `make PYTHON=/path/to/python` overrules.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null \
	&& { echo "$$python"; break; }; done)

# Two workers with one thread each: a worker with all cores would slow the other one down.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
COMMAND := $(BIN)/infra-lab

.PHONY: help setup model demo test test-all lint docs docs-serve docs-check bench lock clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamp is as old as the last install; a changed lock or pyproject.toml makes it stale.
$(STAMP): requirements.lock pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "infra-lab needs Python 3.11 to 3.14 and found none on PATH." >&2; \
		echo "Install one (https://www.python.org/downloads) or run: make PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "infra-lab needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" --version 2>&1)." >&2; \
		echo "Run: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up $(VENV) (once, some minutes: torch is large)"
	@"$(PYTHON)" -m venv $(VENV) || { \
		echo "could not make $(VENV): on Debian and Ubuntu run apt install python3-venv" >&2; exit 1; }
	@echo "installing the locked requirements"
	@$(PIP) install -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

setup: $(STAMP)  ## make .venv with everything installed

model: $(STAMP)
	@$(COMMAND) models pull $(MODEL) --quiet-if-present

demo: model  ## set up, then watch eight chat prompts answered at once
	@$(COMMAND) demo

test: model  ## set up, then run the tests (minutes)
	@echo "running the tests"
	@$(PYTEST)

test-all: model  ## the tests and the slow ones too
	@echo "running all tests"
	@$(PYTEST) -m ""

lint: $(STAMP)  ## ruff, its formatter in check mode, and mypy
	@echo "checking style, format and types"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# One build a language, so that a search finds pages of one language only.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
MKDOCS_FILE := $(if $(filter zh,$(LANGUAGE)),mkdocs.zh.yml,mkdocs.yml)

# With --quiet a warning is not logged, and --strict counts none: what is no news is cut out here,
# and the exit status of the build kept.
NO_NEWS := ^INFO|^$$

docs: docs-check  ## build the site in both languages into site/
	@for config in mkdocs.yml mkdocs.zh.yml; do \
		{ $(MKDOCS) build --strict --config-file $$config 2>&1; printf '\nstatus %s\n' "$$?"; } \
		| awk 'BEGIN { status = 1 } /^status [0-9]+$$/ { status = $$2; next } !/$(NO_NEWS)/ { print } \
			END { exit status }' || exit; done
	@echo "to read it: $(BIN)/python -m http.server --directory site 8000"

docs-serve: $(STAMP)  ## serve the site and rebuild as pages change (LANGUAGE=zh: the Chinese one)
	@$(if $(and $(filter command%,$(origin LANGUAGE)),$(filter-out en zh,$(LANGUAGE))), \
		{ echo "LANGUAGE must be en or zh: $(LANGUAGE) is neither" >&2; exit 1; })
	@$(MKDOCS) serve --config-file $(MKDOCS_FILE)

docs-check: $(STAMP)  ## what is wrong with the site's pages, file and line
	@$(BIN)/python -m docs.hooks.check

bench: model  ## measure the engine's throughput and latency here
	@$(COMMAND) bench throughput
	@$(COMMAND) bench latency

# Needs uv on PATH. CUDA libraries are dropped: torch's GPU build pins its own. Markers for
# systems that torch has no build for (emscripten, PyPy) are dropped with them.
lock:  ## resolve requirements.in into requirements.lock
	@command -v uv >/dev/null || { echo "make lock needs uv (https://docs.astral.sh/uv)" >&2; exit 1; }
	@uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header \
		requirements.in -o requirements.lock.new
	@{ sed -n '/^#/p' requirements.lock; \
	sed -E -e '/^(nvidia|cuda)-/d' -e "/== 'emscripten'/d" \
		-e "s/ ; sys_platform != 'emscripten'$$//" \
		-e "s/ ; platform_python_implementation != 'PyPy'$$//" requirements.lock.new; \
		} > requirements.lock.newer
	@rm requirements.lock.new
	@mv requirements.lock.newer requirements.lock

clean:  ## remove .venv, site/ and what tools leave behind (models in the user's cache stay)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
