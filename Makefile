# Run `make` without arguments to list the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# All targets use the same cargo build directory, which cargo locks, so they cannot run in parallel.
.NOTPARALLEL:

# Enables the tests that need PostgreSQL, Mosquitto, Kafka, paho and schemathesis. All targets use the
# same features, so that cargo compiles the crate only once.
FEATURES := --features external-services

PROGRAM := $(or $(CARGO_TARGET_DIR),target)/release/cloud-connector

# Options for the program: make run ARGS="--http 127.0.0.1:9000"
ARGS ?=

# Parts of a benchmark to run; all if empty.
PARTS ?=

# Seconds per fuzz target.
FUZZ_SECONDS ?= 20

.PHONY: help run build test check openapi chaos acceptance outage-tests fuzz dev dev-stop bench-startup bench-updaters bench-record bench-api deny clean

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# With `exec`, the program replaces the shell, so that Ctrl-C reaches it once and make waits for its
# shutdown.
run: build ## Build and run embedded mode (ARGS="..." passes options to the program)
	@exec $(PROGRAM) run $(ARGS)

build: ## Build the release binary
	@dev/prepare build
	cargo build --release --locked

test: ## Run the whole suite; installs missing packages
	@dev/prepare test
	@$(MAKE) --no-print-directory check
	dev/with-services cargo test --locked $(FEATURES)

check: ## Check formatting, lints, language and documentation, without running tests
	@dev/prepare check
	dev/check-language
	cargo fmt --check
	cargo clippy --locked $(FEATURES) --all-targets -- -D warnings
	# The fuzz crate includes modules by path, and no other step compiles it.
	cargo check --locked --manifest-path fuzz/Cargo.toml
	RUSTDOCFLAGS="-D warnings" cargo doc --locked $(FEATURES) --no-deps --document-private-items

# A failed build must not leave an empty openapi.json, hence the temporary file.
openapi: ## Regenerate openapi.json from the code
	@dev/prepare build
	cargo run --locked $(FEATURES) --quiet -- openapi > openapi.json.new
	mv openapi.json.new openapi.json

# Options in ARGS override the default.
chaos: ## Kill, pause and restart processes and services under load (ARGS="--seed 7 --minutes 20 --mode embedded|distributed|both")
	@dev/prepare test
	cargo test --locked $(FEATURES) --test chaos --no-run
	dev/with-services cargo test --locked $(FEATURES) --test chaos -- --minutes 20 $(ARGS)

acceptance: ## Run the tenancy acceptance list and print one line per item
	@dev/prepare test
	@dev/acceptance

# One test at a time, because each has time limits.
outage-tests: ## Simulate outages of the tenant lookup service at full size, with time limits
	@dev/prepare test
	FULL_SIZE_OUTAGE_TESTS=1 dev/with-services cargo test --locked $(FEATURES) --test it -- \
		lookup_outages:: --test-threads 1 --nocapture 2>target/outage-tests.log \
		|| { tail -n 40 target/outage-tests.log >&2; exit 1; }

fuzz: ## Fuzz the message and topic decoders (FUZZ_SECONDS=20 per target)
	@dev/prepare build
	dev/fuzz $(FUZZ_SECONDS)

dev: build ## Start distributed mode: PostgreSQL, Mosquitto, Kafka, one process per role
	@dev/prepare services
	@dev/up $(PROGRAM)

dev-stop: ## Stop what `make dev` started
	@dev/down

bench-startup: build ## Measure startup time and memory of the release binary
	dev/bench-startup --program $(PROGRAM)

# The benchmarks are built before the services start, because the services use CPU time.
bench-updaters: ## Measure the tenant lookup jobs against a slow gateway (BENCH_ROWS=5000 for a short run)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench updaters --no-run
	dev/with-services cargo bench --locked --bench updaters

bench-record: ## Measure recording against a baseline (PARTS="batch pipeline" selects parts)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench record --no-run
	KAFKA_FAST=1 dev/with-services cargo bench --locked --bench record -- $(PARTS)

bench-api: ## Measure the REST API against a baseline server and plain SQL (PARTS="status pages" selects parts)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench api --no-run
	dev/with-services cargo bench --locked --bench api -- $(PARTS)

# Advisories are not checked: they need a database from the network, and a new advisory would fail an
# unchanged tree.
deny: ## Check bans, licenses and sources of the dependencies
	@command -v cargo-deny >/dev/null || { \
		echo "cargo-deny is missing; install it with: cargo install --locked cargo-deny" >&2; \
		exit 1; \
	}
	cargo deny --locked check bans licenses sources

clean: ## Remove build output (keeps ./data)
	cargo clean
