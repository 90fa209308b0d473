"""A value exactly on a threshold falls on the side that the definition says, and a name says what is measured."""

import json

import pytest
import torch

import depth_lib as dl
from depth_lib.params import ParamsError
from depth_lib.results.schemas import ARTIFACTS
from depth_lib.run import _own_dtype as own_dtype
from depth_lib.run import resolved
from tests.families import save_family
from tests.tiny_tokenizers import char_tokenizer


@pytest.mark.parametrize(
    "rule, curve, depth",
    [
        (dl.effective_depth_kl, [4.0, 2.0, 1.9, 0.0], 2),  # below half of the maximum
        (dl.effective_depth_overlap, [0.0, 0.3, 0.31, 1.0], 2),  # above 0.3
        (lambda c: dl.effective_depth_cosine(c, c, c), [-0.5, 0.0, 0.5, 0.5], 0),  # from negative to non-negative
        (lambda c: dl.effective_depth_cosine(c, c, c), [0.5, 0.0, 0.5, 0.5], None),
    ],
)
def test_a_value_on_the_threshold_falls_on_the_side_that_the_definition_says(rule, curve, depth):
    assert rule(curve) == depth


def test_a_result_named_after_a_part_is_measured_at_that_part():
    for name, schema in ARTIFACTS.items():
        part = name.partition("_")[0]
        asked = schema.settings.get("part", schema.settings.get("at"))
        assert asked == part if part in ("attention", "mlp") else asked in (None, "layer", "block"), name


def test_a_folder_without_a_params_file_runs_in_the_dtype_of_its_config(tmp_path):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        folder = save_family("llama", tmp_path / str(dtype), char_tokenizer(), dtype)
        assert own_dtype(str(folder)) == str(dtype).removeprefix("torch.")
    of_model = resolved({"MODEL": str(folder)})
    assert (of_model.MODEL, of_model.MODEL_ID, of_model.DTYPE) == (folder.name, str(folder), "float32")
    assert resolved({"MODEL": "mine", "MODEL_ID": str(folder)}).MODEL == "mine"
    with pytest.raises(ParamsError, match='^unknown model "mine"'):
        resolved({"MODEL": "mine"})
    assert of_model.DEVICE_MAP == "auto" and own_dtype("mine.gguf") == "float32"
    for config, dtype in (
        ({"dtype": "float32", "text_config": {"dtype": "float16"}}, "float16"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({}, "bfloat16"),
        ([], "bfloat16"),
    ):
        (folder / "config.json").write_text(json.dumps(config))
        assert own_dtype(str(folder)) == dtype
