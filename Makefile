# A study: each model x dataset is one executed notebook with its results beside it. python -m depth_lib.sweep knows which
# runs there are, which are missing and how each ended; make passes on its variables, -j and -k.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.depth-lib-installed

# make help prints the lines that start with ##
## MODELS="A B"           names of params/models, folders or Hub ids; by default the papers' twelve. SET=demo: a folder of them
## DATASETS="gsm8k ..."   of params/datasets, or in OUT; by default the papers' three, for a table all there are
## N_EXAMPLES=20          and any other parameter of a run, instead of what the params files say: SOURCE=embedded, REMOTE=1,
##                        DTYPE=bfloat16, PROBES="logit_lens", OUT=folder, REPLACE=1 … (depth-lib sweep --help has all)
## -j 4, -k               runs at a time, one or one per GPU without it; go on after failures
## CUDA_VISIBLE_DEVICES=0,1   the GPUs, instead of all there are
# Whatever stands on make's command line goes to the command, which refuses names that it does not know. A $ is a $, and so
# is $$.
OURS  = PYTHON VENV PY OMP_NUM_THREADS CUDA_VISIBLE_DEVICES
GIVEN = $(foreach name,$(filter-out $(OURS),$(.VARIABLES)),$(if $(filter command,$(origin $(name))),$(name)))
ARGS  = $(foreach name,$(GIVEN),'--$(name)=$(subst ','\'',$(subst $$$$,$$,$(value $(name))))')
FLAGS = $(if $(findstring k,$(firstword -$(MAKEFLAGS))),--keep-going) \
        $(patsubst -j%,--jobs=%,$(filter-out $(MAKEOVERRIDES),$(filter -j%,$(MAKEFLAGS))))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: demo real sweep table pictures status train experiment test test-slow oracles test-oracles ndif test-ndif bench bench-counts docs lint pyright types clean help

demo: ## three toy models on three embedded datasets: results, table and figures in outputs/demo
real: ## a language model of 135M parameters (a 93 MB download) on three datasets, with its table in outputs/real
sweep: ## run what is missing, and make the table; REPLACE=1 moves results of other settings aside; -j N side by side, -k past failures
table: ## the table and figures of what is in OUT
status: ## what is done or missing in OUT, and what runs or failed
demo real sweep: ARGS += $(FLAGS)
demo real sweep table status: $(READY)
	@exec $(PY) -m depth_lib.sweep $@ $(ARGS)

pictures: $(READY) ## draw docs/*.png from outputs/real and outputs/demo
	@exec $(PY) docs/pictures.py

TRAINING := $(PY) -m experiments.training.experiment

train: $(READY) ## does training decide how depth is used? twelve toys from nothing, and their measurements
	@$(TRAINING) train --out build/training
	@$(TRAINING) measure --out build/training --csv experiments/training/measured.csv

experiment: $(READY) ## measure the four toys of that experiment in the repository, against the committed numbers
	@exec $(TRAINING) shipped

# ---- the environment

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "depth_lib needs Python 3.11 to 3.13, not $$($(PYTHON) -V); name one: make PYTHON=python3.11"; exit 1; }
	@echo "installing what requirements.txt pins into $(VENV), once: 2 to 4 minutes, then: $(or $(MAKECMDGOALS),help)"
	@$(PY) -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@# Installed for kernels that start in notebooks/; depth_lib registers itself with nnsight on import, so that it
	@# travels to a server from here too.
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# ---- the code

test: $(READY) ## the quick tests (TESTS=tests/test_x.py for a part)
	@$(PY) -m pytest -n 2 --dist loadscope -m "not slow" $(PYTEST) $(TESTS)

test-slow: $(READY) ## the other tests
	@$(PY) -m pytest -n 2 --dist loadscope -m slow $(PYTEST) $(TESTS)

oracles: $(READY) ## install other people's libraries, the extras `oracles` and `quantization`: make test then compares with them
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[oracles,quantization]' --constraint requirements.txt

test-oracles: oracles ## probes against TransformerLens, captum and shorter models
	@$(PY) -m pytest -rs tests/third_party

ndif: $(READY) ## install NDIF's own server code, the extra `ndif`: make test then runs the remote tests on it
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[ndif]' --constraint requirements.txt
	@# 0.1.2 asks for Python 3.12; what the tests use of it runs on 3.11.
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python ndif==0.1.2

test-ndif: $(READY) ## five probes on the real NDIF; needs NDIF_API_KEY
	@NDIF_LIVE=1 HF_HUB_OFFLINE=0 $(PY) -m pytest -rs tests/remote/test_ndif_live.py

bench: $(READY) ## how fast the probes are (BENCH=real DTYPE=bfloat16; BENCH=big, BENCH_DEVICE=cuda)
	@$(PY) -m benchmarks

bench-counts: $(READY) ## what each probe asks of a GPU, counted without one: kernels, copies, bytes
	@$(PY) -m benchmarks.counts

docs: $(READY) ## the documentation as pages, build/site/index.html
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

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
	@echo "variables of demo, real, sweep, table and status:"
	@sed -n 's/^## /  /p' $(MAKEFILE_LIST)
