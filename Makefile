# Every target sets up what it needs: a virtual environment with the package, its runtimes and its tools.
PYTHON ?= python3
comma := ,
VENV := .venv
BIN := $(VENV)/bin
# onnxruntime-gpu has wheels for x86-64 Linux and Windows only; elsewhere the CPU build does.
ORT := $(if $(filter x86_64 AMD64,$(shell uname -m)),$(if $(filter Darwin,$(shell uname -s)),cpu,cuda),cpu)
# The plugin provider has wheels for a few kinds of machine only.
MORE := openvino,$(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),plugin$(comma))
READY := $(VENV)/.ready
# The chapter's models take a few minutes on all runtimes; all of the catalogue, about twenty (make verify-all).
CHAPTER := $(addprefix --model=,sdpa self-attention mha causal sdpa-naive sdpa-unscaled)

.DEFAULT_GOAL := help
.PHONY: help verify verify-all verify-cuda web test test-slow test-lowest lint format types layers check reference conformance bench \
	bench-oracle bench-detection bench-run bench-speed bench-latency bench-regressions bench-check bench-cases bench-bundles bench-long bench-page \
	bench-kills bench-ray hostile fuzz axe clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[torch,$(ORT),$(MORE)dev]"
	@touch $@

verify: $(READY)  ## export the chapter's models, verify them on every runtime here, write reports/latest
	$(BIN)/onnx-attest run $(CHAPTER) --output reports/latest

verify-all: $(READY)  ## the same with the whole catalogue
	$(BIN)/onnx-attest run --output reports/latest

# Works where an NVIDIA GPU with its driver is; what it leaves under reports/evidence is to be committed, and is told in
# the reports of machines without one. A run that fails leaves evidence of its failure.
CUDA := $(addprefix --require=,torch-cuda ort-cuda ort-cuda-tf32)
verify-cuda: $(READY)  ## verify the catalogue on a GPU, and leave reports/evidence/MACHINE/records.jsonl
	$(BIN)/onnx-attest run --runtime torch --runtime ort-cpu $(CUDA) --output reports/cuda; code=$$?; \
	$(BIN)/onnx-attest evidence reports/cuda && exit $$code

web: $(READY)  ## put the JavaScript runtimes (npm) into your cache, for ort-node, ort-web and ort-web-node
	$(BIN)/onnx-attest doctor --install web

# A file's tests stay in one process, since they share what they exported; most of the time is torch's exporter.
SIDE_BY_SIDE := --numprocesses auto --maxprocesses 4 --dist loadfile
test: $(READY)  ## run the tests (fast ones)
	$(BIN)/python -m pytest -m "not slow" $(SIDE_BY_SIDE)

# The lowest versions that pyproject.toml allows, in an environment of their own; takes a few minutes to install.
LOWEST := .venv-lowest
$(LOWEST)/.ready: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints-lowest.txt --editable ".[torch,cpu,test]"
	@touch $@

test-lowest: $(LOWEST)/.ready  ## run the fast tests with the lowest supported versions
	$(LOWEST)/bin/python -m pytest -m "not slow and not pinned" $(SIDE_BY_SIDE)

test-slow: $(READY)  ## run the slow tests
	$(BIN)/python -m pytest -m slow --numprocesses auto --maxprocesses 2 --dist worksteal

lint: $(READY)  ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)  ## rewrite in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Type checkers and import-linter follow folders, not the package's map of them: they get a plain copy.
build/plain: $(READY) $(shell find onnx_attest models export verify -name '*.py' -o -name '*.toml')
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-deps --target build/plain .
	@touch $@

types: build/plain  ## mypy, strict
	cd build/plain && ../../$(BIN)/mypy --config-file ../../pyproject.toml onnx_attest

layers: build/plain  ## imports point one way
	cd build/plain && ../../$(BIN)/lint-imports --no-cache ../../pyproject.toml

check: lint types layers test  ## all that CI runs

reference: $(READY)  ## write reports/reference anew, to be committed
	$(BIN)/onnx-attest run $(CHAPTER) --output reports/reference

# Not openvino-cpu-default, which computes in bfloat16 where the processor can: that hides all else. Those that are not
# here are said in the page, and keep nothing of the earlier one.
CONFORMING := $(addprefix --runtime=,ort-cpu ort-cpu-noopt ort-nxrt openvino-cpu ort-node ort-web ort-web-node ort-cuda onnx-reference)
conformance: $(READY)  ## write docs/conformance.md and .json anew, to be committed; all runtimes take five minutes
	$(BIN)/onnx-attest conformance $(CONFORMING) --output docs

