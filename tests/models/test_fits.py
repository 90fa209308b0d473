"""A model that does not fit is refused from its config alone, with what would fit."""

import json

import pytest
import torch

from depth_lib.embedded import toy_path
from depth_lib.models import memory
from depth_lib.models.memory import DoesNotFit, Weights, check_fits, free_bytes, weights_of
from depth_lib.sweep import run as runs
from depth_lib.sweep.run import Run


@pytest.fixture
def huge(tmp_path):
    """The folder of a checkpoint of 10¹¹ weights, of which only the config is there."""
    folder = tmp_path / "huge"
    folder.mkdir()
    config = json.loads((toy_path("toy-4l") / "config.json").read_text())
    config |= {"hidden_size": 32768, "intermediate_size": 262144, "num_attention_heads": 256, "num_key_value_heads": 8}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_weights_are_counted_from_the_config_as_the_checkpoint_has_them():
    from safetensors import safe_open

    with safe_open(toy_path("toy-8l") / "model.safetensors", "pt") as file:
        stored = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    counted = weights_of(str(toy_path("toy-8l")))
    total = sum(torch.Size(shape).numel() for shape in stored.values())
    assert counted.linear + counted.other == total
    linear = [shape for name, shape in stored.items() if "_proj.weight" in name]
    assert counted.linear == sum(torch.Size(shape).numel() for shape in linear)


def test_quantised_weights_take_a_byte_or_little_more_than_half_of_one():
    weights = Weights(linear=10**9, other=10**8)
    in_bfloat16, in_8bit, in_4bit = (weights.bytes("bfloat16", kind) for kind in (None, "8bit", "4bit"))
    assert in_bfloat16 == pytest.approx(2.2e9, rel=0.03) and weights.bytes("float32") == 2 * in_bfloat16
    assert in_8bit == pytest.approx(1.2e9, rel=0.03) and in_4bit == pytest.approx(0.76e9, rel=0.03)


def test_a_model_that_does_not_fit_is_said_with_what_would(monkeypatch):
    monkeypatch.setattr(memory, "weights_of", lambda *_: Weights(30 * 10**9, 2 * 10**9))
    monkeypatch.setattr(memory, "free_bytes", lambda *_: (24 * 10**9, "on GPU 0"))
    with pytest.raises(DoesNotFit) as error:
        check_fits("Qwen/Qwen2.5-32B", None, "bfloat16", "8bit", None)
    assert str(error.value) == (
        "Qwen/Qwen2.5-32B needs 34.7 GB for its weights in 8bit with bfloat16, and 24.0 GB are free on GPU 0; "
        "use QUANTIZATION 4bit (21.3 GB), or a smaller model, or a larger machine, or NDIF (REMOTE=1)"
    )
    check_fits("Qwen/Qwen2.5-32B", None, "bfloat16", "4bit", None)


@pytest.mark.parametrize(
    "quantized, width",
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.52),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, 1.02),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5625),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_checkpoint_that_is_quantised_counts_as_it_is_stored(huge, quantized, width):
    plain = weights_of(str(huge))
    file = huge / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": quantized}))
    if width is None:  # it does not say, so nothing is refused
        return check_fits(str(huge), None, "bfloat16", None, None)
    expected = 1.02 * (width * plain.linear + 2 * plain.other)
    assert weights_of(str(huge)).bytes("bfloat16") == pytest.approx(expected, rel=0.01)
    with pytest.raises(DoesNotFit, match=f"in {quantized['quant_method']} with bfloat16, .*; use a smaller model"):
        check_fits(str(huge), None, "bfloat16", None, None)


def test_a_run_refuses_a_huge_model_before_a_weight_is_read(huge, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(runs, "load_model", refuse)
    cell = {
        "MODEL": "huge",
        "MODEL_ID": str(huge),
        "REVISION": None,
        "DTYPE": "bfloat16",
        "QUANTIZATION": None,
        "DEVICE_MAP": None,
        "REMOTE": False,
        "DATASET": "addition",
        "N_EXAMPLES": 2,
        "SOURCE": "embedded",
        "PROBES": ["logit_lens"],
        "SEED": 1,
        "OUT": str(tmp_path / "out"),
    }
    with pytest.raises(DoesNotFit, match=r"huge needs \d\d\d\.\d GB for its weights in bfloat16, and .* GB are free"):
        Run(cell).result("logit_lens")
    with pytest.raises(AssertionError, match="loaded"):
        Run(cell | {"REMOTE": "http://127.0.0.1:1"}).result("logit_lens")


def test_nothing_is_said_of_a_model_whose_config_is_not_to_be_had(tmp_path):
    assert weights_of("nobody/nothing") is None
    check_fits(str(tmp_path), None, "float32", None, None)


@pytest.mark.parametrize(
    ("device_map", "quantization", "free"),
    [
        (None, None, 10),
        ("cuda", None, 10),
        ("cuda:1", None, 20),
        ("cpu", None, 5),
        ("auto", None, 35),
        ("auto", "8bit", 30),
    ],
)
def test_what_is_free_depends_on_where_the_weights_go(monkeypatch, device_map, quantization, free):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (10 * (i + 1), 0))
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 5}))
    assert free_bytes(device_map, quantization)[0] == free


def test_gpus_that_share_each_layer_count_together_and_the_fullest_decides(huge, monkeypatch):
    free = [80 * 10**9, 60 * 10**9, 80 * 10**9, 80 * 10**9]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free[index], 80 * 10**9))
    check_fits(str(huge), None, "bfloat16", None, None, n_ranks=4)  # 240 GB
    with pytest.raises(DoesNotFit, match=r"huge needs [12]\d\d\.\d GB .* 120.0 GB are free on 2 GPUs that share each"):
        check_fits(str(huge), None, "bfloat16", None, None, n_ranks=2)
