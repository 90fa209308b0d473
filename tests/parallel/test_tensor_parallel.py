"""A model in slices on two ranks gives the numbers of one process, the same bits on both ranks."""

import re
import subprocess
import sys

import nnsight
import pytest
import torch
import transformers
from transformers.distributed import tensor_parallel

import depth_lib as dl
from depth_lib.models.errors import ModelError
from tests.families import save_family
from tests.notebooks import ROOT

PINNED = re.search(r"^transformers==(\S+)", (ROOT / "requirements.txt").read_text(), re.M)[1]
if not hasattr(tensor_parallel, "_get_parameter_plan") and transformers.__version__ != PINNED:
    pytest.skip(
        f"nnsight {nnsight.__version__} cannot load sharded models of transformers {transformers.__version__}",
        allow_module_level=True,
    )

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2", "qwen3", "gemma2", "mixtral")]
OF_QUADRATURE = ("completeness", "error", "n_nodes")  # and not of the model


def test_the_pinned_nnsight_can_load_sharded_models_of_the_pinned_transformers():
    assert hasattr(tensor_parallel, "_get_parameter_plan"), "pin the newest transformers that has what nnsight reads"


def torchrun(*words, ranks=2, seconds=170):
    """The finished process of so many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)


@pytest.mark.parametrize("family", ["llama", *SLOW])
def test_two_ranks_give_what_one_process_gives_and_both_the_same_bits(tmp_path, family):
    run = torchrun("-m", "tests.parallel.worker", str(tmp_path), str(save_family(family, tmp_path / family)))
    assert run.returncode == 0, run.stderr[-3000:]
    first, second, whole = (torch.load(tmp_path / f"{family}-{who}.pt") for who in (0, 1, "whole"))
    for of_probe in (*first.values(), *second.values(), *whole.values()):
        of_probe |= {key: value.nan_to_num(nan=-9) for key, value in of_probe.items()}  # sizes without blocks to remove
    assert first.keys() == whole.keys()
    for probe, truth in whole.items():
        for key, value in truth.items():
            assert torch.equal(first[probe][key], second[probe][key]), f"{probe}: {key}"
            if key not in OF_QUADRATURE:
                largest = value.abs().max().clamp_min(1e-6)
                tolerance = 5e-5 if probe == "logit_lens" else 1e-5
                difference = (first[probe][key] - value).abs().max() / largest
                assert difference <= tolerance, f"{probe}: {key} differs by {difference:.1e} of the largest value"


@pytest.mark.slow
def test_a_call_that_differs_between_ranks_is_refused_at_once_and_by_name(tmp_path):
    run = torchrun(
        "-m", "tests.parallel.worker", str(tmp_path), str(save_family("llama", tmp_path / "llama")), "rank-local"
    )
    assert run.returncode != 0 and not list(tmp_path.glob("*.pt"))
    assert "rank 1 makes another call than rank 0; every rank has to make the same calls" in run.stderr


def test_outside_of_torchrun_the_error_names_the_command():
    with pytest.raises(ModelError, match=r"tensor_parallel=2 needs 2 processes and this process is alone; run: t"):
        dl.load_model("toy-4l", tensor_parallel=2)


def test_a_degree_that_the_heads_do_not_divide_is_refused_with_those_that_work(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ModelError, match=r"toy-4l cannot be split over 3 GPUs: .* the ones that work are \[2\]"):
        dl.load_model("toy-4l", tensor_parallel=3)


def test_a_transformers_whose_slices_nnsight_cannot_read_is_named_before_loading(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delattr(tensor_parallel, "_get_parameter_plan")
    with pytest.raises(
        ModelError, match=f"of transformers {transformers.__version__}; pip install transformers=={PINNED}"
    ):
        dl.load_model("toy-4l", tensor_parallel=2)


@pytest.mark.parametrize("other", [{"device_map": "auto"}, {"remote": True}])
def test_what_cannot_be_sharded_is_refused(monkeypatch, other):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ModelError, match="tensor_parallel=2 cannot be combined with device_map, quantization or remote"
    ):
        dl.load_model("toy-4l", tensor_parallel=2, **other)