bench: bench-oracle bench-detection  ## both benchmarks

bench-oracle: $(READY)  ## what the float64 oracle of attention costs beside attention itself
	$(BIN)/python benchmarks/oracle_speed.py

# The peers ask for versions of their own: an environment of their own.
PEERS := .venv-peers
$(PEERS)/.ready: pyproject.toml benchmarks/detection/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --requirement benchmarks/detection/requirements.txt
	@touch $@

bench-detection: $(PEERS)/.ready  ## faults and correct kernels, judged by this suite and by real peers; about half an hour
	rm -rf build
	$(PEERS)/bin/python -m pip install --quiet --no-deps --force-reinstall .
	rm -rf build
	cd benchmarks && ../$(PEERS)/bin/python detection --output ../reports/reference

bench-speed: $(READY) $(PEERS)/.ready  ## what verifying a sentence encoder costs, beside Polygraphy and beside one inference
	$(BIN)/python benchmarks/real/speed.py --polygraphy $(PEERS)/bin/polygraphy

bench-latency: $(READY)  ## whether the latency report can be believed: A/A, a slowdown put in, and pyperf; half an hour
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/latency_trust.py --threads 1
	$(BIN)/python benchmarks/latency_trust.py --threads 1 --pyperf 10

bench-regressions: $(READY)  ## whether compare tells a regression from noise: 20 pairs of runs of each; half an hour
	$(BIN)/python benchmarks/regressions.py

# On the runtimes that every installation has; accuracy only, since timing takes as long as it is told to.
EVERYWHERE := $(addprefix --runtime=,torch ort-cpu ort-cpu-noopt onnx-reference)
bench-run: $(READY)  ## where the time of a run over the whole catalogue goes; a few minutes
	$(BIN)/onnx-attest run --no-latency --profile $(EVERYWHERE) --output build/bench-run

bench-check: $(READY)  ## what check takes on a file of 1,000 nodes
	$(BIN)/python benchmarks/check_speed.py

bench-bundles: $(READY)  ## bundles of three models in each variant, replayed on three runtimes; a quarter of an hour
	$(BIN)/python benchmarks/bundles.py --output reports/reference/bundles.md

bench-cases: $(READY)  ## the float64 oracle on ONNX's own node cases; writes reports/reference/operators.md
	$(BIN)/python benchmarks/oracle_cases.py --output reports/reference/operators.md

bench-long: $(READY)  ## one attention of 32,768 tokens verified whole and one of 131,072 by its rows; some minutes
	$(BIN)/python benchmarks/long_sequences.py

bench-kills: $(READY)  ## kill -9 at 50 random moments of a run, each followed by --resume; half an hour
	$(BIN)/python benchmarks/kills.py

bench-ray: $(READY)  ## what Ray costs beside processes of this machine, what a dying node costs, what the driver holds
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[ray]"
	$(BIN)/python benchmarks/ray_engine.py

hostile: $(READY)  ## 5,000 files made to do harm, given to every command that reads one; three quarters of an hour
	$(BIN)/python benchmarks/hostile.py --files 5000 --seed 0

# Coverage-guided; each target for as long. A finding stays in build/fuzz.
SECONDS_EACH ?= 520
FUZZED := model manifest inputs bundle records journal settings
fuzz: $(READY)  ## fuzz each reader with atheris; an hour in all (SECONDS_EACH=N)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[fuzz]"
	for target in $(FUZZED); do $(BIN)/python fuzz/fuzz.py $$target -max_total_time=$(SECONDS_EACH) || exit 1; done

RECORDS ?= reports/reference
bench-page: $(READY)  ## size of report.html, and how long it takes to open in Chromium (RECORDS=FOLDER)
	$(BIN)/python benchmarks/page.py $(RECORDS)

# Where tests/browser.py looks for it; nothing but a test needs it.
AXE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/onnx-attest/axe
axe:  ## put axe-core (npm) into your cache, for the tests of report.html's accessibility
	npm install --prefix $(AXE) --ignore-scripts --no-audit --no-fund --no-package-lock --no-save axe-core@4.14.1

clean:  ## remove what was made
	rm -rf $(VENV) $(LOWEST) $(PEERS) build dist *.egg-info reports/latest .pytest_cache .mypy_cache .ruff_cache
