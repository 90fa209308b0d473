"""Removing a block against transformers alone: the checkpoint's model with that block deleted from its list."""

import contextlib

import pytest
import torch
import transformers

import depth_lib as dl
from tests.third_party.conftest import REAL, TEXT, assert_near

LISTS = ("model.layers", "transformer.h", "gpt_neox.layers", "model.decoder.layers")
SHORT = "5 + 7 + 13 = 25"
TOLERANCE = 1e-4


@contextlib.contextmanager
def without(network, s):
    """A model whose list of blocks lacks one, as does its config, for the length of a block."""
    path = next(path for path in LISTS if _has(network, path))
    parent, name = network.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
    blocks, config = getattr(parent, name), network.config
    kinds = [key for key in ("layer_types", "mlp_layer_types") if getattr(config, key, None)]
    before = {key: getattr(config, key) for key in ("num_hidden_layers", *kinds)}
    setattr(parent, name, torch.nn.ModuleList(block for l, block in enumerate(blocks) if l != s))
    for key in kinds:
        setattr(config, key, [kind for l, kind in enumerate(before[key]) if l != s])
    config.num_hidden_layers = len(blocks) - 1
    try:
        yield network
    finally:
        setattr(parent, name, blocks)
        for key, value in before.items():
            setattr(config, key, value)


def _has(network, path):
    try:
        return bool(network.get_submodule(path))
    except AttributeError:
        return False


def damage(log_y, log_y_bar):
    """KL(y ‖ ȳ) and the largest ‖y − ȳ‖."""
    return {
        "remove_kl": (log_y.exp() * (log_y - log_y_bar)).sum(-1).mean(),
        "max_remove_out": (log_y.exp() - log_y_bar.exp()).norm(dim=-1).max(),
    }


@pytest.fixture(scope="module")
def text(model):
    return SHORT if model[0] == REAL else TEXT


@pytest.fixture(scope="module")
def truth(model, text):
    """What transformers says of each block's absence."""
    network = transformers.AutoModelForCausalLM.from_pretrained(model[1], dtype=torch.float32)
    network.config._attn_implementation = model[2]._module.config._attn_implementation
    ids = torch.tensor([model[2].tokenizer(text)["input_ids"]])
    predicted = torch.no_grad()(lambda: network.eval()(ids, use_cache=False).logits[0].log_softmax(-1))
    log_y, rows = predicted(), []
    for s in range(len(model[2].blocks)):
        with without(network, s):
            rows.append(damage(log_y, predicted()))
    assert torch.equal(predicted(), log_y), "whole again"
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def test_a_removed_block_is_a_model_without_it(model, text, truth):
    ours = dl.layer_effects(model[2], [text], mode="remove")
    for key, curve in truth.items():
        assert_near(ours[key].flatten(), curve, TOLERANCE)
