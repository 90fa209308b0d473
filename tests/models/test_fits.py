"""A model that does not fit is refused before a weight is read: the sum of its files against the free memory."""

import json
import os
import shutil
from types import SimpleNamespace

import pytest
import torch

from depth_lib.embedded import toy_path
from depth_lib.models import memory
from depth_lib.models.memory import DoesNotFit, check_fits
from depth_lib.sweep import run as runs
from depth_lib.sweep.run import Run
from tests.sweep.cells import parameters


@pytest.fixture
def huge(tmp_path):
    """A checkpoint's folder with a sparse file of 400 GB of weights in float16."""
    folder = tmp_path / "huge"
    shutil.copytree(toy_path("toy-4l"), folder)
    os.truncate(folder / "model.safetensors", 400 * 10**9)
    return folder


def test_a_run_refuses_a_huge_model_before_a_weight_is_read(huge, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    cell = parameters(tmp_path / "out") | {"MODEL": "huge", "MODEL_ID": str(huge), "DTYPE": "bfloat16"}
    with pytest.raises(DoesNotFit, match=r"huge needs 400.0 GB for its weights in bfloat16, and .* GB are free; use "):
        Run(cell).result("logit_lens")
    monkeypatch.setattr(runs, "load_model", lambda *_, **__: "loaded")
    assert Run(cell | {"REMOTE": "http://127.0.0.1:1"}).llm == "loaded"


@pytest.mark.parametrize(
    "dtype, quantization, n_bytes",
    [("float32", None, 800), ("float16", None, 400), ("bfloat16", "8bit", 200), ("bfloat16", "4bit", 100)],
)
def test_the_files_count_as_they_are_held(huge, dtype, quantization, n_bytes, monkeypatch):
    monkeypatch.setattr(memory, "_free_bytes", lambda *_: n_bytes * 10**9)
    check_fits(str(huge), None, dtype, quantization, None)
    monkeypatch.setattr(memory, "_free_bytes", lambda *_: n_bytes * 10**9 - 1)
    with pytest.raises(DoesNotFit, match=f"{n_bytes}.0 GB for its weights in {quantization or dtype}"):
        check_fits(str(huge), None, dtype, quantization, None)
    config = json.loads((huge / "config.json").read_text()) | {"quantization_config": {"quant_method": "awq"}}
    (huge / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(memory, "_free_bytes", lambda *_: 400 * 10**9)
    check_fits(str(huge), None, dtype, quantization, None)  # quantised itself, it is held as it is


def test_of_a_hub_model_its_own_files_are_summed_and_nothing_is_said_where_they_are_not_known(monkeypatch):
    files = {"model-1-of-2.safetensors": 6, "model-2-of-2.safetensors": 5, "consolidated.safetensors": 11}
    siblings = [SimpleNamespace(rfilename=name, size=size * 10**9) for name, size in files.items()]
    found = {"model_info": lambda self, *_, **__: SimpleNamespace(siblings=siblings)}
    monkeypatch.setattr(memory, "HfApi", type("HfApi", (), found))
    config = SimpleNamespace(dtype=torch.bfloat16)
    monkeypatch.setattr(memory.AutoConfig, "from_pretrained", lambda *_, **__: config)
    monkeypatch.setattr(memory, "_free_bytes", lambda *_: 10**10)
    with pytest.raises(DoesNotFit, match=r"owner/name needs 11.0 GB for its weights in bfloat16, and 10.0 GB are free"):
        check_fits("owner/name", None, "bfloat16", None, None)
    monkeypatch.setattr(memory, "HfApi", None)
    check_fits("owner/name", None, "bfloat16", None, None)


@pytest.mark.parametrize(
    "device_map, n_ranks, free",
    [(None, 1, 10), ("cuda:1", 1, 20), ("cpu", 1, 5), ("auto", 1, 65), (None, 2, 20), (None, 3, 30)],
)
def test_what_is_free_depends_on_where_the_weights_go(monkeypatch, device_map, n_ranks, free):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: ((10, 20, 30)[gpu], 0))
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=5))
    assert memory._free_bytes(device_map, n_ranks) == free


def test_a_large_models_freed_tensors_are_given_back_and_a_small_ones_are_kept(monkeypatch):
    asked = []
    libc = SimpleNamespace(mallopt=lambda *setting: asked.append(setting))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: libc)
    small, large = (
        torch.nn.ParameterList([torch.nn.Parameter(torch.empty(n, dtype=torch.uint8), False)])
        for n in (2**30 - 1, 2**30)
    )
    memory.give_back_at_once(small)
    assert not asked
    memory.give_back_at_once(large)
    assert asked == [(-3, 2**20)]
