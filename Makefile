# Everything there is to do here; CI runs `make test`. `make help` lists it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

SEEDS ?= 1000
FROM ?= 0
TIME ?= 60
ROUNDS ?= 200
MINUTES ?= 5
WAN_DELAY ?= 0
WRITE_THROUGH ?=
BENCH ?=
DIR ?= /var/tmp
LAB ?=
LAB_ARGS ?=
MUTANTS ?=
NAME ?=
OLD ?=

.PHONY: help demo test check docs book build sim sim-mutants fuzz fixture upgrade-test soak soak-engines gate gate-accept bench bench-iscsi bench-store bench-map bench-isolation bench-encryption bench-cache bench-objects lab iscsi-conformance deny

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Build, start a store, a host and a volume, and use it (WAN_DELAY=8ms, WRITE_THROUGH=1)
	@scripts/packages demo
	cargo build --locked --release --workspace --bin longhaul
	target/release/longhaul demo --wan-delay $(WAN_DELAY) $(if $(WRITE_THROUGH),--write-through)

test: ## Everything that CI runs, as root
	@scripts/test

check: docs ## The inner loop: format, documents, lints, unit tests, 100 seeds of the simulator, instruction counts
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo fmt --manifest-path bench/cache/Cargo.toml --check
	cargo fmt --manifest-path bench/objects/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo test --locked --workspace --lib --bins
	cargo build --locked --workspace --bins
	target/debug/longhaul-sim --seeds 100
	target/debug/longhaul-sim --fleet --seeds 40
	$(MAKE) gate

gate: ## Count the instructions of the core's work with Valgrind; fail if one took 3 % more than in lab/gate/counts.txt
	@scripts/packages gate
	cargo run --locked --profile gate -p longhaul-gate -- check lab/gate/counts.txt

gate-accept: ## Write lab/gate/counts.txt again; commit it with the reason for the change
	@scripts/packages gate
	cargo run --locked --profile gate -p longhaul-gate -- accept lab/gate/counts.txt

docs: ## Check the prose and the links of the documents
	scripts/prose --self-test
	scripts/prose
	scripts/links --self-test
	scripts/links

book: ## Build the documents as a book in target/book, with mdBook
	@scripts/book

build: ## Build the release binaries
	cargo build --locked --release --workspace --bins

sim: ## Run the simulator (SEEDS=1000 FROM=0)
	cargo run --locked --release -p longhaul-sim -- --seeds $(SEEDS) --from $(FROM)
	cargo run --locked --release -p longhaul-sim -- --fleet --seeds $(SEEDS) --from $(FROM)

sim-mutants: ## Break the core in known ways; the simulator has to notice each (MUTANTS=name for some)
	sim/mutants.sh $(MUTANTS)

fuzz: ## Fuzz each parser and state machine (TIME=60 seconds each, TARGET=name for one)
	@scripts/fuzz $(TIME) $(TARGET)

fixture: ## Keep what this version writes, for later ones to serve (NAME=0.2 makes e2e/fixtures/0.2.tar.gz)
	cargo build --locked --workspace --bins
	LONGHAUL_BIN=$(CURDIR)/target/debug/longhaul LONGHAUL_E2E_FIXTURE=$(CURDIR)/e2e/fixtures/$(NAME).tar.gz \
	  cargo test --locked --workspace --test e2e -- --ignored a_fixture_is_made

upgrade-test: ## Replace stores and hosts of an earlier version under load, and back (OLD=its binary)
	cargo build --locked --workspace --bins
	LONGHAUL_BIN=$(CURDIR)/target/debug/longhaul LONGHAUL_E2E_OLD=$(OLD) \
	  cargo test --locked --workspace --test e2e -- --ignored --nocapture two_versions_get_along

soak: ## 10,000 snapshots of a volume; kill hosts and stores under load (ROUNDS=200 of each; 20 MB a round in TMPDIR until the end)
	cargo test --locked --workspace --lib -- --ignored --nocapture ten_thousand_snapshots
	cargo build --locked --workspace --bins
	LONGHAUL_BIN=$(CURDIR)/target/debug/longhaul LONGHAUL_E2E_ROUNDS=$(ROUNDS) \
	  cargo test --locked --workspace --test e2e crashes -- --nocapture --test-threads 2

soak-engines: ## Garage is refused, Ceph and MinIO are killed under load (MINUTES=5), as root; the first run builds them, 15 to 25 minutes
	@scripts/packages engines
	@scripts/s3-servers minio garage
	cargo build --locked --workspace --bins
	LONGHAUL_BIN=$(CURDIR)/target/debug/longhaul CI=true LONGHAUL_E2E_MINUTES=$(MINUTES) \
	  cargo test --locked --workspace --test e2e engines -- --ignored --nocapture --test-threads 1

bench: ## Measure everything against peers and targets, two hours at most: target/bench/report.html (BENCH='--rounds 3 flush' for a part, BENCH=threads)
	@scripts/packages bench
	cargo build --locked --release --workspace --bins
	target/release/longhaul-lab bench $(BENCH)

bench-iscsi: ## Only the iSCSI target against tgt (BENCH='--rounds 3 read' for a part)
	@scripts/packages bench
	cargo build --locked --release --workspace --bins
	target/release/longhaul-lab bench-iscsi $(BENCH)

bench-store: ## Only the store beside its disk (BENCH='--rounds 3 commit' for a part)
	@scripts/packages bench
	cargo build --locked --release --workspace --bins
	target/release/longhaul-lab bench-store $(BENCH)

bench-map: ## Measure the store's map by itself (BENCH='--written 1TiB --map-memory 64MiB')
	cargo build --locked --release --workspace --bins
	target/release/longhaul-lab bench-map $(BENCH)

bench-isolation: ## Flood a store and a host, and measure what others notice; some four minutes
	@scripts/packages bench
	cargo build --locked --release --workspace --bins
	LONGHAUL_BIN=$(CURDIR)/target/release/longhaul cargo test --locked --workspace --test e2e -- --nocapture floods_cost_others_little
	scripts/bench-isolation

bench-encryption: ## Measure an encrypted volume beside a plain one, over NBD; some four minutes
	@scripts/packages bench
	cargo build --locked --release --workspace --bins
	scripts/bench-encryption

bench-cache: ## Measure the read cache against foyer (DIR=where the files go); some two minutes
	cargo run --locked --release --manifest-path bench/cache/Cargo.toml --target-dir target/bench-cache -- $(DIR)

bench-objects: ## Measure objects on a file system against object_store's (DIR=where the files go); one minute
	cargo run --locked --release --manifest-path bench/objects/Cargo.toml --target-dir target/bench-objects -- $(DIR)

lab: ## Run the laboratory's scenarios, as root (LAB='cold-read drain' for some, LAB_ARGS='--rounds 1 --assert')
	@scripts/packages lab
	cargo build --locked --release --workspace --bins
	target/release/longhaul-lab run \
	  $(if $(LAB),$(LAB:%=lab/scenarios/%.toml),$(filter-out %/smoke.toml,$(wildcard lab/scenarios/*.toml))) $(LAB_ARGS)

iscsi-conformance: ## Run libiscsi's conformance suite against this target and tgt, and print the results
	@scripts/packages iscsi
	cargo build --locked --workspace --bins
	LONGHAUL_BIN=$(CURDIR)/target/debug/longhaul cargo test --locked --workspace --test e2e \
	  table_of_conformance -- --ignored --nocapture

deny: ## Licences, bans, sources and advisories of the dependencies
	@scripts/deny
