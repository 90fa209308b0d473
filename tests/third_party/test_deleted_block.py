"""Removing a block against transformers alone: the checkpoint's model with that block deleted from its list."""

import copy

import pytest
import torch
import transformers

import depth_lib as dl
from tests.third_party.conftest import REAL, TEXT, apart, assert_near

LISTS = ("model.layers", "transformer.h", "gpt_neox.layers", "model.decoder.layers")
SHORT = "5 + 7 + 13 = 25"
TOLERANCE = 1e-4


def without(network, s):
    """A copy of a model whose list of blocks lacks one, as has its config."""
    network = copy.deepcopy(network)
    path = next(path for path in LISTS if _has(network, path))
    parent = network.get_submodule(path.rpartition(".")[0])
    kept = [block for l, block in enumerate(network.get_submodule(path)) if l != s]
    setattr(parent, path.rpartition(".")[2], torch.nn.ModuleList(kept))
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(network.config, name, None):
            setattr(network.config, name, [kind for l, kind in enumerate(getattr(network.config, name)) if l != s])
    network.config.num_hidden_layers = len(kept)
    return network


def _has(network, path):
    try:
        return bool(network.get_submodule(path))
    except AttributeError:
        return False


@torch.no_grad()
def damage(network, shorter, ids):
    """KL(y ‖ ȳ), the largest ‖y − ȳ‖ and the share of top tokens that stay."""
    log_y, log_y_bar = (one(ids, use_cache=False).logits[0].log_softmax(-1) for one in (network, shorter))
    return {
        "remove_kl": (log_y.exp() * (log_y - log_y_bar)).sum(-1).mean(),
        "max_remove_out": (log_y.exp() - log_y_bar.exp()).norm(dim=-1).max(),
        "remove_top1": (log_y.argmax(-1) == log_y_bar.argmax(-1)).float().mean(),
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
    n_layers = len(model[2].blocks)
    rows = [damage(network.eval(), without(network, s), ids) for s in range(n_layers)]
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def test_a_removed_block_is_a_model_without_it(model, text, truth):
    ours = dl.layer_effects(model[2], [text], mode="remove")
    for key, curve in truth.items():
        assert_near(ours[key].flatten(), curve, TOLERANCE)


@pytest.mark.parametrize("model", ["llama", "toy-8l"], indirect=True)
def test_the_shorter_model_disagrees_with_a_skip_that_leaves_the_first_token_alone(model, text, truth):
    ours = dl.layer_effects(model[2], [text], mode="all")
    assert apart(ours["max_all_out"].flatten(), truth["max_remove_out"]) > 100 * TOLERANCE
    assert apart(ours["all_kl"], truth["remove_kl"]) > 100 * TOLERANCE
