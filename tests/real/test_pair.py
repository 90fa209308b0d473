"""Two models of one family: the command of docs/pair.md on toys, and the known answers of its slope.

DEPTH_LIB_SMALL=FILE.gguf also compares contribution and lens of that model with plain PyTorch.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from docs import pair
from tests import families, oracles
from tests.tiny_tokenizers import char_tokenizer

FILE = os.environ.get("DEPTH_LIB_SMALL")


def random_texts(n, length=40):
    draw = np.random.default_rng(0)
    return ["".join(draw.choice([*"abcdefghijklmnopqrstuvwxyz .,"], length)) for _ in range(n)]


@torch.no_grad()
def halves(model):
    """A model of twice as many blocks: the attention of each block, then its MLP."""
    n = model.config.num_hidden_layers
    deep = families.build("llama", n_blocks=2 * n)
    own = model.state_dict()
    for name, weight in deep.state_dict().items():
        parts = name.split(".")
        half = None
        if parts[1] == "layers":
            half, parts[2] = int(parts[2]) % 2, str(int(parts[2]) // 2)
        weight.copy_(own[".".join(parts)])
        if half is not None and ("down_proj" if half == 0 else "o_proj") in name:
            weight.zero_()
    return deep


@pytest.fixture(scope="module")
def shallow():
    return families.build("llama")


@pytest.mark.slow
def test_maps_of_a_model_to_itself_have_slope_1_and_to_its_split_blocks_the_stretched_line(shallow):
    source = dl.load_model(shallow, char_tokenizer())
    to_itself = dl.linear_maps(source, source, random_texts(30))
    assert dl.stretch(to_itself) == pytest.approx((1, 1, 1))
    maps = dl.linear_maps(source, dl.load_model(halves(shallow), char_tokenizer()), random_texts(30))
    assert maps["best"][::2].tolist() == [0, 1, 2, 3, 4]  # what leaves the second half is what leaves the block
    assert maps["relative"].min(0).values[::2].max() < 1e-4
    value, low, high = dl.stretch(maps)
    assert abs(value - 1) < 0.08 and low <= value <= high


def test_layers_added_at_the_end_have_the_slope_of_their_line():
    errors = np.abs(np.arange(25)[:, None] - np.arange(29))
    maps = {"relative_sums": np.stack([errors] * 3), "n_tokens": np.ones(3)}
    assert dl.stretch(maps) == pytest.approx([pair.at_the_end(24, 28)] * 3)
    assert pair.at_the_end(24, 24) == 1 and pair.at_the_end(24, 28) > 1.09


@pytest.mark.slow
def test_the_command_measures_two_models_once_and_prints_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pair, "OUT", tmp_path / "out")
    monkeypatch.setattr(pair, "DOCS", tmp_path)
    monkeypatch.setattr(pair, "loaded", dl.load_model)
    monkeypatch.setattr(pair, "prompts_of", lambda dataset, n=None: dl.load_prompts(dataset, n or 4, source="embedded"))
    pair.main("toy-4l", "toy-8l")
    said = capsys.readouterr().out
    assert "slope: " in said and "toy-8l" in said and "stretched: 1, more layers at the end: 1." in said
    assert {path.name for path in (tmp_path / "pair").iterdir()} == {"maps.png", "ratios.png"}
    monkeypatch.setattr(pair, "loaded", None)
    pair.main("toy-4l", "toy-8l")  # resumed: nothing is computed twice
    assert capsys.readouterr().out == said


@pytest.mark.slow
@pytest.mark.skipif(not FILE, reason="DEPTH_LIB_SMALL names no GGUF file")
def test_contribution_and_lens_of_the_small_model_are_plain_transformers():
    prompts = [prompt[:400] for prompt in dl.load_prompts("gsm8k", 2, source="sample")]
    llm = dl.load_model(FILE, dtype="float32")
    ours = dl.relative_contribution(llm, prompts) | dl.logit_lens(llm, prompts)
    ids = [torch.tensor(x) for x in tokenize(llm, prompts)]
    del llm
    file = Path(FILE)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    truth = oracles.relative_contribution(model, ids) | oracles.logit_lens(model, ids)
    for key, curve in truth.items():
        difference = (ours[key] - curve).abs().max() / curve.abs().max()
        assert difference <= 1e-4, f"{key}: {difference:.1e}"
