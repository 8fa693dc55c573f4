# Run `make` without arguments to list the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The targets cannot run in parallel, because all of them use the same cargo build directory, which cargo
# locks.
.NOTPARALLEL:

BUILD_DIR := $(or $(CARGO_TARGET_DIR),target)
PROGRAM := $(BUILD_DIR)/release/cloud-connector
QUICK_PROGRAM := $(BUILD_DIR)/quick/cloud-connector

# Command-line options of the program. Example: make run ARGS="--http 127.0.0.1:9000"
ARGS ?=

# Parts of a benchmark to run. If empty, all parts run.
PARTS ?=

# Number of seconds for each fuzz target.
FUZZ_SECONDS ?= 20

.PHONY: help run build test check openapi chaos simulate-faults acceptance outage-tests sweep-tests fuzz dev dev-stop bench-startup bench-updaters bench-record bench-api bench-memory bench-fairness bench-events deny clean

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# The flags turn off the optimization of librdkafka, which always selects -O2 otherwise. Its compilation is
# the longest step of the build.
#
# With `exec`, the program replaces the shell. Therefore the program receives Ctrl-C only once, and make
# waits until the program has shut down.
run: ## Build quickly and run embedded mode (ARGS="..." passes options to the program)
	@dev/prepare build
	CFLAGS="-O0 -g0" cargo build --profile quick --locked
	@exec $(QUICK_PROGRAM) run $(ARGS)

build: ## Build the release binary
	@dev/prepare build
	cargo build --release --locked

test: ## Run all checks and tests; installs missing packages
	@dev/prepare test
	@$(MAKE) --no-print-directory check
	RUST_TEST_THREADS=$(TEST_THREADS) dev/with-services cargo test --locked --workspace

# Most tests wait instead of computing, so the machine can run several tests per core.
TEST_THREADS ?= $(shell echo $$((3 * $$(nproc))))

# Leaves out all tests with PostgreSQL, Mosquitto or Kafka (their paths contain `distributed` or `postgres`),
# the tests with third-party clients and schemathesis, which need Python, the tests with zsh and fish, the chaos
# test, documentation tests, and the checks of `make check`. `make test` runs all of them.
.PHONY: test-fast
test-fast: ## Run the unit tests and the tests of embedded mode, without external services
	@dev/prepare build
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --locked --workspace \
		--lib --test it --test contract --test third_dialect -- \
		--skip distributed --skip postgres --skip third_party_clients:: --skip rest::schema:: \
		--skip third_party_shells::

check: ## Check formatting, lints, language and documentation, without running tests
	@dev/prepare check
	dev/check-language
	cargo fmt --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

# The output goes to a temporary file. Otherwise a failed build would leave an empty openapi.json.
openapi: ## Regenerate openapi.json from the code
	@dev/prepare build
	cargo run --locked --quiet -- openapi > openapi.json.new
	mv openapi.json.new openapi.json

# Options in ARGS override the default of 20 minutes.
chaos: ## Inject faults into processes and services under load (ARGS="--seed 7 --minutes 20 --mode embedded|distributed|both --faults kill,pause")
	@dev/prepare test
	cargo test --locked --test chaos --no-run
	dev/with-services cargo test --locked --test chaos -- --minutes 20 $(ARGS)

simulate-faults: ## Simulate the pipeline under seeded faults in virtual time (ARGS="--seed 7 --schedules 1000 --plant early-ack")
	@dev/prepare build
	cargo build --locked -p fault-simulation
	$(BUILD_DIR)/debug/fault-simulation $(ARGS)

acceptance: ## Run the acceptance tests of tenancy and print one line per test
	@dev/prepare test
	@dev/acceptance

# The tests run one after the other, because each test has time limits.
outage-tests: ## Simulate outages of the tenant lookup service with many clients and time limits
	@dev/prepare test
	FULL_SIZE_OUTAGE_TESTS=1 dev/with-services cargo test --locked --test it -- \
		lookup_outages:: --test-threads 1 --nocapture 2>target/outage-tests.log \
		|| { tail -n 40 target/outage-tests.log >&2; exit 1; }

sweep-tests: ## Kill the broker and a third of 5,000 clients, and measure the liveness sweep
	@dev/prepare test
	FULL_SIZE_SWEEP_TESTS=1 dev/with-services cargo test --locked --test it -- \
		distributed::liveness_sweep::exactly --test-threads 1 --nocapture 2>target/sweep-tests.log \
		|| { tail -n 40 target/sweep-tests.log >&2; exit 1; }
	@grep "liveness sweep:" target/sweep-tests.log

fuzz: ## Fuzz the message and topic decoders (FUZZ_SECONDS=20 sets the seconds for each fuzz target)
	@dev/prepare build
	dev/fuzz $(FUZZ_SECONDS)

dev: build ## Start distributed mode: PostgreSQL, Mosquitto, Kafka, and one process for each role
	@dev/prepare services
	@dev/up $(PROGRAM)

dev-stop: ## Stop all processes that `make dev` started
	@dev/down

bench-startup: build ## Measure startup time and memory of the release binary
	dev/bench-startup --program $(PROGRAM)

# The benchmarks are built before the services start, because running services would slow down the build.
bench-updaters: ## Measure the tenant lookup jobs against a slow gateway (BENCH_ROWS=5000 for a short run)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench updaters --no-run
	dev/with-services cargo bench --locked --bench updaters

bench-record: ## Measure recording against a baseline (PARTS="batch pipeline" selects parts)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench record --no-run
	KAFKA_FAST=1 POSTGRES_FLEET_SETTINGS=1 dev/with-services cargo bench --locked --bench record -- $(PARTS)

bench-api: ## Measure the REST API against a baseline server and plain SQL (PARTS="status pages" selects parts)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench api --no-run
	POSTGRES_FLEET_SETTINGS=1 dev/with-services cargo bench --locked --bench api -- $(PARTS)

bench-memory: ## Measure memory under attacks with large messages and lists (PARTS="responses lists" selects parts)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench memory --no-run
	dev/with-services cargo bench --locked --bench memory -- $(PARTS)

bench-fairness: ## Measure clients and callers while others misbehave (PARTS="embedded online" selects modes and attacks)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench fairness --no-run
	dev/with-services cargo bench --locked --bench fairness -- $(PARTS)

bench-events: ## Measure event streams with many readers and events (PARTS="delivery recording" selects parts)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench events --no-run
	KAFKA_FAST=1 POSTGRES_FLEET_SETTINGS=1 dev/with-services cargo bench --locked --bench events -- $(PARTS)

# Security advisories are not checked. The check would need a database from the network, and it would fail
# without a change of the code when a new advisory is published.
deny: ## Check bans, licenses and sources of the dependencies
	@command -v cargo-deny >/dev/null || { \
		echo "cargo-deny is missing; install it with: cargo install --locked cargo-deny" >&2; \
		exit 1; \
	}
	cargo deny --locked check bans licenses sources

clean: ## Remove build output (keeps ./data)
	cargo clean
