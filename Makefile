# The commands of this project. `make help` lists them.
# Everything is installed into .venv from requirements.lock (hashes, no addresses); nothing outside the checkout changes.

PYTHON ?= $(shell test -x /usr/bin/python3 && echo /usr/bin/python3 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export UV_PYTHON_DOWNLOADS = never

.DEFAULT_GOAL := help

help: ## list these commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## install everything into .venv, locked by hash
$(STAMP): requirements.lock requirements-uv.lock pyproject.toml
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh deploy/dev/install.sh
	@touch $@

lock: ## resolve requirements.lock anew from pyproject.toml
	@$(BIN)/uv pip compile pyproject.toml --extra all-in-one --group dev --universal --generate-hashes --no-header --no-annotate -q -o requirements.lock
	@$(BIN)/uv pip compile pyproject.toml --extra kokoro -c requirements.lock --universal --generate-hashes --no-header --no-annotate -q -o deploy/kokoro/requirements.lock
	@$(BIN)/uv pip compile pyproject.toml --extra kokoro --extra kokoro-weights -c requirements.lock --universal --generate-hashes --no-header --no-annotate -q -o deploy/kokoro/requirements-build.lock

test: $(STAMP) sdks ## the whole suite
	@$(BIN)/python -m pytest tests

check: $(STAMP) ## lint, types, import rules, dependencies, licences
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python deploy/dev/native.py --check
	@$(BIN)/lint-imports
	@$(BIN)/deptry .
	@$(BIN)/python deploy/dev/licences.py

format: $(STAMP) ## format and fix what can be fixed
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

demo: $(STAMP) ## start everything on loopback and speak through it; ONCE=1 exits afterwards
	@$(BIN)/glottis demo $(if $(ONCE),--once) $(if $(DATA_DIR),--data-dir $(DATA_DIR))

sdks: $(STAMP) ## install the other clients that the tests speak with into .cache/sdks (750 MB), locked by hash; `make test` does too
	@$(BIN)/python -m tests.kit.sdks $(if $(LOCK),--lock)

explore: $(STAMP) sdks ## the whole suite in another order and with other examples, drawn anew; OPTIONS="tests/property"
	@GLOTTIS_EXPLORE=1 $(BIN)/python -m pytest --randomly-seed=$$(date +%s) $(or $(OPTIONS),tests)

fault: $(STAMP) ## the whole crash matrix: every process killed, every wire broken, alone and in sequences (about 8 minutes)
	@GLOTTIS_FAULTS=all $(BIN)/python -m pytest tests/fault $(OPTIONS)

fuzz: $(STAMP) ## fuzz every parser for SECONDS (60) a target, two at once; what fails is kept and replayed by the tests; TARGETS="policy http1/request" SEED=1
	@$(BIN)/python -m tests.fuzz $(TARGETS) --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(OPTIONS)

native: $(STAMP) ## compile the gateway's hot modules into build/native (a C compiler, python3-dev); see docs/operations.md
	@$(BIN)/python deploy/dev/native.py

test-native: native ## the tests of the core and of the edge against the compiled modules
	@$(BIN)/python -m pytest -o pythonpath="build/native ." $(NATIVE_TESTS)

NATIVE_TESTS := tests/unit/policy tests/unit/session tests/unit/upstream tests/unit/edge_http tests/unit/gateway_state \
	tests/property/policy tests/property/session tests/property/gateway_state \
	tests/component/edge_http tests/component/edge_websocket tests/component/gateway_state

bench: $(STAMP) ## the gateway beside Envoy and nginx (writes docs/benchmarks.md), and usage; OPTIONS="--rounds 5 --only http"
	@$(BIN)/python -m tests.bench.policy.tokens
	@$(BIN)/python -m tests.bench.gateway.side_by_side $(OPTIONS)
	@$(if $(OPTIONS),:,$(BIN)/python -m tests.bench.usage.intake)

bench-tokens: $(STAMP) ## what it costs to know a caller: a token at first sight, and one that was seen before
	@$(BIN)/python -m tests.bench.policy.tokens $(OPTIONS)

bench-hot-path: $(STAMP) ## what one exchange costs in the process, without sockets; OPTIONS="--only tts"
	@$(BIN)/python -m tests.bench.gateway_state.hot_path $(OPTIONS)

bench-memory: $(STAMP) ## what idle sessions, slow readers, aborted streams and a 2 GB upload cost in memory; OPTIONS="idle slow"
	@$(BIN)/python -m tests.bench.gateway.memory $(OPTIONS)

bench-latency: $(STAMP) ## what the gateway adds to a request at 250 requests/s, beside Envoy; BENCH_PYTHON and BENCH_KIT as for bench
	@$(BIN)/python -m tests.bench.gateway.latency $(OPTIONS)

bench-handshakes: $(STAMP) ## what it costs to open and end a session, beside Envoy and nginx; BENCH_PYTHON and BENCH_KIT as for bench
	@$(BIN)/python -m tests.bench.gateway.handshakes $(OPTIONS)

bench-stalls: $(STAMP) ## the loop's longest turn under 500 busy sessions while 100,000 grants come into force
	@$(BIN)/python -m tests.bench.gateway.stalls $(OPTIONS)

bench-tls: $(STAMP) ## the gateway beside Envoy and nginx with TLS towards SIDE=clients or SIDE=upstream
	@$(BIN)/python -m tests.bench.gateway.tls $(or $(SIDE),upstream) $(OPTIONS)

bench-bookkeeping: $(STAMP) ## what an exchange's bookkeeping and a large snapshot cost a gateway
	@$(BIN)/python -m tests.bench.gateway_state.bookkeeping $(OPTIONS)

bench-propagation: $(STAMP) ## from a commit to the last of 20 watchers, small and with 100,000 grants; OPTIONS="--changes 200"
	@$(BIN)/python -m tests.bench.control_plane.propagation $(OPTIONS)

bench-apply: $(STAMP) ## what a workspace file of 100,000 grants costs to apply and to export, in time and memory; OPTIONS="--share 0.1"
	@$(BIN)/python -m tests.bench.control_plane.apply $(OPTIONS)

bench-usage: $(STAMP) ## how many usage events the aggregator takes in, and how far behind it is; OPTIONS="--rate 2000 --seconds 330"
	@$(BIN)/python -m tests.bench.usage.intake $(OPTIONS)

bench-kokoro: $(STAMP) ## how soon Kokoro is heard, how fast it speaks, whether it is understood; OPTIONS="--runs 20"
	@$(BIN)/python -m tests.bench.kokoro.speech $(OPTIONS)

bench-audio: $(STAMP) ## what speech weighs as PCM, MP3 and AAC, bare and as base64
	@$(BIN)/python -m tests.bench.kokoro.sizes

clean: ## remove what the build made (not .glottis, where `glottis up` keeps its state)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis demo dist build

.PHONY: help install lock test explore test-native native check format demo sdks fault fuzz bench bench-tokens bench-hot-path bench-memory bench-latency bench-handshakes bench-stalls bench-tls bench-bookkeeping bench-propagation bench-apply bench-usage bench-kokoro bench-audio clean
