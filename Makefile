# A study: each model x dataset is one executed notebook with its results beside it. python -m depth_lib.sweep knows which
# runs there are, which are missing and how each ended; make passes on its variables, -j and -k.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.depth-lib-installed

# What sweep, table, report, share and status cover, and how a sweep runs; make help prints the lines that start with ##.
# All that stand on make's command line go to the command, which refuses names that it does not know.
## SET=paper|ndif|real|demo|training   a folder of params/models
## MODELS="A B"           names, folders or Hub ids, instead of the whole set
## DATASETS="gsm8k ..."   of params/datasets, or in OUT; by default the papers' three, for a table all there are
## OUT=folder             folder of the results; outputs, and outputs/demo for SET=demo; status without it: all runs
## PROBES="logit_lens"    instead of those in the params files
## N_EXAMPLES=20          so any parameter of a run, instead of what the params files say: SOURCE=embedded, REMOTE=1,
##                        QUANTIZATION=null, DTYPE=bfloat16, PAIR=spouse … (depth-lib sweep --help has all)
## REPLACE=1              move aside results in OUT that were made with other settings
## QUESTION="…" ANSWER="…" a question of your own; a dollar sign is written twice, and ANSWER=" 12" before make keeps its space
## JOBS=4                 runs at a time, as -j4, sharing the GPUs; without it one, or one per GPU
## LAUNCH="srun --gres=gpu:1 --time=2:00:00"   put in front of each run's command: a cluster's scheduler
## TENSOR_PARALLEL=4      four GPUs share each layer of a run's model: torchrun with four ranks; only with QUANTIZATION=null
## GPUS="0 1 2 3"         instead of all GPUs there are; with JOBS=2 two for each run
## LIST=1                 print the command of each unfinished run, for a job array; none is run
## LICENCE=cc-by-4.0      of share: the licence of the numbers; TO=folder to write, by default OUT/shared
SWEEP := $(PY) -m depth_lib.sweep
NAMED  = $(foreach name,$(filter-out PYTHON VENV OMP_NUM_THREADS,$(.VARIABLES)),$(if $(filter command,$(origin $(name))),$(name)))
VALUES = $(foreach name,$(NAMED),$(if $(value $(name)),--$(name)="$$$(name)"))
PAIR_WORDS = $(foreach name,QUESTION ANSWER,$(if $(filter environment,$(origin $(name))),--$(name)="$$$(name)"))
JFLAG  = $(filter-out $(MAKEOVERRIDES),$(filter -j%,$(MAKEFLAGS)))
# of -j4, make 3.81 keeps the number to itself; its command line has it
COUNT  = $(or $(patsubst -j%,%,$(JFLAG)),$(shell ps -o args= -p $$PPID | sed -n 's/^[^=]* -k*j *\([0-9][0-9]*\).*/\1/p'))
FLAGS  = $(if $(findstring k,$(firstword -$(MAKEFLAGS))),--keep-going) $(if $(JFLAG),--jobs=$(COUNT))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: demo real sweep table report pictures share status maps train experiment test test-all oracles test-oracles ndif test-ndif bench bench-counts lint clean help

demo: $(READY) ## three toy models on three embedded datasets: results, table and figures in outputs/demo
	@exec $(SWEEP) demo $(FLAGS) $(VALUES) $(PAIR_WORDS)

real: $(READY) ## a language model of 135M parameters, fetched once (93 MB), on three datasets: the same in outputs/real
	@exec $(SWEEP) real $(FLAGS) $(VALUES) $(PAIR_WORDS)

sweep: $(READY) ## run what is missing or stale; -j N side by side, -k past failures
	@exec $(SWEEP) sweep $(FLAGS) $(VALUES) $(PAIR_WORDS)

table: $(READY) ## the table and figures of what is in OUT
	@exec $(SWEEP) table $(VALUES)

report: $(READY) ## table, intervals, figures and provenance on one page, OUT/report.html
	@exec $(SWEEP) report $(VALUES)

pictures: $(READY) ## docs/*.png anew from outputs/real and outputs/demo
	@exec $(PY) docs/pictures.py

share: $(READY) ## the results in OUT with a table of all numbers and a dataset card, for others to read: LICENCE= TO=
	@exec $(SWEEP) share $(VALUES)

status: $(READY) ## what is done, stale or missing in OUT, and what runs, failed or was interrupted
	@exec $(SWEEP) status $(VALUES) $(PAIR_WORDS)

maps: $(READY) ## how well one model's layers predict another's: SOURCE_MODEL= TARGET_MODEL= (TEXTS=file or Hub)
	@exec $(SWEEP) maps "$${SOURCE_MODEL:-toy-4l}" "$${TARGET_MODEL:-toy-8l}" \
	  --texts "$${TEXTS:-embedded}" --out "$${OUT:-outputs}" $(if $(QUANTIZATION),--quantization "$$QUANTIZATION")

TRAINING := $(PY) -m experiments.training.experiment

train: $(READY) ## does training decide how depth is used? twelve toys from nothing, and their measurements
	@$(TRAINING) train --out build/training
	@$(TRAINING) measure --out build/training --csv experiments/training/measured.csv

experiment: $(READY) ## measure the four toys of that experiment that ship, against the committed numbers
	@exec $(TRAINING) shipped

# ---- the environment

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "depth_lib needs Python 3.11 to 3.13, not $$($(PYTHON) -V); name one: make PYTHON=python3.11"; exit 1; }
	@$(PY) -m pip --version > /dev/null 2>&1 || { echo "making $(VENV), once"; $(PYTHON) -m venv $(VENV); }
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@# Installed for kernels that start in notebooks/; depth_lib registers itself with nnsight on import, so that it
	@# travels to a server from here too.
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# ---- the code

test: $(READY) ## the quick tests (TESTS=tests/test_x.py for a part)
	@$(PY) -m pytest -n 2 --dist loadscope -m "not slow" $(TESTS)

test-all: $(READY) ## every test, with those marked slow
	@$(PY) -m pytest -n 2 --dist loadscope $(PYTEST) $(TESTS)

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

lint: $(READY) ## check style
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

clean: ## remove the environment and caches; results in outputs/ and models trained in build/training stay
	rm -rf $(VENV) build/bdist.* build/lib *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
	@echo "variables of sweep, table, report, share and status:"
	@sed -n 's/^## /  /p' $(MAKEFILE_LIST)
