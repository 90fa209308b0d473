# The graph of a study: each model x dataset is one executed notebook with its results beside it; -j and -k work.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.depth-lib-installed

# What sweep, table and status cover, and how a sweep runs; make help prints the lines that start with ##.
ifeq ($(OUT),outputs/demo)
SET ?= demo
endif
## SET=paper|ndif|demo    a folder of params/models
SET      ?= paper
## MODELS="A B"           instead of the whole set; from any of them
MODELS   ?= $(basename $(shell ls params/models/$(SET) 2> /dev/null | sort -V))
## DATASETS="gsm8k ..."   of params/datasets; the papers' three unless given
DATASETS ?= hellaswag gsm8k aime24
## OUT=folder             where results are; outputs, and outputs/demo for SET=demo
OUT      ?= $(if $(filter demo,$(SET)),outputs/demo,outputs)
## PROBES="logit_lens"    instead of those the params name
PROBES   ?=
## SOURCE=embedded        prompts: hub, embedded or a .jsonl or .parquet file, instead of what the params say
SOURCE   ?=
## REMOTE=1               on NDIF; 0 here; or local, or a host
REMOTE   ?=
## LAUNCH="srun --gres=gpu:1 --time=2:00:00"   stands before each run's command: a cluster's scheduler
LAUNCH   ?=
## GPUS="0 1 2 3"         with -j4: each run has one of them to itself, as CUDA_VISIBLE_DEVICES
GPUS     ?=
## FORMAT=json            of status
FORMAT   ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDEXPANSION:
.PHONY: demo sweep runs table report status test test-ndif bench lint clean help FORCE

# A kernelspec of the same name in the user's home must not win over the environment's own.
export JUPYTER_PREFER_ENV_PATH := 1
unexport JUPYTER_PATH

# Two at a time unless told otherwise: a toy's run is mostly imports.
demo: ## three toy models on three embedded datasets: results, table and figures in outputs/demo
	@$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j2) sweep SET=demo SOURCE=embedded OUT=outputs/demo
	@$(MAKE) --no-print-directory table SET=demo OUT=outputs/demo

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

# ---- the runs

# The results each run is to have, as variables `<dataset>/<MODEL> := <probe>:<file> ...`: they follow from the params.
GRAPH := build/sweep.mk
SWEEP := $(PY) -m depth_lib.sweep
ifneq ($(filter sweep runs table report status,$(MAKECMDGOALS)),)
include $(GRAPH)
endif

$(GRAPH): $(wildcard params/datasets/*.yaml params/models/*/*.yaml) \
  depth_lib/params.py depth_lib/sweep/__main__.py depth_lib/results/schemas.py | $(READY)
	@mkdir -p $(@D)
	@$(PY) -m depth_lib.params $(filter %.yaml,$^)
	@$(SWEEP) graph > $@.$$$$ && mv $@.$$$$ $@ || { rm -f $@.$$$$; exit 1; }

