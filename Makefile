# `make setup` needs Python 3.11 to 3.13 and cargo, nothing else; all other targets use what it made in .venv.

BIN := .venv/bin
RUST := $(shell find rust -name '*.rs' -not -path '*/target/*') rust/Cargo.lock $(wildcard rust/*.toml rust/*/Cargo.toml)
CARGO := cargo --locked
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: setup setup-cluster setup-browser setup-databases setup-torch setup-jax setup-mxnet demo demo-ps test test-api test-kubernetes test-mxnet cluster check advisories bench bench-elastic chaos fuzz docs wheel clean

setup: .venv/.core .venv/.stubs

.venv/.packages: pyproject.toml .ci/environment
	@.ci/environment
	@touch $@

.venv/.stubs: .venv/.packages $(shell find proto -name '*.proto' -o -name '*.py')
	@$(BIN)/python proto/generate.py
	@touch $@

# With what the simulator needs and no wheel has.
.venv/.core: .venv/.packages $(RUST)
	@echo "building the Rust core"
	@VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/maturin develop --release --locked --quiet --features pyo3/extension-module,simulation $$(test -x $(BIN)/uv && echo --uv)
	@touch $@

demo: setup
	$(BIN)/python -m examples.demo

demo-ps: setup
	$(BIN)/python -m examples.demo_ps

# Tutorials and benchmarks run to their end: a few long tests, which need little but time.
LONG := tests/docs/test_commands.py tests/benchmarks/test_parts.py
TWO := --numprocesses=2 --dist=worksteal

# Four tests at a time, because many wait for a fault to be noticed while a core is free; of those against Kubernetes two, each in a process
# that has a cluster of its own. They wait most of the time, so the long ones and the core's tests, which are built first, run beside them and
# are shown at the end. OPTIONS, of pytest, may leave out what has run already.
test: setup
	mkdir -p build
	$(BIN)/pytest --numprocesses=4 --dist=worksteal --ignore=tests/kubernetes $(LONG:%=--ignore=%) $(OPTIONS); failed=$$?; \
	nice $(BIN)/pytest $(TWO) $(LONG) > build/long-tests.txt 2>&1 & long=$$!; \
	(cd rust && exec nice $(CARGO) test --quiet --package elasticdl-core --features simulation) > build/core-tests.txt 2>&1 & core=$$!; \
	trap "kill $$long $$core 2> /dev/null" EXIT INT TERM; \
	$(BIN)/pytest $(TWO) tests/kubernetes || failed=$$?; \
	wait $$long || failed=$$?; wait $$core || failed=$$?; \
	cat build/long-tests.txt build/core-tests.txt; exit $$failed

# What the tests against Kubernetes need, which are skipped without it (a failure with CI=true): Debian packages (root) for nodes and
# images, and the cluster's program, built from source with Go.
setup-cluster: setup
	@.ci/cluster
	$(BIN)/python -m tests.kubernetes.binaries

# What the tests of a job's page need, which are skipped without it (a failure with CI=true): Debian's chromium and its driver (root).
setup-browser: setup
	@.ci/browser

# What the tests of databases need, which are skipped without it (a failure with CI=true): Debian's PostgreSQL and MariaDB (root).
setup-databases: setup
	@.ci/databases

# What the tests of PyTorch models need, which are skipped without it (a failure with CI=true): PyTorch without CUDA's libraries.
setup-torch: setup
	@.ci/torch-cpu

# What the tests of JAX models need, which are skipped without it (a failure with CI=true): JAX for CPUs, Flax and optax.
setup-jax: setup
	@.ci/jax

# An environment of its own for MXNet models, .venv-mxnet: MXNet needs a NumPy below 2.
setup-mxnet: setup
	@.ci/mxnet

# The tests of MXNet models, which are skipped in the other environment.
test-mxnet: setup-mxnet
	.venv-mxnet/bin/pytest $(TWO) tests/mxnet tests/frameworks/test_contract.py -k mxnet

# Those against a real API server, without nodes: they need no root.
test-api: setup
	$(BIN)/pytest tests/kubernetes -m "not pods"

# Those, and whole jobs in pods on two real nodes.
test-kubernetes: setup
	$(BIN)/pytest $(TWO) tests/kubernetes

# A shell with KUBECONFIG in a cluster of its own: two real nodes on this machine.
cluster: setup
	$(BIN)/python -m tests.kubernetes.testbed

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m docs.links
	$(BIN)/python -m tests.dependencies
	cd rust && cargo fmt --check
	cd rust && $(CARGO) clippy --quiet --workspace --all-targets --features simulation -- -D warnings

# Known defects of dependencies, from the databases of today: needs network. The first time it builds cargo-deny (minutes).
advisories: setup
	test -x .venv/cargo/bin/cargo-deny || cargo install --quiet --locked --root .venv/cargo cargo-deny
	cd rust && ../.venv/cargo/bin/cargo-deny --locked check
	test -x .venv/audit/bin/pip-audit || { $(BIN)/python -m venv .venv/audit && .venv/audit/bin/python -m pip install --quiet pip-audit; }
	.venv/audit/bin/pip-audit --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') --skip-editable

bench: setup
	$(BIN)/python -m benchmarks

# Elastic jobs beside gangs and beside a service on a cluster of 24 units: needs what `make setup-cluster` installs, root, and two hours.
bench-elastic: setup
	$(BIN)/python -m benchmarks.elastic

# Damaged input for everything that reads what others have written, a minute for each reader; what fails is kept in a corpus.
fuzz: setup
	cd rust && FUZZ_SECONDS=60 $(CARGO) test --quiet --package elasticdl-core --test mutations -- --nocapture
	$(BIN)/python -m tests.fuzz --seconds 60

chaos: fuzz
	$(BIN)/python -m tests.simulation --schedules 100000
	$(BIN)/python -m tests.chaos --faults 200 --minutes 60
	$(BIN)/python -m tests.chaos --servers --faults 200 --minutes 60
	$(BIN)/python -m tests.chaos --steps --faults 200 --minutes 60
	$(BIN)/python -m tests.chaos --programs --faults 200 --minutes 60
	$(BIN)/python -m tests.chaos --models --faults 200 --minutes 60

# The pages that are made from the code, and the site: build/site/index.html. Warnings are errors.
docs: setup
	$(BIN)/python -m docs.generate
	rm -rf build/site
	$(BIN)/python -m docs.site build/site

wheel: setup
	$(BIN)/maturin build --release --locked --quiet --out dist

clean:
	rm -rf .venv .venv-mxnet .bench .demo .demo-ps .chaos build dist rust/target .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find python -name '_core*.so' -delete
	find python/elasticdl/control/generated -name '*_pb2*' -delete
