"""The models that other people's libraries are asked about: every tiny family, the toys, and SmolLM2."""

import json
from pathlib import Path

import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.models.errors import ModelError
from depth_lib.models.gguf import dequantised, fetched
from tests.families import FAMILIES, save_family
from tests.marks import others_slow, slow

TOYS = ("toy-4l", "toy-8l", "toy-16l")
REAL = "SmolLM2-135M-Instruct"
MODELS = (*FAMILIES, *TOYS, REAL)
QUICK = ("llama", "gemma2", "gpt2", "bloom", "toy-4l")  # make test-oracles runs all
EACH = others_slow(MODELS, QUICK)
# where the library knows nothing of families: one of each kind
SOME = ["llama", "gemma2", "toy-4l", *map(slow, ("bloom", "qwen3_moe", "gpt_neox", "opt_projected", "toy-16l", REAL))]
TEXT = "The quick brown fox jumps over 13 lazy dogs, and back again"
SUM = ("5 + 7 + 1 = ", "13")


def folder_of(name, tmp):
    """The model as a checkpoint folder, as each library reads it."""
    if name in TOYS:
        return Path(dl.__file__).parent / "embedded" / name
    if name == REAL:
        try:
            return dequantised(fetched(name), torch.float32)
        except ModelError as missing:
            pytest.skip(str(missing))
    folder = save_family(name, tmp)
    if name.startswith(("gpt2", "gpt_neox")):  # TransformerLens believes a number of key heads that they do not have
        config = json.loads((folder / "config.json").read_text())
        del config["num_key_value_heads"]
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module", params=EACH)
def model(request, tmp_path_factory):
    """(name, checkpoint folder, the model as a user of ours loads it)."""
    folder = folder_of(request.param, tmp_path_factory.mktemp(request.param))
    return request.param, folder, dl.load_model(str(folder), dtype="float32")


@pytest.fixture(scope="module")
def ids(model):
    (found,) = tokenize(model[2], [TEXT])
    return torch.tensor([found])


def assert_near(ours, theirs, tolerance):
    """Every difference is small relative to the largest value."""
    off = apart(ours, theirs)
    assert off <= tolerance, f"{off:.1e}"


def apart(ours, theirs):
    assert ours.shape == theirs.shape
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-9)).item()
