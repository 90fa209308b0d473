"""A model that does not fit is refused before a weight is read: the weights of its config against the free memory."""

import json

import pytest
from transformers import LlamaConfig

from depth_lib.models import load, memory
from depth_lib.models.errors import ModelError
from depth_lib.models.memory import DoesNotFit, check_fits
from depth_lib.run import Run
from tests.marks import slow
from tests.sweep.cells import parameters

N_WEIGHTS = 100 * (4 * 4096**2 + 3 * 4096 * 16384 + 2 * 4096) + 2 * 112 * 4096 + 4096


@pytest.fixture
def huge(tmp_path):
    """A checkpoint's folder whose config asks for 100 wide blocks; its weights are elsewhere, in whatever format."""
    shape = {"hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 100, "vocab_size": 112}
    LlamaConfig(**shape, num_attention_heads=32, num_key_value_heads=32).save_pretrained(tmp_path / "huge")
    return tmp_path / "huge"


def test_a_run_refuses_a_huge_model_before_a_weight_is_read(huge, tmp_path, monkeypatch):
    monkeypatch.setattr(load, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    cell = parameters(tmp_path / "out") | {"MODEL": "huge", "MODEL_ID": str(huge), "DTYPE": "float32"}
    with pytest.raises(
        DoesNotFit, match=r"huge needs 107.4 GB for its weights in float32, and .* GB are free; set QUANTIZATION"
    ):
        Run(cell).result("logit_lens")
    monkeypatch.setattr(load, "load_model", lambda *_, **__: "loaded")
    assert Run(cell | {"MODEL_ID": "owner/huge", "REMOTE": "http://127.0.0.1:1"}).llm == "loaded"


@pytest.mark.parametrize(
    "dtype, quantization, n_bytes",
    [("float16", None, 2), ("bfloat16", "4bit", 0.5), slow("float32", None, 4), slow("bfloat16", "8bit", 1)],
)
def test_the_weights_of_the_config_count_as_they_are_held(huge, dtype, quantization, n_bytes, monkeypatch):
    monkeypatch.setattr(memory, "_free_bytes", lambda *_: n_bytes * N_WEIGHTS)
    check_fits(str(huge), None, dtype, quantization, None)
    monkeypatch.setattr(memory, "_free_bytes", lambda *_: n_bytes * N_WEIGHTS - 1)
    with pytest.raises(DoesNotFit, match=f"GB for its weights in {quantization or dtype}"):
        check_fits(str(huge), None, dtype, quantization, None)
    config = json.loads((huge / "config.json").read_text()) | {"quantization_config": {"quant_method": "awq"}}
    (huge / "config.json").write_text(json.dumps(config))
    check_fits(str(huge), None, dtype, quantization, None)  # quantised itself, it is held as it is


def test_nothing_is_said_where_there_is_no_config(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_free_bytes", lambda *_: 0)
    check_fits("owner/name", None, "bfloat16", None, None)
    check_fits(str(tmp_path), None, "bfloat16", None, None)


def test_a_device_that_is_not_here_is_named(huge, monkeypatch):
    with pytest.raises(ModelError, match=r"device_map names 'cuda:7', which cannot be used \("):
        check_fits(str(huge), None, "bfloat16", None, "cuda:7")
