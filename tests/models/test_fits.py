"""A model that does not fit is refused before a weight is read: the sum of its files against the free memory."""

import json
import os
import shutil

import pytest

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
