"""Multiple choice as in lm-evaluation-harness, and what each block is worth in questions."""

import pytest
import torch

import depth_lib as dl
from depth_lib.data.choices import load_choices
from tests.oracles import answer_span
from tests.probes.comparing import close

CHOICES = [
    ("5 + 7 = ", ["12", "120", "1"], 0),
    ("The fox", [" jumps.", " sleeps on a mat.", " ok"], 1),
    ("a b c", [" d", " d e f", " dddd"], 2),
]


def log_probs(model, tokenizer, removed=None):
    """Σ log p of every ending [C, E], by a plain forward of a model without one block."""
    blocks = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == 4)
    hook = None
    if removed is not None:  # a block that returns what enters it
        entered = {}

        def keep(_, args, kwargs):
            entered["h"] = (args[0] if args else kwargs["hidden_states"]).clone()

        before = blocks[removed].register_forward_pre_hook(keep, with_kwargs=True)
        hook = blocks[removed].register_forward_hook(
            lambda _, args, kwargs, output: (entered["h"], *output[1:]) if isinstance(output, tuple) else entered["h"],
            with_kwargs=True,
        )
    rows = []
    with torch.no_grad():
        for context, endings, _ in CHOICES:
            for ending in endings:
                ids, (start, stop) = answer_span(tokenizer, context, ending)
                log_p = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
                rows.append(sum(log_p[place - 1, ids[place]] for place in range(start, stop)))
    if hook:
        before.remove()
        hook.remove()
    return torch.stack(rows).view(len(CHOICES), -1)


def test_scores_and_the_worth_of_every_block_are_those_of_plain_forwards(pair):
    llm, model = pair
    found, of_blocks = dl.choice_accuracy(llm, CHOICES), dl.block_accuracy(llm, CHOICES)
    right = torch.tensor([choice[2] for choice in CHOICES])
    n_bytes = torch.tensor([[len(ending.strip()) for ending in endings] for _, endings, _ in CHOICES])
    n_tokens = torch.tensor([[len(ending) for ending in endings] for _, endings, _ in CHOICES])
    whole = log_probs(model, llm.tokenizer)
    close(found["log_probs"], whole)
    assert float(found["acc"]) == pytest.approx((whole.argmax(1) == right).double().mean())
    assert float(found["acc_norm"]) == pytest.approx(((whole / n_bytes).argmax(1) == right).double().mean())
    assert float(found["chance"]) == float(of_blocks["chance"]) == pytest.approx(1 / 3)
    assert torch.equal(of_blocks["unchanged_accuracy"], found["acc_norm"])
    for block in range(4):
        without = log_probs(model, llm.tokenizer, block)
        correct = ((without / n_bytes).argmax(1) == right).float()
        assert torch.equal(of_blocks["correct_by_prompt"][:, block], correct)
        removed = dl.choice_accuracy(llm, CHOICES, removed=(block, 1))
        assert torch.equal(removed["correct"], correct) and torch.equal(removed["unchanged_correct"], found["correct"])
        close(removed["log_probs"], without)
        change = dl.accuracy_change(found, {"correct": correct})
        keys = ("change", "change_low", "change_high")
        assert [float(of_blocks[key][block]) for key in keys] == pytest.approx(
            [change.value, change.low, change.high], abs=1e-6
        )
        rise = ((whole - without) / n_tokens)[range(3), right].mean()
        assert float(of_blocks["choice_loss"][block]) == pytest.approx(float(rise), abs=2e-4, rel=1e-4)


def test_orders_of_ones_own_are_measured_as_choice_accuracy_measures_them(toy):
    choices, orders = load_choices("hellaswag", 2, source="embedded"), [[0, 2, 1, 3], [0, 1, 2, 3]]
    of_orders = dl.block_accuracy(toy, choices, orders)
    for k, order in enumerate(orders):
        assert torch.equal(
            of_orders["correct_by_prompt"][:, k], dl.choice_accuracy(toy, choices, order=order)["correct"]
        )
    assert of_orders["change"][1] == 0 and of_orders["choice_loss"][1] == 0


@pytest.mark.parametrize("right", [0, 1, 2])
def test_the_same_ending_twice_is_right_whichever_of_the_two_is_named(toy, right):
    endings = [CHOICES[0][1][place] for place in (1, 0, 1)]
    found = dl.choice_accuracy(toy, [("5 + 7 = ", endings, right)])
    per_byte = found["log_probs"][0] / torch.tensor([3, 2, 3])
    assert float(found["correct"]) == float(per_byte[right] == per_byte.max())
    assert found["log_probs"][0, 0] == found["log_probs"][0, 2]


def test_a_longer_ending_is_not_punished_by_acc_norm(toy):
    """As where all tokens are as likely: the sum prefers the short ending, the mean per byte none."""
    choices = [("5 + 7 = ", ["12, and 12", "1"], 0)]
    found = dl.choice_accuracy(toy, choices)
    per_byte = found["log_probs"][0] / torch.tensor([10, 1])
    assert float(found["acc"]) == 0 and float(found["acc_norm"]) == float(per_byte.argmax() == 0)
