# `make demo` and `make test` are all that a fresh machine with Python 3.11 or newer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS := 1
# compiled files are kept, whatever the shell says: every process that a test starts would compile them again
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo deploy-demo test test-slow test-all coverage lint format tables results evidence docs docs-serve dist version bench bench-peers trials mutants clean

demo: $(VENV)/installed
	$(BIN)/fedgraft compare ditto fedper --dataset digits --clients 13 --partition blocks:train=40 --model mlp:64 --rounds 20 --batch-size 10 --evaluate-every 5 --seeds 3 --by-client --report

deploy-demo: $(VENV)/installed-flower
	$(BIN)/fedgraft deploy demo

# what tests write lies in memory, where there is room: a run forces its files to the disk, and thousands of tests would wait for that
ROOM := $(shell awk '$$2 == "/dev/shm" && $$4 !~ /noexec/' /proc/mounts 2> /dev/null | grep -q . && \
	test $$(df -kP /dev/shm | awk 'NR == 2 {print $$4}') -gt 4000000 && echo TMPDIR=/dev/shm)
# more processes than cores: many tests wait for others, or for a clock
AT_ONCE ?= 3
PYTEST := $(ROOM) $(BIN)/python -m pytest -n $(AT_ONCE) --dist loadgroup

# WHICH takes in others: 'not long' has the slow ones in the same session, as before anything lands
WHICH ?= not slow
test: $(VENV)/installed-dev
	$(PYTEST) -m '$(WHICH)'

# federations of real processes, the site in a browser, the tutorials, methods that learn digits
test-slow: $(VENV)/installed-dev
	$(PYTEST) -m 'slow and not long'

# every test: also federations that are killed and started again, which take too long for every change
test-all: $(VENV)/installed-dev
	$(PYTEST) -m ''

coverage: $(VENV)/installed-dev
	$(PYTEST) --cov --cov-report=term

# the site in build/site, from docs/, the code and the tutorials, which are run for it; a broken link is an error
docs: $(VENV)/installed-dev
	$(BIN)/python -m website build

docs-serve: $(VENV)/installed-dev
	$(BIN)/python -m website serve --quick

# sources and wheels in dist/, each installed elsewhere and tested
dist: $(VENV)/installed-release
	$(BIN)/python -m release

# the version and its day in the package, CITATION.cff and the changelog, before the commit that is tagged
version:
	$(PYTHON) -m release.cut $(VERSION) $(if $(DATE),--date $(DATE))

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

# the tables of methods, models, datasets, schemes and of what crosses, from the code
tables: $(VENV)/installed-dev
	$(BIN)/python -m docs.tables

# the pages of docs/results from the measurements beside them; FROM=DIR takes in finished runs first, BOARD=DIR a board
results: $(VENV)/installed-dev
	$(BIN)/python -m docs.evidence $(if $(FROM),--from $(FROM)) $(if $(BOARD),--board $(BOARD))
	$(BIN)/python -m docs.tables

# the measurements that are wanted next (docs/results/agenda.toml), at low priority; started twice, two processes share the work
evidence: $(VENV)/installed-dev
	nice -n 19 $(BIN)/python -m docs.agenda

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.kernels --quick
	$(BIN)/python -m benchmarks

# other libraries on the same work, each installed into .bench/
bench-peers: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks peers

# reliability by hand: 10,000 cases for each reader, every attack, 50 kills, 1,000 rounds, every break of a contract (docs/reliability.md)
trials: $(VENV)/installed-dev
	$(BIN)/python -W ignore -m trials.fuzz
	$(BIN)/python -W ignore -m trials.attack
	$(BIN)/python -m trials.crash
	$(BIN)/python -m trials.soak
	$(BIN)/python -m trials.mutations

# small changes to core/ and methods/ that the tests have to notice; all of them take hours
MUTANTS ?= fedgraft.*
mutants: $(VENV)/installed-mutants
	$(BIN)/mutmut run $(foreach name,$(MUTANTS),'$(name)')
	$(BIN)/mutmut results

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# compiled anew when they have changed
KERNELS := $(wildcard src/fedgraft/kernels/*.cpp src/fedgraft/kernels/*.h)

$(VENV)/installed: pyproject.toml constraints.txt $(KERNELS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing (a minute or two on a fresh machine) ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-flower: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[flower]'
	touch $@

# with everything that the plain installation has: the kernels are built once
$(VENV)/installed-dev: pyproject.toml constraints.txt $(KERNELS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing (a few minutes on a fresh machine) ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(VENV)/installed $@

$(VENV)/installed-release: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[release]'
	touch $@

$(VENV)/installed-mutants: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[mutants]'
	touch $@

clean:
	rm -rf $(VENV) .bench mutants build .pytest_cache .mypy_cache .ruff_cache .hypothesis
