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
## DATASETS="gsm8k ..."   of params/datasets, or that OUT has; the papers' three unless given, in a table those there are
## OUT=folder             where results are; outputs, and outputs/demo for SET=demo
## PROBES="logit_lens"    instead of those the params name
## N_EXAMPLES=20          so any parameter of a run, instead of what the params files say: SOURCE=embedded, REMOTE=1,
##                        QUANTIZATION=null, DTYPE=bfloat16, PAIR=spouse … (depth-lib sweep --help has all)
## QUESTION="…" ANSWER="…" a question of your own; a dollar sign is written twice, and ANSWER=" 12" before make keeps its space
## JOBS=4                 runs side by side, as -j4
## LAUNCH="srun --gres=gpu:1 --time=2:00:00"   stands before each run's command: a cluster's scheduler
## TENSOR_PARALLEL=4      four GPUs share each layer of a run's model: torchrun with four ranks; only with QUANTIZATION=null
## GPUS="0 1 2 3"         each run has one of them to itself, as CUDA_VISIBLE_DEVICES
## TO=folder              of share; OUT/shared unless given
SWEEP := $(PY) -m depth_lib.sweep
NAMED  = $(foreach name,$(filter-out PYTHON VENV OMP_NUM_THREADS,$(.VARIABLES)),$(if $(filter command,$(origin $(name))),$(name)))
NAMED += $(foreach name,QUESTION ANSWER,$(if $(filter environment,$(origin $(name))),$(name)))
VALUES = $(foreach name,$(NAMED),$(if $(value $(name)),-p $(name)="$$$(name)"))
FLAGS  = $(if $(findstring k,$(firstword -$(MAKEFLAGS))),--keep-going) $(patsubst -j%,--jobs=%,$(filter-out $(MAKEOVERRIDES),$(filter -j%,$(MAKEFLAGS))))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: demo real sweep table report pictures share status maps train experiment test test-all oracles test-oracles test-ndif bench lint clean help

demo: $(READY) ## three toy models on three embedded datasets: results, table and figures in outputs/demo
	@exec $(SWEEP) demo $(FLAGS) $(VALUES)

real: $(READY) ## a language model of 135M parameters, fetched once (93 MB), on three datasets: the same in outputs/real
	@exec $(SWEEP) real $(FLAGS) $(VALUES)

sweep: $(READY) ## run what is missing or stale; -j N side by side, -k past failures
	@exec $(SWEEP) sweep $(FLAGS) $(VALUES)

table: $(READY) ## the table and figures of what is in OUT
	@exec $(SWEEP) table $(FLAGS) $(VALUES)

report: $(READY) ## table, intervals, figures and provenance on one page, OUT/report.html
	@exec $(SWEEP) report $(FLAGS) $(VALUES)

pictures: $(READY) ## docs/*.png anew from outputs/real and outputs/demo
	@exec $(PY) docs/pictures.py

share: $(READY) ## what is in OUT as Parquet with a dataset card, for others to read: TO=folder
	@exec $(SWEEP) share $(FLAGS) $(VALUES)

status: $(READY) ## what is done, stale or missing in OUT, and what runs, failed or was interrupted
	@exec $(SWEEP) status $(FLAGS) $(VALUES)

maps: $(READY) ## how well one model's layers predict another's: SOURCE_MODEL= TARGET_MODEL= (TEXTS=file or Hub)
	@exec $(PY) -m depth_lib.model_maps "$${SOURCE_MODEL:-toy-4l}" "$${TARGET_MODEL:-toy-8l}" \
	  --texts "$${TEXTS:-embedded}" --out "$${OUT:-outputs}" $(if $(QUANTIZATION),--quantization "$$QUANTIZATION")

TRAINING := $(PY) -m experiments.training.experiment

train: $(READY) ## does training decide how depth is used? twelve toys from nothing, and their measurements: an hour
	@$(TRAINING) train --out build/training
	@$(TRAINING) measure --out build/training --csv experiments/training/measured.csv

experiment: $(READY) ## measure the four toys of that experiment that ship, against the committed numbers: minutes
	@exec $(TRAINING) shipped

# ---- the environment

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "depth_lib needs Python 3.11 to 3.13, not $$($(PYTHON) -V); name one: make PYTHON=python3.11"; exit 1; }
	@$(PY) -m pip --version > /dev/null 2>&1 || { echo "making $(VENV) (minutes, once)"; $(PYTHON) -m venv $(VENV); }
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@# Installed for kernels that start in notebooks/; depth_lib registers itself with nnsight on import, so that it
	@# travels to a server from here too.
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# ---- the code

test: $(READY) ## the quick tests, about four minutes on two cores (TESTS=tests/test_x.py for a part)
	@$(PY) -m pytest -n 3 --dist loadscope -m "not slow" $(TESTS)

test-all: $(READY) ## every test, with those marked slow
	@$(PY) -m pytest -n 3 --dist loadscope $(TESTS)

oracles: $(READY) ## install other people's libraries, the extra `oracles`: make test then holds the probes against them
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[oracles]' --constraint requirements.txt

test-oracles: oracles ## probes against TransformerLens, captum and shorter models; a page of 36 runs in a browser
	@REPORT_OF_36=1 $(PY) -m pytest -rs tests/third_party tests/report/test_explore.py

test-ndif: $(READY) ## five probes on the real NDIF; needs NDIF_API_KEY
	@NDIF_LIVE=1 HF_HUB_OFFLINE=0 $(PY) -m pytest -rs tests/remote/test_ndif_live.py

bench: $(READY) ## how fast the probes are (BENCH=real DTYPE=bfloat16; BENCH=big, BENCH_DEVICE=cuda)
	@$(PY) -m tests.benchmarks

lint: $(READY) ## check style
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

clean: ## remove the environment and caches; results in outputs/ stay
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
	@echo "variables of sweep, table, report, share and status:"
	@sed -n 's/^## /  /p' $(MAKEFILE_LIST)
