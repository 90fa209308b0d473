"""Blocks in another order, as a probe, against transformers' model with its list of blocks in that order."""

import random

import pytest
import torch

import depth_lib as dl
from depth_lib.api import tokenize
from tests.families import QUICK
from tests.oracles import orders as oracle
from tests.probes.comparing import SIXTY, TOLERANCE, close, compare_in_batch, load

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


def test_named_sets_are_what_they_say():
    assert dl.repeats(3, [1]) == [[0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 2]]
    assert dl.removals(3, [2, 1]) == [[1, 2], [2], [0, 2], [0], [0, 1]]
    assert dl.swaps(3) == [[1, 0, 2], [0, 2, 1]] and dl.swaps(2) == [[1, 0]] and dl.swaps(1) == []
    assert dl.reversals(4, [3]) == [[2, 1, 0, 3], [0, 3, 2, 1]]


@pytest.mark.parametrize("orders", [[], [[]], [[0, 4]], [[-1]], [[1.0]], "repeat", ""])
def test_orders_that_the_model_does_not_have_are_refused(llama, orders):
    with pytest.raises(ValueError, match="give lists of"):
        dl.block_orders(llama, TEXTS, orders)
