# A study: each model x data set is one executed notebook with its results beside it. python -m depth_lib knows which
# runs there are, which are missing and how each ended; make passes on its variables, -j and -k.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.depth-lib-installed

# make help prints the lines that start with ##
## MODELS="A B"           names in params/models, folders or Hub ids; by default the papers' twelve models
## SET=demo               the models of one folder in params/models
## DATASETS="gsm8k ..."   names in params/datasets; by default the papers' three (make table: by default all in OUT)
## N_EXAMPLES=20          like any parameter of a run, overrides the params files: SOURCE=embedded, REMOTE=1,
##                        DTYPE=bfloat16, PROBES="logit_lens", OUT=folder, REPLACE=1 … (depth-lib sweep --help lists all)
## -j 4                   4 runs at a time (default: one per GPU, or one)
## -k                     continue after failures
## CUDA_VISIBLE_DEVICES=0,1   the GPUs to use (default: all)
# Every variable on make's command line becomes an option of the command, which rejects unknown names. Both $ and $$ give $.
OURS  = PYTHON VENV PY OMP_NUM_THREADS CUDA_VISIBLE_DEVICES
GIVEN = $(foreach name,$(filter-out $(OURS),$(.VARIABLES)),$(if $(filter command,$(origin $(name))),$(name)))
ARGS  = $(foreach name,$(GIVEN),'--$(name)=$(subst ','\'',$(subst $$$$,$$,$(value $(name))))')
FLAGS = $(if $(findstring k,$(firstword -$(MAKEFLAGS))),--keep-going) \
        $(patsubst -j%,--jobs=%,$(filter-out $(MAKEOVERRIDES),$(filter -j%,$(MAKEFLAGS))))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: demo real sweep table pictures status train experiment test test-slow oracles test-oracles ndif test-ndif bench bench-counts docs lint pyright types clean help

demo: ## run three toy models on three embedded data sets; results, table and figures go to outputs/demo
real: ## run a language model with 135M parameters (a 93 MB download) on three data sets; its table is in outputs/real
sweep: ## do the unfinished runs, then make the table; REPLACE=1 moves results with different settings to OUT/replaced
table: ## make the table and figures of the results in OUT
status: ## list the finished, missing, running and failed results in OUT
demo real sweep: ARGS += $(FLAGS)
demo real sweep table status: $(READY)
	@exec $(PY) -m depth_lib $@ $(ARGS)

pictures: $(READY) ## draw docs/*.png from outputs/real and outputs/demo
	@exec $(PY) docs/pictures.py

TRAINING := $(PY) -m experiments.training.experiment

train: $(READY) ## train twelve toys from scratch and measure them: does training decide how depth is used?
	@$(TRAINING) train --out build/training
	@$(TRAINING) measure --out build/training --csv experiments/training/measured.csv

experiment: $(READY) ## measure the experiment's four toys that are in the repository, and compare them with the committed numbers
	@exec $(TRAINING) shipped

# ---- the environment

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "depth_lib needs Python 3.11 to 3.13, not $$($(PYTHON) -V); name one: make PYTHON=python3.11"; exit 1; }
	@echo "installing the packages in requirements.txt into $(VENV) (first time only, 2 to 4 minutes), then running make $(or $(MAKECMDGOALS),help)"
	@$(PY) -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@# Installed for kernels that start in notebooks/; depth_lib registers itself with nnsight on import, so that it
	@# travels to a server from this installation too.
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# ---- the code

test: $(READY) ## run the quick tests (TESTS=tests/test_x.py for some of them)
	@$(PY) -m pytest -n 2 --dist loadscope -m "not slow" $(PYTEST) $(TESTS)

test-slow: $(READY) ## run the slow tests
	@$(PY) -m pytest -n 3 --dist loadscope -m slow $(PYTEST) $(TESTS)

oracles: $(READY) ## install the extras `oracles` and `quantization` (third-party libraries); make test then compares with them
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[oracles,quantization]' --constraint requirements.txt

test-oracles: oracles ## compare probes with TransformerLens, captum and shorter models
	@$(PY) -m pytest -rs tests/third_party

ndif: $(READY) ## install NDIF's own server code, the extra `ndif`; make test then runs the remote tests on it
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[ndif]' --constraint requirements.txt
	@# 0.1.2 asks for Python 3.12; what the tests use of it runs on 3.11.
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python ndif==0.1.2

test-ndif: $(READY) ## run five probes on the real NDIF; needs NDIF_API_KEY
	@NDIF_LIVE=1 HF_HUB_OFFLINE=0 $(PY) -m pytest -rs tests/remote/test_ndif_live.py

bench: $(READY) ## time the probes (BENCH=real DTYPE=bfloat16; BENCH=big, BENCH_DEVICE=cuda)
	@$(PY) -m benchmarks

bench-counts: $(READY) ## count each probe's GPU kernels, copies and bytes, on a CPU
	@$(PY) -m benchmarks.counts

docs: $(READY) ## build the documentation: build/site/index.html
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --constraint requirements.txt
	@$(PY) docs/site.py
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

lint: $(READY) ## check style
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

pyright: $(READY) ## install pyright, with Node
	@$(PY) -m pip install --quiet --disable-pip-version-check 'pyright[nodejs]==1.1.414'
	@$(PY) -m pyright --version

types: pyright ## check types
	@$(PY) -m pyright --level warning

clean: ## remove the environment and caches; results in outputs/ and models trained in build/training stay
	rm -rf $(VENV) build/bdist.* build/lib *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
	@echo "variables of demo, real, sweep, table and status:"
	@sed -n 's/^## /  /p' $(MAKEFILE_LIST)
