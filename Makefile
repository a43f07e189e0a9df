# Everything runs from a virtual environment of its own. Every target works on a fresh clone.
#
#   make train      a small GPT, trained with DDP on two virtual cards (about a minute)
#   make test       the whole test suite (SHORT=1: without what runs once a day; SANITIZED=1: without the native tests that
#                   make sanitize SHORT=1 has run)
#   make test-all   everything that needs no GPU's torch: what the daily job runs (two hours)
#   make test-cuda  the tests of cards and ranks, on cards that pose as CUDA (SHORT=1: some of them, TESTS=: these files)
#   make test-cuda-build  the same tests, as vdev, with a torch that was built with CUDA, in .venv-cuda (5 GB; TESTS=: these files)
#   make test-blocking  the tests of cards and ranks, in pose too, with operators that run at their calls (VDEV_LAUNCH=blocking;
#                   SHORT=1: some of them)
#   make build      rebuild the compiled module after a change in C++ (seconds, for one file)
#   make wheel      a wheel and a source distribution, in dist/
#   make wheels     the wheel of a release, in dist/: for every supported torch, stripped, and an archive of the debug symbols
#   make matrix VERSIONS="2.12.1 2.13.0+cpu"  the suites with each of these versions of torch, in an environment of its
#                   own that is removed afterwards, and a table of the counts (MATRIX="--suites device --keep")
#   make conformance  PyTorch's own suite of torch.distributed against vccl (about twenty minutes)
#   make frameworks  accelerate, transformers, Lightning, DeepSpeed and others on cards, most of them in pose, against
#                   gloo on the CPU (FRAMEWORKS="lightning": some of them; the first time installs them)
#   make triton     Triton's kernels on cards, and public kernels (the first time installs Triton, 700 MB)
#   make bench      all_reduce, measured beside gloo (and an MPI where there is one): the tables of README and
#                   docs/inside/measurements.md, and the figure
#   make bench-check  whether the ratios of docs/bench/baseline.json are still reached
#   make tune       measures every algorithm, and writes the table that the selector chooses by (some minutes)
#   make docs       the site of the documentation, in build/site, with its links checked
#   make lint       formatting, style, types, and that includes point downwards
#   make sanitize   the torch-free tests under the thread and address sanitizers (SHORT=1: the short form; CHANGED=1: of
#                   the rooms that changes of a day concern; SANITIZERS=thread: one of the two)
#   make aarch64    the torch-free tests for that machine, cross-compiled and run under qemu-user (TESTS="-k test_ring":
#                   some of them; says what to install if a tool is missing)

PYTHON ?= python3
RANKS ?= 2
# One more than there are cores: many tests wait for processes that they started.
WORKERS ?= $(shell expr $$(nproc) + 1)
# A worker that crashes ends the run, because xdist (3.8) may wait for ever for the tests of its file.
PYTEST := python -m pytest --numprocesses $(WORKERS) --max-worker-restart 0
TORCH := $(shell sed -n 's/^TESTED = "\(.*\)"/\1/p' vccl/_torch_version.py)
TORCH_REQUIREMENT := torch==$(TORCH)
VENV := .venv
comma := ,
BUILD := build/RelWithDebInfo

