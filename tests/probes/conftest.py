"""Models that several files compare with: the smallest toy as transformers has it; families with and without BOS."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import depth_lib as dl
from depth_lib.embedded import toy_path
from tests.families import ARCHETYPES, build
from tests.marks import others_slow
from tests.oracles.streams import in_float64
from tests.tiny_tokenizers import char_tokenizer

FAMILIES = [(name, bos) for name in ARCHETYPES for bos in ("BOS", "no BOS")]


@pytest.fixture(scope="session")
def plain_toy():
    return AutoModelForCausalLM.from_pretrained(toy_path("toy-4l"), dtype=torch.float32).eval().requires_grad_(False)


@pytest.fixture(params=others_slow(FAMILIES, [("llama", "no BOS"), ("gemma2", "BOS")]), ids="-".join)
def pair(request):
    """A family's model as users load it, and the same in float64, for its oracle."""
    family, bos = request.param
    return dl.load_model(build(family), char_tokenizer(bos=bos == "BOS")), in_float64(build(family))
