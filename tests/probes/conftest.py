"""The smallest toy as transformers has it, for what is compared with it."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from depth_lib.embedded import toy_path


@pytest.fixture(scope="session")
def plain_toy():
    return AutoModelForCausalLM.from_pretrained(toy_path("toy-4l"), dtype=torch.float32).eval().requires_grad_(False)
