"""Removed blocks against transformers' model without them, as a probe and as a model."""

import pytest
import torch
import transformers as tf
from transformers import AutoModelForCausalLM, AutoTokenizer

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.embedded import toy_path
from depth_lib.probes.block_removal import _between
from tests.families import GPT_SHAPE, SHAPE, drawn
from tests.oracles import removal as oracle
from tests.oracles.orders import damage
from tests.probes.comparing import SIXTY, TOLERANCE, close, ids_of, load, loaded

TEXTS = ["abcdefghijkl", SIXTY[:29]]
SUMS = ["5 + 7 = 12", "3 + 1 + 7 = 11", "8 + 8 + 1 = 17"]


@pytest.fixture(scope="module", params=["llama", "gemma2", "qwen3_moe"])
def pair(request):
    return load(request.param)


@pytest.fixture(scope="module")
def llama():
    return load("llama")[0]


def test_every_number_of_blocks_from_every_start_equals_a_model_without_them(pair):
    llm, model = pair
    ours = dl.block_removal(llm, TEXTS, sizes="all", budget=65)  # two rows of the longer text per pass
    assert ours["removal_sizes"].tolist() == [1, 2, 3]
    truth = oracle.block_removal(model, ids_of(llm, TEXTS), [1, 2, 3])
    for key, value in truth.items():
        assert torch.equal(ours[key].isnan(), value.isnan()), key
        close(ours[key].nan_to_num(), value.nan_to_num(), TOLERANCE, 0.2)
    close(dl.layer_effects(llm, TEXTS, mode="remove")["remove_kl"], truth["removal_kl"][0], TOLERANCE, 0.2)


@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_parts_removed_one_after_the_other_equal_silenced_ones(pair, part):
    llm, model = pair
    order, truth = oracle.part_removal(model, ids_of(llm, TEXTS), part)
    ours = dl.block_removal(llm, TEXTS, part=part)
    assert ours["removal_order"].tolist() == order
    for key, curve in truth.items():
        close(ours[key], curve, TOLERANCE, 0.2)


def logits_of(model, ids):
    return torch.no_grad()(model)(ids, use_cache=False).logits


def test_a_model_without_blocks_is_one_in_another_order_and_the_whole_one_stays_whole(llama):
    x = torch.tensor(tokenize(llama, TEXTS)[1:])
    full = logits_of(llama._module, x)
    shorter = (dl.remove_blocks(llama, 1, 2), dl.reorder_blocks(llama, [0, 3]))
    assert torch.equal(*(logits_of(llm._module, x) for llm in shorter))
    assert torch.equal(logits_of(llama._module, x), full)


KNOW_THEIR_NUMBER = {
    "gpt2": tf.GPT2Config(**SHAPE | GPT_SHAPE, scale_attn_by_inverse_layer_idx=True),
    "diffllama": tf.DiffLlamaConfig(**SHAPE | {"num_key_value_heads": 4}),
}


@pytest.mark.parametrize("name", KNOW_THEIR_NUMBER)
def test_a_model_whose_blocks_know_their_number_is_right_and_not_saved_as_another(name, tmp_path):
    llm = loaded(drawn(KNOW_THEIR_NUMBER[name]))
    with pytest.warns(
        UserWarning, match=r"cannot be saved: a model of its config computes other logits .*differ by [\d.]+%"
    ):
        shorter = dl.remove_blocks(llm, 0, 2)
    kl = damage(llm._module, shorter._module, tokenize(llm, TEXTS[1:]))[1]
    close(dl.block_removal(llm, TEXTS[1:], [2])["removal_kl"][0, 0], kl, TOLERANCE, 0.2)
    with pytest.raises(dl.ModelError, match="computes other logits .*, so a saved copy would compute something else"):
        dl.save_model(shorter, tmp_path)


def numbered(model, n_blocks):
    """Puts a changed list of blocks in order."""
    for l, block in enumerate(model.model.layers):
        block.self_attn.layer_idx = l
    model.config.num_hidden_layers, model.config.layer_types = n_blocks, ["full_attention"] * n_blocks


def test_what_can_be_removed_is_a_sentence_and_removing_it_gives_a_model_that_transformers_loads(tmp_path):
    llm = dl.load_model("toy-8l")
    result = dl.block_removal(llm, SUMS, sizes="all")
    found = dl.removable(result, at_most=0.5)
    s, n = found.s, found.n
    assert 1 < n < 7 and str(found).startswith(f"Blocks {s} ")
    assert f" {s + n - 1} ({n} of 8) can be removed at a cost of " in str(found)
    none = dl.removable(result, at_most=-1)
    dl.save_model(dl.remove_blocks(llm, found), tmp_path)
    ids = llm.tokenizer(SUMS[0], return_tensors="pt")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(toy_path("toy-8l"), dtype=torch.float32)
    del model.model.layers[s : s + n]
    numbered(model, 8 - n)
    assert torch.equal(logits_of(AutoModelForCausalLM.from_pretrained(tmp_path), ids), logits_of(model, ids))
    assert AutoTokenizer.from_pretrained(tmp_path)(SUMS[0])["input_ids"] == ids[0].tolist()
    with pytest.raises(ValueError, match="no block can be removed at this cost"):
        dl.remove_blocks(llm, none)
    with pytest.raises(ValueError, match="no block can be removed at this cost"):
        dl.choice_accuracy(llm, [("5 + 7 = ", ["12", "13"], 0)], removed=none)


@pytest.mark.parametrize(
    ("tried", "costs", "following"),
    [
        ([1, 2, 4], [0.01, 0.05, 0.06], 3),  # halfway between 2 and 4
        ([1, 2, 4], [0.01, 0.02, 0.03], 6),  # between 4 and all of 8 blocks
        ([1, 2, 3], [0.01, 0.02, 0.06], 0),  # nothing is between 2 and 3
        ([1, 2, 4], [0.06, 0.06, 0.01], 6),
        ([1, 2], [0.06, 0.07], 0),
        ([2, 4], [0.06, 0.07], 1),
    ],
)
def test_the_number_tried_next_is_halfway_to_the_first_that_costs_too_much(tried, costs, following):
    """0.05 nats may be spent, at the cheapest start, in the mean over prompts with a loss."""
    cheapest = torch.tensor(costs, dtype=torch.float64)[:, None]
    by_start = torch.cat([cheapest + 1, cheapest, torch.full_like(cheapest, torch.nan)], dim=1)
    by_prompt = torch.stack([by_start * 0, by_start * 2, by_start * torch.nan])
    assert _between(by_start[None], tried, 8) == _between(by_prompt, tried, 8) == following


def test_a_prompt_of_one_token_enters_no_mean_of_losses(toy):
    """Nothing predicts its token."""
    alone, both = (dl.block_removal(toy, texts, sizes=[1]) for texts in (SUMS[:1], [SUMS[0], "5"]))
    assert alone["removal_loss"].isfinite().all() and both["removal_loss_by_prompt"][1].isnan().all()
    torch.testing.assert_close(both["removal_loss"], alone["removal_loss"])
    orders = dl.block_orders(toy, [SUMS[0], "5"], [[0, 1, 3]])
    torch.testing.assert_close(orders["order_loss"], alone["removal_loss"][0, 2:3])
    assert dl.block_removal(toy, [SUMS[0], "5"], part="attention")["removal_loss"].isfinite().all()