model-file = $(wildcard params/models/*/$1.yaml)
# $1 is <dataset>/<MODEL>, here and below
probes  = $(foreach p,$(or $(PROBES),$(PROBE_NAMES)),$(if $(filter $p:%,$($1)),$p))
asked   = --out '$(OUT)' $(if $(SOURCE),--source '$(SOURCE)') $(if $(REMOTE),--remote '$(REMOTE)') \
  $(if $(PROBES),--probes $(PROBES))

RUNS := $(foreach d,$(DATASETS),$(foreach m,$(MODELS),$(if $(call probes,$d/$m),$d/$m)))

ifdef PROBE_NAMES
$(if $(MODELS),,$(error no set $(SET); params/models has $(notdir $(wildcard params/models/*))))
$(foreach d,$(DATASETS),$(if $(wildcard params/datasets/$d.yaml),,$(error no params/datasets/$d.yaml; \
  there are $(notdir $(basename $(wildcard params/datasets/*.yaml))))))
$(foreach m,$(MODELS),$(if $(call model-file,$m),,$(error no params/models/*/$m.yaml; \
  there are $(sort $(notdir $(basename $(wildcard params/models/*/*.yaml)))))))
$(foreach p,$(filter-out $(PROBE_NAMES),$(PROBES)),$(error no probe $p; there are $(PROBE_NAMES)))
endif

# A run that another sweep is at is left to it, and looked at again when all others are done. What failed stays failed
# until the next sweep.
keep_going = $(findstring k,$(firstword -$(MAKEFLAGS)))
sweep: ## run what is missing or stale; -j N side by side, -k past failures
	@pass() { $(MAKE) --no-print-directory runs "$$@" & pid=$$!; wait $$pid || status=$$?; }; status=0; \
	trap 'kill -TERM $$pid; wait $$pid; exit 143' TERM INT HUP; \
	pass; \
	left=$$($(SWEEP) left $(asked) --runs $(RUNS)); \
	if [ -n "$$left" ] && { [ $$status = 0 ] || [ -n "$(keep_going)" ]; }; then pass RUNS="$$left" WAIT=--wait; fi; \
	if [ -n "$$left" ] || [ $$status != 0 ]; then \
	  $(SWEEP) summary $(asked) --runs $(RUNS) || [ $$status != 0 ] || status=1; \
	else echo "$(OUT): all $(words $(RUNS)) runs finished"; fi; exit $$status

# Whether a result is there and was made from what is asked for is seen inside it, not in its time.
ifneq ($(filter runs,$(MAKECMDGOALS)),)
ifdef PROBE_NAMES
SINCE      := $(shell date +%s)
UNFINISHED := $(shell $(SWEEP) unfinished $(asked) --runs $(RUNS))
endif
endif

runs: $(RUNS:%=$(OUT)/%/probe.ipynb)
	@:

remote = $(if $(filter 1 True,$1),-p REMOTE True,$(if $(filter 0 False,$1),-p REMOTE False,-r REMOTE $1))
overrides = -r OUT $(OUT) $(if $(SOURCE),-r SOURCE $(SOURCE)) $(if $(REMOTE),$(call remote,$(REMOTE))) \
  $(if $(PROBES),-y 'PROBES: [$(foreach p,$(call probes,$*),$p,)]')

# Jobs side by side share the cores: more threads than those, set in some environment for one job alone, make each many
# times slower. A scheduler and make OMP_NUM_THREADS=n know better.
jobs    = $(or $(patsubst -j%,%,$(filter -j%,$(MAKEFLAGS))),1)
cores   = $$(env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
share   = $$(( ($(cores) + $(jobs) - 1) / $(jobs) ))
fewest  = $$(printf '%d\n' $(share) $(or $(firstword $(subst $(comma), ,$(OMP_NUM_THREADS))),$(share)) | sort -n | head -n 1)
told    = $(filter command%,$(origin OMP_NUM_THREADS))
threads = $(if $(LAUNCH)$(told)$(filter 1,$(jobs)),,OMP_NUM_THREADS=$(fewest))
comma  := ,

# papermill leaves a notebook behind however far it came, so it writes one of another name and success renames it.
log     = $(@:.ipynb=.log)
partial = $(@:.ipynb=.partial.ipynb)
execute = $(PY) -m papermill --kernel python3 --no-progress-bar --start-timeout 300 notebooks/$(@F) $(partial)
why     = $$(grep -v '^ *$$' $(log) | tail -n 1)

# A run is done when its results are there, whatever its notebook looks like: one that is missing runs the notebook
# again, which computes that one only.
$(RUNS:%=$(OUT)/%/probe.ipynb): $(OUT)/%/probe.ipynb: \
  params/datasets/$$(*D).yaml $$(call model-file,$$(*F)) $$(if $$(filter $$*,$$(UNFINISHED)),FORCE) | $(READY)
	@exec env $(threads) $(SWEEP) run $(asked) --since $(SINCE) $(WAIT) $(if $(GPUS),--gpus $(GPUS)) --runs $* -- \
	  $(LAUNCH) $(execute) --log-output -f params/datasets/$(*D).yaml -f $(call model-file,$(*F)) $(overrides)

FORCE:

# A variable's name without its s would be ignored, and everything be run.
$(foreach v,MODEL DATASET PROBE GPU,$(if $(filter command%,$(origin $v)),$(error no variable $v; write $vS="$($v)")))

# ---- what people look at

TABLE  := $(OUT)/effective_depth.ipynb
TABLES := $(addprefix $(OUT)/effective_depth.,xlsx csv tex)

table: $(TABLE) ## the table and figures of what is in OUT

# A folder is newer than the table when a result came or went, a file when one was replaced.
$(TABLE): notebooks/effective_depth.ipynb $(wildcard $(RUNS:%=$(OUT)/%) $(RUNS:%=$(OUT)/%/*.pt)) \
  $(if $(filter-out $(wildcard $(TABLES)),$(TABLES)),FORCE) | $(READY)
	@mkdir -p $(@D)
	@echo "table and figures: running, log in $(log)"
	@$(execute) --log-output -r OUT $(OUT) -y 'MODELS: [$(foreach m,$(MODELS),$m,)]' -y 'DATASETS: [$(foreach d,$(DATASETS),$d,)]' \
	  > $(log) 2>&1 || { echo "table and figures: FAILED: $(why)"; exit 1; }
	@mv $(partial) $@
	@grep -o 'Warning: .*' $(log) | sort -u || true
	@echo "table and figures: done, $(TABLES)"

report: table ## table, intervals, figures and where from as one page, OUT/report.html
	@$(PY) -m depth_lib.report.page $(OUT) --models $(MODELS) --datasets $(DATASETS)

status: ## what is done, stale, partial, failed or missing in OUT
	@$(SWEEP) status --format "$(FORMAT)" $(asked) --runs $(RUNS)

# ---- the code

test: $(READY) ## the whole test suite (TESTS=tests/test_x.py for a part)
	@$(PY) -m pytest -n 2 --dist loadfile $(TESTS)

test-ndif: $(READY) ## five probes on the real NDIF; needs NDIF_API_KEY
	@NDIF_LIVE=1 HF_HUB_OFFLINE=0 $(PY) -m pytest -rs tests/remote/test_ndif_live.py

bench: $(READY) ## how fast the probes are (BENCH=big, BENCH_DEVICE=cuda)
	@$(PY) -m tests.benchmarks

lint: $(READY) ## check style
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

clean: ## remove the environment and caches; results in outputs/ stay
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
	@echo "for sweep, table and status:"
	@sed -n 's/^## /  /p' $(MAKEFILE_LIST)
