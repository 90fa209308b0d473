"""Contribution and logit lens of Qwen2.5-Coder-1.5B-Instruct beside plain PyTorch on the weights that transformers
itself reads from the GGUF file: DEPTH_LIB_QWEN=FILE python -m pytest tests/real/test_qwen.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import depth_lib as dl
from depth_lib.api import tokenize
from tests import oracles

FILE = os.environ.get("DEPTH_LIB_QWEN")
pytestmark = [pytest.mark.skipif(not FILE, reason="DEPTH_LIB_QWEN names no GGUF file"), pytest.mark.slow]


@pytest.fixture(scope="module")
def truth():
    """Two prompts, and what plain PyTorch says of them; the model is gone afterwards: two do not fit everywhere."""
    prompts = [prompt[:400] for prompt in dl.load_prompts("gsm8k", 2, source="sample")]
    file = Path(FILE)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    ids = [torch.tensor(x) for x in tokenize(dl.load_model(file, dtype="bfloat16"), prompts)]
    return prompts, oracles.relative_contribution(model, ids) | oracles.logit_lens(model, ids)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_probe_takes_the_gibibyte_of_the_default_budget_and_no_more():
    command = [sys.executable, "-m", "tests.real.memory", FILE, "bfloat16", "erasure"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0.2 < float(done.stdout.removeprefix("erasure: ")) < 1.2


def test_contribution_and_lens_are_plain_transformers(truth):
    prompts, curves = truth
    llm = dl.load_model(FILE, dtype="float32")
    ours = dl.relative_contribution(llm, prompts) | dl.logit_lens(llm, prompts)
    for key, curve in curves.items():
        difference = (ours[key] - curve).abs().max() / curve.abs().max()
        assert difference <= 1e-4, f"{key}: {difference:.1e}"
