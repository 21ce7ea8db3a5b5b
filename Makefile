# Everything that is done to this repository, one target each. `make help` lists them.

# Tools that are not part of Rust itself are built once, at these versions, and kept in target/.
DENY_VERSION := 0.20.2
TOOLS := $(CURDIR)/target/tools
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
.PHONY: help demo test check format lint deny docs no-std tests fix bench soak replay fuzz tools

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

demo: ## Play a short story with the program
	@echo '# Where does each service of a request run?'
	$(CHEOPS) scope 'compute: site1, image: site1 & (site2; site3)'
	@echo
	@echo '# What does a matrix leave open?'
	$(CHEOPS) matrix check $(MATRICES)/table5.json
	@echo
	@echo '# Three sites, cut off from each other: what becomes of what they received?'
	$(CHEOPS) matrix play $(HISTORIES)/redis.json

test: check tests ## Install what is missing, then run every check and every test: what CI runs

check: format lint deny docs no-std ## Format, lints, dependencies and docs; changes nothing

format: tools
	$(CARGO) fmt --all --check

lint: tools
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# Advisories come from a database on the network. A machine that can't reach it can still vouch for
# all the rest.
deny: tools
	$(CARGO) deny --log-level error check bans licenses sources
	@if $(CARGO) deny --log-level off fetch db 2>/dev/null; then \
	  $(CARGO) deny check --disable-fetch advisories; \
	else echo 'advisories: not checked, the database can not be reached'; fi

docs: tools
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked

# The core on its own, so that no other crate's features can lend it the standard library.
no-std: tools
	$(CARGO) rustc --package cheops-core --lib --locked -- -D warnings

tests: tools
	@if $(CARGO) nextest --version >/dev/null 2>&1; then set -x; \
	  $(CARGO) nextest run --workspace --locked; \
	else set -x; \
	  $(CARGO) test --workspace --all-targets --locked; fi
	$(CARGO) test --workspace --doc --locked

fix: tools ## Format, and apply what the lints propose
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	$(CARGO) fmt --all

bench: ## Measure, and print the numbers as a table
	$(CARGO) bench --workspace

soak: ## Simulate one seed after the other, from SEED or anywhere on, until one fails or you stop it
	@seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); \
	while CHEOPS_SEED=$$seed CHEOPS_SEEDS=$(SEEDS) \
	  $(CARGO) test --quiet --release --package cheops-core --test sim storms; do \
	  seed=$$((seed + $(SEEDS))); echo "all well up to seed $$seed"; done; \
	exit 1

replay: ## Simulate one seed again and say what happens: make replay SEED=42
	CHEOPS_SEED=$(or $(SEED),$(error say which: make replay SEED=42)) CHEOPS_SEEDS=1 \
	  $(CARGO) test --release --package cheops-core --test sim -- storms --nocapture

fuzz: ## Feed the readers with nonsense for FUZZ_SECONDS each; guided too, with cargo-bolero and nightly
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) test --profile fuzz --package cheops-fuzz -- --test-threads 1
	@if $(CARGO) bolero --version >/dev/null 2>&1 && rustc +nightly --version >/dev/null 2>&1; then \
	  for target in $$(sed -nE '/^#\[test\]/{n;s/^fn ([a-z_]+)\(.*/\1/p}' fuzz/fuzz.rs); do \
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
	  $(CARGO) install cargo-deny --locked --version $(DENY_VERSION) --root $(TOOLS)