PLATLIB = $(shell $(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
export CMAKE_GENERATOR ?= Ninja

# Shows how far the compiler is: in one line of a terminal, and elsewhere in a line for every tenth file.
COMPILE := cmake --build $(BUILD) $(if $(MAKE_TERMOUT),,| sed -u '/^\[[0-9]*[1-9]\//d')
SHELL := bash
.SHELLFLAGS := -o pipefail -c

.PHONY: install build wheel wheels docs test test-all test-cuda test-cuda-build test-blocking matrix conformance frameworks triton train bench bench-check tune lint format sanitize aarch64 clean

install: $(VENV)/.vccl

# torch first and alone: nothing that follows may choose another one.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	python -m pip install --quiet $(TORCH_REQUIREMENT)
	touch $@

# pip shows nothing of what it compiles, so that is done before; pip then finds it done in the same folder.
#
# No build isolation: it would fetch another torch to compile against.
$(VENV)/.vccl: $(VENV)/.torch pyproject.toml
	python -m pip install --quiet "scikit-build-core>=0.10" "cmake>=3.24" ninja
	@echo "compiling vccl: some minutes the first time"
	cmake -S . -B $(BUILD) -DPython_EXECUTABLE=$(CURDIR)/$(VENV)/bin/python $(CMAKE_OPTIONS) >/dev/null
	$(COMPILE)
	python -m pip install --quiet --no-build-isolation --config-settings=build-dir=$(BUILD) \
		--editable ".[test,lint,examples,convert]"
	touch $@

build: install
	$(COMPILE)
	cmake --install $(BUILD) --prefix $(PLATLIB)

# Compiles nothing again: it uses the folder of make build.
wheel: build
	python -m build --no-isolation --sdist --wheel

# The headers and libraries of the other versions of torch are fetched in turn (about 1 GB each) and removed. The
# install stays editable: another kind would take its place.
wheels: build
	python -m pip install --quiet --no-build-isolation --config-settings=build-dir=$(BUILD) --editable ".[release]"
	python .ci/wheels.py

# One file is one worker's: tests of a file share started ranks and built executables. tests/conftest.py orders the
# files by how long they take, and xdist by how many tests they have, which would leave the longest for the end.
test: build
	VCCL_TEST_SANITIZED=$(SANITIZED) VCCL_TEST_CHANGED=$(CHANGED) $(PYTEST) \
		--dist loadfile --no-loadscope-reorder $(if $(SHORT),-m "not daily")

test-all:
	$(MAKE) lint
	$(MAKE) sanitize
	$(MAKE) test test-cuda test-blocking conformance

# tests/pose/run.py writes the tests anew for "cuda", into build/cuda.
test-cuda: build
	python tests/pose/run.py --numprocesses $(WORKERS) $(if $(SHORT),--short) $(TESTS)

# Tests with the mark `asynchronous` are skipped there.
BLOCKING_SHORT := $(addprefix tests/device/,operators/test_copy.py graphs/test_graphs_of_operators.py training/test_nn.py \
	streams/test_streams.py streams/test_stress_of_streams.py) tests/sanitizer/test_programs.py
test-blocking: build
	VDEV_LAUNCH=blocking $(PYTEST) --dist loadfile \
		$(if $(SHORT),$(BLOCKING_SHORT),tests/device tests/pose tests/distributed tests/sanitizer)

# `===` is the one version that PyPI has, and no other build of it. The GPU itself is not needed.
WITH_CUDA := $(MAKE) VENV=.venv-cuda BUILD=build/with-cuda TORCH_REQUIREMENT=torch===$(TORCH)
test-cuda-build:
	$(WITH_CUDA) build
	.venv-cuda/bin/$(PYTEST) --dist loadfile --no-loadscope-reorder \
		$(or $(TESTS),tests/device tests/distributed tests/project/test_torch_backend.py)

# No VERSIONS: the last release of each minor version that is supported.
VERSIONS ?= 2.12.1 2.13.0 2.14.1 2.15.0
matrix:
	$(PYTHON) tests/tools/torch_matrix.py --python $(PYTHON) --workers $(WORKERS) $(MATRIX) $(VERSIONS)

# Ends with an error if the outcome is not the one in tests/conformance/expected.toml.
conformance: build
	python tests/conformance/run.py $(CONFORMANCE)

triton: build
	python tests/frameworks/run.py triton

frameworks: build
	python tests/frameworks/run.py $(FRAMEWORKS)

docs: install
	mkdocs build --strict

train: build
	vrun --cards $(RANKS) examples/train_gpt.py

$(VENV)/.bench: $(VENV)/.vccl
	python -m pip install --quiet --no-build-isolation matplotlib tqdm
	touch $@

OTHERS := gloo$(if $(shell command -v mpicc),$(comma)mpi)

bench: build $(VENV)/.bench
	mkdir -p docs/bench
	vrun --cards 2 -m vccl.bench all_reduce --backend vccl,$(OTHERS) --memory --json docs/bench/all_reduce-2.json
	vrun --cards 4 -m vccl.bench all_reduce --backend vccl,$(OTHERS) --memory --json docs/bench/all_reduce-4.json
	python -m vccl.bench plot docs/bench/all_reduce-2.json docs/bench/all_reduce-4.json --output docs/bench/all_reduce.png
	python -m vccl.bench table docs/bench/all_reduce-2.json docs/bench/all_reduce-4.json --into docs/inside/measurements.md
	python -m vccl.bench table docs/bench/all_reduce-2.json docs/bench/all_reduce-4.json \
		--sizes 4,1K,64K,1M,64M --into README.md

bench-check: build
	python -m vccl.bench check

# The table is compiled in: make build takes it into use.
tune: build $(VENV)/.bench
	mkdir -p docs/bench
	python -m vccl.bench tune --write $(TUNE)

CPP = $(shell find base csrc_device csrc_pg diagnosis examples faults include recorder sanitizer transport tests/native -name '*.[ch]pp')

lint: install
	@clang-format --dry-run -Werror $(CPP)
	ruff check
	ruff format --check
	mypy
	python -m pytest tests/test_floors.py

format: install
	@clang-format -i $(CPP)
	ruff check --fix
	ruff format

# The thread sanitizer first: it finds what the tests are there to find.
SANITIZERS ?= thread address
sanitize: install
	for sanitizer in $(SANITIZERS); do \
		VCCL_TEST_SANITIZE=$$sanitizer VCCL_TEST_SHORT=$(SHORT) VCCL_TEST_CHANGED=$(CHANGED) \
			$(PYTEST) tests/test_native.py || exit; \
	done

aarch64: install
	VCCL_TEST_MACHINE=aarch64 python tests/aarch64.py --numprocesses $(WORKERS) tests/test_native.py $(TESTS)

clean:
	rm -rf build dist $(VENV)/.vccl .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
