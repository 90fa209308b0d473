"""Blocks in another order, as a probe and as a model, against transformers' model with its list in that order."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from tests.families import ARCHETYPES, of_families
from tests.oracles import orders as oracle
from tests.probes.comparing import SIXTY, TOLERANCE, close, compare_in_batch, ids_of, load

TEXTS = ["abcdefghijkl", SIXTY[:29]]
KEYS = ("order_loss", "order_kl", "order_top1")
ORDERS = [[0, 2, 1, 2, 3], [3, 1]]


# one of each kind, and those whose blocks differ by their place or know it
@pytest.fixture(scope="module", params=of_families([*ARCHETYPES, "gemma3_text", "olmo3", "gpt_oss", "gpt2"]))
def pair(request):
    return load(request.param)


@pytest.fixture(scope="module")
def llama():
    return load("llama")[0]


def test_every_order_equals_a_model_rebuilt_in_that_order(pair):
    """Random orders of up to twice as many blocks, with repeats."""
    check_orders(*pair, [*ORDERS, *random_orders(10)])


@pytest.mark.slow
def test_every_named_order_equals_a_model_rebuilt_in_that_order(pair):
    named = [order for kind in ("removals", "repeats", "swaps", "reversals") for order in dl.orders(kind, 4, "all")]
    check_orders(*pair, [*named, *random_orders(20)])


def random_orders(count):
    draw = random.Random(7)
    return [[draw.randrange(4) for _ in range(draw.randint(1, 8))] for _ in range(count)]


def check_orders(llm, model, orders):
    ours = dl.block_orders(llm, TEXTS, orders, budget=65)  # two rows of the longer text per pass
    for key, curve in zip(KEYS, oracle.block_orders(model, ids_of(llm, TEXTS), orders), strict=True):
        close(ours[key], curve.float(), TOLERANCE * 2, 0.2)  # up to twice as many blocks round
    assert [[int(l) for l in row if l >= 0] for row in ours["orders"]] == orders


@pytest.mark.parametrize("in_batch", [False, True])
def test_the_order_that_a_model_has_changes_nothing(llama, monkeypatch, in_batch):
    compare_in_batch(monkeypatch, in_batch)
    found = dl.block_orders(llama, TEXTS, [[0, 1, 2, 3], [1, 0, 2, 3]])
    assert [found[key][0] for key in KEYS] == [0, 0, 1] and found["order_kl"][1] > 0.01


def test_orders_given_by_name_are_those_of_dl_orders(llama):
    found = dl.block_orders(llama, TEXTS[:1], "swaps reversals")["orders"]
    assert found.tolist() == dl.orders("swaps", 4) + dl.orders("reversals", 4)


def test_a_reordered_model_runs_generates_and_is_saved_as_one(pair, tmp_path):
    for order in ORDERS:
        check_reordered(pair[0], order, tmp_path)


@torch.no_grad()
def check_reordered(llm, order, folder):
    """It gives the logits of the oracle, with a cache too, and once it is saved and loaded by transformers alone."""
    changed = dl.reorder_blocks(llm, order)
    x = torch.tensor(tokenize(llm, TEXTS)[1:])
    logits = changed._module(x, use_cache=False).logits
    close(logits, oracle.in_order(llm._module, order)(x, use_cache=False).logits, 1e-5)
    generated, y = changed._module.generate(x, max_new_tokens=4, do_sample=False), x
    for _ in range(4):
        y = torch.cat([y, changed._module(y, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, y[:, : generated.shape[1]]), "the cache mistakes one block for another"
    changed._module.save_pretrained(folder)
    again = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=llm.config._attn_implementation)
    torch.testing.assert_close(again(x, use_cache=False).logits, logits, rtol=0, atol=1e-6)
    assert len(dl.logit_lens(changed, TEXTS)["res_kl_divs"]) == len(order)


def test_named_sets_are_what_they_say():
    assert dl.orders("repeats", 3, [1]) == [[0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 2]]
    assert dl.orders("removals", 3, [2, 1]) == [[1, 2], [2], [0, 2], [0], [0, 1]]
    assert (
        dl.orders("swaps", 3) == [[1, 0, 2], [0, 2, 1]]
        and dl.orders("swaps", 2) == [[1, 0]]
        and dl.orders("swaps", 1) == []
    )
    assert dl.orders("reversals", 4, [1, 3]) == [[2, 1, 0, 3], [0, 3, 2, 1]], "one block has no other order"
