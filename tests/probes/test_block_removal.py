"""Removed blocks against transformers' model without them, as a probe and as a model."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import depth_lib as dl
from depth_lib.api import tokenize
from tests.families import FAMILIES
from tests.oracles import removal as oracle
from tests.probes.comparing import SIXTY, TOLERANCE, close, load

TEXTS = ["abcdefghijkl", SIXTY]


QUICK = ("llama", "gemma2", "qwen3_moe")


@pytest.fixture(
    scope="module", params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def pair(request, tmp_path_factory):
    return load(request.param, tmp_path_factory.mktemp(request.param))


def ids(llm):
    return [torch.tensor(x) for x in tokenize(llm, TEXTS)]


def test_every_number_of_blocks_from_every_start_equals_a_model_without_them(pair):
    llm, model = pair
    ours = dl.block_removal(llm, TEXTS, sizes="all", budget=130)  # two rows of the longer text per pass
    assert ours["removal_sizes"].tolist() == [1, 2, 3]
    for key, truth in oracle.block_removal(model, ids(llm), [1, 2, 3]).items():
        assert torch.equal(ours[key].isnan(), truth.isnan()), key
        close(ours[key].nan_to_num(), truth.nan_to_num(), TOLERANCE, 0.2)


@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_parts_removed_one_after_the_other_equal_silenced_ones(pair, part):
    llm, model = pair
    order, truth = oracle.part_removal(model, ids(llm), part)
    ours = dl.block_removal(llm, TEXTS, part=part)
    assert ours["removal_order"].tolist() == order
    for key, curve in truth.items():
        close(ours[key], curve, TOLERANCE, 0.2)


def test_a_model_without_blocks_runs_generates_and_is_saved_as_one(pair, tmp_path):
    llm, _ = pair
    shorter = dl.remove_blocks(llm, 1, 2)
    x = torch.tensor(tokenize(llm, TEXTS)[1:])
    full, removed = (torch.no_grad()(model._module)(x, use_cache=False).logits for model in (llm, shorter))
    kl = (full.softmax(-1) * (full.log_softmax(-1) - removed.log_softmax(-1))).sum(-1).mean()
    close(dl.block_removal(llm, TEXTS[1:], [2])["removal_kl"][0, 1], kl, TOLERANCE, 0.2)
    assert dl.logit_lens(shorter, TEXTS)["res_kl_divs"].shape == (2,)
    generated, y = shorter._module.generate(x, max_new_tokens=4, do_sample=False), x
    for _ in range(4):
        y = torch.cat([y, torch.no_grad()(shorter._module)(y, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, y[:, : generated.shape[1]]), "the cache mistakes one block for another"
    shorter._module.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(torch.no_grad()(again)(x, use_cache=False).logits, removed)
    assert torch.equal(torch.no_grad()(llm._module)(x, use_cache=False).logits, full), "the whole model stays whole"


@pytest.mark.parametrize("sizes", [[], [0], [4], [1.5], "half"])
def test_sizes_that_cannot_be_removed_are_refused(llama, sizes):
    with pytest.raises(ValueError, match='give numbers from 1 to 3, "doubling" or "all"'):
        dl.block_removal(llama, TEXTS, sizes=sizes)


@pytest.mark.parametrize("s, n", [(0, 4), (-1, 1), (3, 2), (0, 0)])
def test_blocks_that_are_not_there_are_refused(llama, s, n):
    with pytest.raises(ValueError, match="cannot be removed from 4"):
        dl.remove_blocks(llama, s, n)


def test_the_right_ending_is_the_likeliest_of_a_model_with_and_without_blocks(pair):
    llm, model = pair
    choices = [(TEXTS[0], [" fox", "13"], 1), (SIXTY, [" and", "lazy"], 0)]
    for removed, network in ((None, model), ((1, 2), oracle.without(model, (1, 2)))):
        truth = torch.zeros(2, 2)
        for row, (context, endings, _) in enumerate(choices):
            for column, ending in enumerate(endings):
                x = torch.tensor(llm.tokenizer(context + ending)["input_ids"])
                n = len(x) - len(llm.tokenizer(context)["input_ids"])  # a tokenizer of characters
                log_p = torch.no_grad()(network)(x[None], use_cache=False).logits[0].log_softmax(-1)
                truth[row, column] = log_p[-n - 1 : -1].gather(1, x[-n:, None]).sum()
        ours = dl.choice_accuracy(llm, choices, removed)
        close(ours["log_probs"], truth, TOLERANCE)
        assert ours["correct"].tolist() == (truth.argmax(1) == torch.tensor([1, 0])).float().tolist()


def test_choices_are_worded_as_prompts_and_bad_ones_are_refused(llama):
    choices = dl.load_choices("hellaswag", 3, source="embedded")
    prompts = dl.load_prompts("hellaswag", 3, source="embedded")
    assert [c.context + c.endings[c.right] for c in choices] == prompts
    with pytest.raises(ValueError, match="has no ctx, endings and label"):
        dl.load_choices("gsm8k", 1, source="embedded")
    with pytest.raises(ValueError, match="are not blocks of this model; it has 4"):
        dl.choice_accuracy(llama, choices, (3, 2))
    with pytest.raises(ValueError, match="the same number of endings"):
        dl.choice_accuracy(llama, [])


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return load("llama", tmp_path_factory.mktemp("llama"))[0]
