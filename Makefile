# What a person types. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The steps share one build folder and one lock on it; running them side by
# side would only make them wait for each other and mix their output.
.NOTPARALLEL:

# Tests which need programs from outside (PostgreSQL, Mosquitto, Kafka, paho, schemathesis) are
# behind this feature. Every step names the same features, so that no step compiles the
# crate again merely because another step saw it with different ones.
FEATURES := --features external-services

PROGRAM := $(or $(CARGO_TARGET_DIR),target)/release/cloud-connector

# Arguments handed to the program: make run ARGS="--http 127.0.0.1:9000"
ARGS ?=

# Parts of a benchmark; all of them if none is named.
PARTS ?=

# Seconds for each fuzz target.
FUZZ_SECONDS ?= 20

.PHONY: help run build test check openapi chaos acceptance drills fuzz dev dev-stop bench-start bench-updaters bench-record bench-api deny clean

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# `exec` leaves no shell between make and the program, so a signal to the
# process group arrives once and make waits for the program's orderly end.
run: build ## Build and run the embedded set-up (ARGS="..." reaches the program)
	@exec $(PROGRAM) run $(ARGS)

build: ## Build the release program
	@dev/prepare build
	cargo build --release --locked

test: ## Run the whole suite, installing what the machine lacks
	@dev/prepare test
	@$(MAKE) --no-print-directory check
	dev/with-services cargo test --locked $(FEATURES)

check: ## Formatting, lints and documentation, without running tests
	@dev/prepare build
	cargo fmt --check
	cargo clippy --locked $(FEATURES) --all-targets -- -D warnings
	# The fuzz targets take the rooms that they test in by path; nothing else would notice a break.
	cargo check --locked --manifest-path fuzz/Cargo.toml
	RUSTDOCFLAGS="-D warnings" cargo doc --locked $(FEATURES) --no-deps --document-private-items

# By way of another file: a build that fails must not leave an empty document.
openapi: ## Write openapi.json anew from the code
	@dev/prepare build
	cargo run --locked $(FEATURES) --quiet -- openapi > openapi.json.new
	mv openapi.json.new openapi.json

# What is given in ARGS comes after the default, and so goes over it.
chaos: ## Kill, pause and restart everything under load (ARGS="--seed 7 --minutes 20 --set-up embedded|distributed|both")
	@dev/prepare test
	cargo test --locked $(FEATURES) --test chaos --no-run
	dev/with-services cargo test --locked $(FEATURES) --test chaos -- --minutes 20 $(ARGS)

acceptance: ## The acceptance list of tenancy, a line each
	@dev/prepare test
	@dev/acceptance

# One at a time: each is held to its times.
drills: ## The drills of an outage of the lookup service, at full size and with figures
	@dev/prepare test
	FULL_SIZE_DRILLS=1 dev/with-services cargo test --locked $(FEATURES) --test it -- \
		drills:: --test-threads 1 --nocapture 2>target/drills.log \
		|| { tail -n 40 target/drills.log >&2; exit 1; }

fuzz: ## Fuzz what reads messages and topics, for a bounded time (FUZZ_SECONDS=20 each)
	@dev/prepare build
	dev/fuzz $(FUZZ_SECONDS)

dev: build ## Start the distributed set-up: PostgreSQL, Mosquitto, Kafka, a process per role
	@dev/prepare services
	@dev/up $(PROGRAM)

dev-stop: ## End what `make dev` started
	@dev/down

bench-start: build ## Measure start time and memory of the release program
	dev/bench-start --program $(PROGRAM)

# Built before the services start: they would only take processor time from it.
bench-updaters: ## Measure the updaters against a slow gateway (BENCH_ROWS=5000 for a trial)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench updaters --no-run
	dev/with-services cargo bench --locked --bench updaters

bench-record: ## Measure recording beside what it is made of (PARTS="batch pipeline" for some)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench record --no-run
	KAFKA_FAST=1 dev/with-services cargo bench --locked --bench record -- $(PARTS)

bench-api: ## Measure the REST interface beside the barest server, and beside SQL (PARTS="status pages" for some)
	@dev/prepare build
	@dev/prepare services
	cargo bench --locked --bench api --no-run
	dev/with-services cargo bench --locked --bench api -- $(PARTS)

# Advisories are left out: they need a database fetched from the network, and
# a new entry there would fail a tree that nobody changed.
deny: ## Check bans, licences and sources of the dependencies
	@command -v cargo-deny >/dev/null || { \
		echo "cargo-deny is missing; install it with: cargo install --locked cargo-deny" >&2; \
		exit 1; \
	}
	cargo deny --locked check bans licenses sources

clean: ## Remove everything that was built (./data stays)
	cargo clean
