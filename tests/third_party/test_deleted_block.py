"""Removing a block against transformers alone: the checkpoint's model with that block deleted from its list."""

import torch
import transformers

import depth_lib as dl
from tests.oracles.removal import without
from tests.third_party.conftest import REAL, TEXT, assert_near

SHORT = "5 + 7 + 13 = 25"
TOLERANCE = 1e-4


def test_a_removed_block_is_a_model_without_it(model):
    name, folder, llm = model
    text = SHORT if name == REAL else TEXT
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    whole.config._attn_implementation = llm._module.config._attn_implementation
    ids = torch.tensor([llm.tokenizer(text)["input_ids"]])

    @torch.no_grad()
    def log_probabilities(network):
        return network(ids, use_cache=False).logits[0].log_softmax(-1)

    log_y = log_probabilities(whole)
    log_y_bar = torch.stack([log_probabilities(without(whole, [s])) for s in range(len(llm.blocks))])
    ours = dl.layer_effects(llm, [text], mode="remove")
    assert_near(ours["remove_kl"], (log_y.exp() * (log_y - log_y_bar)).sum(-1).mean(-1), TOLERANCE)
    largest = (log_y.exp() - log_y_bar.exp()).norm(dim=-1).amax(-1)
    assert_near(ours["max_remove_out"].flatten(), largest, TOLERANCE)
