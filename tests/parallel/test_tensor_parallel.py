"""A model in slices on two ranks gives the numbers of one process, the same bits on both ranks."""

import pytest
import torch

import depth_lib as dl
from depth_lib.models.errors import ModelError
from depth_lib.residual.ranks import has_ranks
from tests.families import save_family
from tests.parallel.worker import run_ranks

OF_QUADRATURE = ("completeness", "error", "n_nodes")  # and not of the model


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral"])
def test_two_ranks_give_what_one_process_gives_and_both_the_same_bits(tmp_path, family):
    whole = run_ranks(tmp_path, save_family(family, tmp_path / family))
    assert not [error.read_text() for error in tmp_path.glob("*.error")]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert first.keys() == whole.keys()
    for probe, truth in whole.items():
        for key, value in truth.items():
            ours, theirs, value = (x.nan_to_num(nan=-9) for x in (first[probe][key], second[probe][key], value))
            assert torch.equal(ours, theirs), f"{probe}: {key}"
            if key not in OF_QUADRATURE:
                tolerance = 5e-5 if probe == "logit_lens" else 1e-5
                difference = (ours - value).abs().max() / value.abs().max().clamp_min(1e-6)
                assert difference <= tolerance, f"{probe}: {key} differs by {difference:.1e} of the largest value"


def test_outside_of_torchrun_the_error_names_the_command():
    with pytest.raises(ModelError, match=r"tensor_parallel=2 needs 2 processes, got 1; run: t"):
        dl.load_model("toy-4l", tensor_parallel=2)


def test_a_degree_that_the_heads_do_not_divide_is_refused_with_those_that_work(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ModelError, match=r"toy-4l cannot be split over 3 GPUs: .* the ones that work are \[2\]"):
        dl.load_model("toy-4l", tensor_parallel=3)


@pytest.mark.parametrize("other", [{"device_map": "auto"}, {"remote": True}])
def test_what_cannot_be_sharded_is_refused(monkeypatch, other):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ModelError, match="tensor_parallel=2 cannot be combined with device_map, quantization or remote"
    ):
        dl.load_model("toy-4l", tensor_parallel=2, **other)


def test_two_connected_processes_are_ranks_and_one_is_not(monkeypatch):
    for name in ("is_available", "is_initialized"):
        monkeypatch.setattr(torch.distributed, name, lambda: True)
    for n in (1, 2):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda n=n: n)
        assert has_ranks() == (n == 2)
