"""Blocks in another order, as a probe, against transformers' model with its list of blocks in that order."""

import random

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

import depth_lib as dl
from depth_lib.api import tokenize
from tests.families import QUICK, randomise
from tests.models.kinds import tiny
from tests.oracles import orders as oracle
from tests.probes.comparing import SIXTY, TOLERANCE, close, compare_in_batch, load, loaded
from tests.probes.test_windows import _neo

TEXTS = ["abcdefghijkl", SIXTY]
EIGHT = (*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3_text", "gpt2", "gpt_neox", "olmo3")))


@pytest.fixture(scope="module", params=EIGHT)
def pair(request, tmp_path_factory):
    return load(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return load("llama", tmp_path_factory.mktemp("llama"))[0]


def ids(llm):
    return [torch.tensor(x) for x in tokenize(llm, TEXTS)]


def drawn(n_layers, count):
    """Random orders of up to twice as many blocks, with repeats."""
    draw = random.Random(7)
    return [[draw.randrange(n_layers) for _ in range(draw.randint(1, 2 * n_layers))] for _ in range(count)]


def test_every_order_equals_a_model_rebuilt_in_that_order(pair):
    llm, model = pair
    orders = [*dl.removals(4, "all"), *dl.repeats(4, "all"), *dl.swaps(4), *dl.reversals(4, "all"), *drawn(4, 20)]
    ours = dl.block_orders(llm, TEXTS, orders, budget=130)  # two rows of the longer text per pass
    truth = oracle.block_orders(model, ids(llm), orders)
    for key, curve in zip(("order_loss", "order_kl", "order_top1"), truth, strict=True):
        close(ours[key], curve.float(), TOLERANCE * 2, 0.2)  # up to twice as many blocks round
    assert [[int(l) for l in row if l >= 0] for row in ours["orders"]] == orders


@pytest.mark.parametrize("in_batch", [False, True])
def test_the_order_that_a_model_has_changes_nothing(llama, monkeypatch, in_batch):
    compare_in_batch(monkeypatch, in_batch)
    found = dl.block_orders(llama, TEXTS, [[0, 1, 2, 3], [1, 0, 2, 3]])
    assert found["order_loss"][0] == 0 and found["order_kl"][0] == 0 and found["order_top1"][0] == 1
    assert found["order_kl"][1] > 0.01


def test_removals_are_those_of_block_removal(llama):
    removal = dl.block_removal(llama, TEXTS, sizes="all")
    orders = dl.block_orders(llama, TEXTS, dl.removals(4, "all"))
    n, s = zip(
        *[
            (4 - len(order), next((k for k, l in enumerate(order) if k != l), len(order)))
            for order in dl.removals(4, "all")
        ],
        strict=True,
    )
    for key in ("loss", "kl", "top1"):
        places = removal[f"removal_{key}"][torch.tensor(n) - 1, torch.tensor(s)]
        torch.testing.assert_close(orders[f"order_{key}"], places, rtol=0, atol=1e-6)


def other_kind(name, folder):
    """A model whose blocks are of two kinds, by their windows or their mixers."""
    if name != "gpt_neo":
        return loaded(tiny(name).float(), folder)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(_neo(8, 128))
    randomise(model)
    return loaded(model, folder)


@pytest.mark.parametrize("name", ["gpt_neo", pytest.param("qwen3_next", marks=pytest.mark.slow)])
def test_blocks_keep_their_own_kind_of_mixer_wherever_they_stand(name, tmp_path):
    llm = other_kind(name, tmp_path)
    orders = [[2, 1, 0, 3], [0, 1, 2, 1, 2, 3], [3, 3, 0], [1, 0, 3, 2]]
    ours = dl.block_orders(llm, TEXTS, orders)
    truth = oracle.block_orders(llm._module, ids(llm), orders)
    for key, curve in zip(("order_loss", "order_kl", "order_top1"), truth, strict=True):
        close(ours[key], curve.float(), 1e-4, 0.2)
    check_reordered(llm, [0, 2, 1, 2, 3], tmp_path / "saved")


@pytest.mark.parametrize("order", [[0, 2, 1, 2, 3], [3, 1], [0, 1, 2, 3]])
def test_a_reordered_model_runs_generates_and_is_saved_as_one(pair, order, tmp_path):
    check_reordered(pair[0], order, tmp_path)


def check_reordered(llm, order, folder):
    """It gives the logits of the oracle, with a cache too, and once it is saved and loaded by transformers alone."""
    changed = dl.reorder_blocks(llm, order)
    x = torch.tensor(tokenize(llm, TEXTS)[1:])
    truth = torch.no_grad()(oracle.in_order(llm._module, order))(x, use_cache=False).logits
    logits = torch.no_grad()(changed._module)(x, use_cache=False).logits
    close(logits, truth, 1e-5)
    generated, y = changed._module.generate(x, max_new_tokens=4, do_sample=False), x
    for _ in range(4):
        y = torch.cat([y, torch.no_grad()(changed._module)(y, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, y[:, : generated.shape[1]]), "the cache mistakes one block for another"
    changed._module.save_pretrained(folder)
    again = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=llm.config._attn_implementation)
    torch.testing.assert_close(torch.no_grad()(again)(x, use_cache=False).logits, logits, rtol=0, atol=1e-6)
    assert len(dl.logit_lens(changed, TEXTS)["res_kl_divs"]) == len(order)


def test_endings_are_scored_with_the_blocks_in_each_order(llama):
    choices = [(TEXTS[0], [" fox", "13"], 1), (SIXTY, [" and", "lazy"], 0)]
    orders = [[0, 1, 2, 3], [0, 2, 1, 3], [0, 1, 2, 1, 2, 3], [3]]
    several = dl.choice_accuracy(llama, choices, order=orders)
    assert several["correct"].shape == (4, 2) and several["accuracy"].shape == (4,)
    as_it_is = dl.choice_accuracy(llama, choices)
    assert torch.equal(several["log_probs"][0], as_it_is["log_probs"])
    assert torch.equal(several["unchanged_correct"], as_it_is["correct"])
    for k, order in enumerate(orders):
        one = dl.choice_accuracy(llama, choices, order=order)
        rebuilt = dl.choice_accuracy(dl.reorder_blocks(llama, order), choices)
        for found in (one["log_probs"], several["log_probs"][k]):
            torch.testing.assert_close(found, rebuilt["log_probs"], rtol=1e-5, atol=1e-4)
    with pytest.raises(ValueError, match="not both"):
        dl.choice_accuracy(llama, choices, removed=(0, 1), order=[0])


def test_mergekits_recipe_has_a_slice_for_each_stretch():
    recipe = yaml.safe_load(dl.mergekit_yaml("owner/name", [0, 1, 2, 1, 2, 3, 5]))
    ranges = [piece["sources"][0]["layer_range"] for piece in recipe["slices"]]
    assert ranges == [[0, 3], [1, 4], [5, 6]] and recipe["merge_method"] == "passthrough"
    assert recipe["slices"][0]["sources"][0]["model"] == "owner/name"
    with pytest.raises(ValueError, match="is not an order of this model"):
        dl.mergekit_yaml("owner/name", [])


def test_named_sets_are_what_they_say():
    assert dl.repeats(3, [1]) == [[0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 2]]
    assert dl.removals(3, [2, 1]) == [[1, 2], [2], [0, 2], [0], [0, 1]]
    assert dl.swaps(3) == [[1, 0, 2], [0, 2, 1]] and dl.swaps(2) == [[1, 0]] and dl.swaps(1) == []
    assert dl.reversals(4, [3]) == [[2, 1, 0, 3], [0, 3, 2, 1]]


@pytest.mark.parametrize("orders", [[], [[]], [[0, 4]], [[-1]], [[1.0]], "repeat", ""])
def test_orders_that_the_model_does_not_have_are_refused(llama, orders):
    with pytest.raises(ValueError, match="give lists of"):
        dl.block_orders(llama, TEXTS, orders)


@pytest.mark.parametrize("order", [[], [4], [0, True]])
def test_a_model_is_not_reordered_by_blocks_that_it_lacks(llama, order):
    with pytest.raises(ValueError, match="is not an order of this model's blocks"):
        dl.reorder_blocks(llama, order)
