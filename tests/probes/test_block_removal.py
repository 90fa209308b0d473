"""Removed blocks against transformers' model without them, as a probe and as a model."""

import copy

import pytest
import torch
import transformers as tf
from transformers import AutoModelForCausalLM, AutoTokenizer

import depth_lib as dl
from depth_lib.api import tokenize
from depth_lib.effective_depth.rules import removal_depth
from depth_lib.embedded import toy_path
from depth_lib.models.load import wrapped
from tests.families import FAMILIES, GPT_SHAPE, ONE_NORM_SHAPE, SHAPE, randomise
from tests.oracles import removal as oracle
from tests.probes.comparing import SIXTY, TOLERANCE, close, load
from tests.tiny_tokenizers import char_tokenizer

TEXTS = ["abcdefghijkl", SIXTY]
THREE = ("llama", "gemma2", "qwen3_moe")


@pytest.fixture(scope="module", params=THREE)
def pair(request, tmp_path_factory):
    return load(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return load("llama", tmp_path_factory.mktemp("llama"))[0]


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


def drawn(config):
    """A random model of a config, with its weights drawn anew."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        randomise(model)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize(
    "config",
    [
        tf.GPT2Config(**SHAPE | GPT_SHAPE, scale_attn_by_inverse_layer_idx=True),
        tf.DiffLlamaConfig(**SHAPE | {"num_attention_heads": 4, "num_key_value_heads": 4}),
    ],
    ids=["gpt2", "diffllama"],
)
def test_a_model_whose_blocks_know_their_number_is_right_and_not_saved_as_another(config, tmp_path):
    model = drawn(config)
    llm = wrapped(model, char_tokenizer())
    with pytest.warns(
        UserWarning, match=r"config computes other logits \(they differ by [\d.]+%\): it cannot be saved"
    ):
        shorter = dl.remove_blocks(llm, 0, 2)
    x = torch.tensor(tokenize(llm, TEXTS)[1:])
    full, removed = (torch.no_grad()(one._module)(x, use_cache=False).logits for one in (llm, shorter))
    kl = (full.softmax(-1) * (full.log_softmax(-1) - removed.log_softmax(-1))).sum(-1).mean()
    close(dl.block_removal(llm, TEXTS[1:], [2])["removal_kl"][0, 0], kl, TOLERANCE, 0.2)
    for save in (shorter._module.save_pretrained, lambda folder: dl.save_model(shorter, folder)):
        with pytest.raises(dl.ModelError, match="computes other logits .*, so a saved one would be another"):
            save(tmp_path)


@pytest.mark.filterwarnings("error::UserWarning")
def test_gpt_neo_without_blocks_generates_and_is_saved_as_one(tmp_path):
    settings = {"num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]], "window_size": 8}
    llm = wrapped(drawn(tf.GPTNeoConfig(**ONE_NORM_SHAPE | settings, intermediate_size=64)), char_tokenizer())
    test_a_model_without_blocks_runs_generates_and_is_saved_as_one((llm, None), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in THREE])
def test_every_other_family_without_blocks_or_parts_equals_the_oracle(name, tmp_path):
    pair = load(name, tmp_path / "whole")
    test_every_number_of_blocks_from_every_start_equals_a_model_without_them(pair)
    test_parts_removed_one_after_the_other_equal_silenced_ones(pair, "mlp")
    test_a_model_without_blocks_runs_generates_and_is_saved_as_one(pair, tmp_path)


@pytest.mark.parametrize("sizes", [[], [0], [4], [1.5], "half"])
def test_sizes_that_cannot_be_removed_are_refused(llama, sizes):
    with pytest.raises(ValueError, match='give numbers from 1 to 3, "refined", "doubling" or "all"'):
        dl.block_removal(llama, TEXTS, sizes=sizes)


@pytest.mark.parametrize(
    "s, n, message",
    [
        (0, 4, r"blocks 0..3 cannot be removed from a model of 4: at least one has to stay"),
        (99, 2, r"blocks 99..100 cannot be removed from a model of 4: it has blocks 0..3"),
        (-1, 1, r"block -1 cannot be removed from a model of 4: it has blocks 0..3"),
        (3, 2, r"blocks 3..4 cannot be removed"),
        (0, 0, r"0 blocks cannot be removed"),
        (1.0, 1, r"s is 1.0; give a whole number"),
    ],
)
def test_blocks_that_are_not_there_are_refused(llama, s, n, message):
    with pytest.raises(ValueError, match=message):
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
    with pytest.raises(ValueError, match="blocks 3..4 cannot be removed from a model of 4: it has blocks 0..3"):
        dl.choice_accuracy(llama, choices, (3, 2))
    with pytest.raises(ValueError, match="the same number of endings"):
        dl.choice_accuracy(llama, [])


@pytest.mark.parametrize("places", [(4, 4), (2,), (0, 0, 0)])
def test_blocks_that_do_nothing_are_what_a_trained_model_can_do_without(places):
    model = AutoModelForCausalLM.from_pretrained(toy_path("toy-4l"))
    tokenizer, blocks = AutoTokenizer.from_pretrained(toy_path("toy-4l")), model.model.layers
    for place in places:
        blocks.insert(place, copy.deepcopy(blocks[0]))
        for module in (blocks[place].self_attn.o_proj, blocks[place].mlp.down_proj):
            module.weight.data.zero_()
    for l, block in enumerate(blocks):
        block.self_attn.layer_idx = l
    model.config.num_hidden_layers, model.config.layer_types = len(blocks), ["full_attention"] * len(blocks)
    result = dl.block_removal(wrapped(model, tokenizer), ["5 + 7 = 12", "3 + 1 + 7 = 11", "8 + 8 + 1 = 17"], "all")
    found = dl.removable(result, at_most=1e-4)
    assert (found.n, found.s) == (len(places), places[0]) and found.low == len(places) <= found.high
    assert found.ratio == 4 / len(blocks) and abs(found.loss) < 1e-5
    rest = [result[key] for key in ("block_influence", "removal_loss", "removal_sizes")]
    assert removal_depth(*rest) == len(blocks) - 1 - dl.removable(result).n


def test_what_can_be_removed_follows_from_the_cheapest_starts_and_their_prompts():
    nan = torch.nan
    of_prompt = torch.tensor([[0.1, 0.02, 0.3, 0.4], [0.03, 0.2, 0.5, nan], [0.5, 0.3, nan, nan]])
    by_prompt = of_prompt + torch.tensor([-0.03, 0.0, 0.0, 0.03])[:, None, None]
    result = {
        "removal_loss": of_prompt,
        "removal_loss_by_prompt": by_prompt,
        "removal_sizes": torch.tensor([1.0, 2, 3]),
    }
    found = dl.removable(result)
    assert (found.n, found.s, found.ratio, found.loss) == (2, 0, 0.5, pytest.approx(0.03))
    assert (found.low, found.high) == (0, 2)
    assert dl.removable(result, at_most=0.6).n == 3 and dl.removable(result, at_most=0.01).n == 0
    assert dl.removable(result, at_most=0.01).s is None and dl.removable(result, at_most=0.01).ratio == 1
    assert dl.removable(result | {"removal_loss_by_prompt": by_prompt[:2]}).low is None


def test_what_can_be_removed_is_a_sentence_and_removing_it_gives_a_model_that_transformers_loads(tmp_path):
    llm = dl.load_model("toy-8l")
    texts = dl.load_prompts("gsm8k", 3, source="embedded")
    result = dl.block_removal(llm, texts, sizes="all")
    found = dl.removable(result, at_most=0.5)
    s, n = found.s, found.n
    assert 1 < n < 7 and str(found) == repr(found) == (
        f"{n} of 8 blocks, {s} to {s + n - 1}, can go for 0.5 nats per token ({found.low} to {found.high} over "
        f"prompts): they cost {found.loss:.3f}; sizes tried: all"
    )
    none = str(dl.removable(result, at_most=-1))
    assert none.startswith("None of 8 blocks can go for -1 nats per token (0 to 0 over prompts): the cheapest costs 0.")
    shorter = dl.remove_blocks(llm, found)
    dl.save_model(shorter, tmp_path)
    ids = llm.tokenizer(texts[0], return_tensors="pt")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(toy_path("toy-8l"), dtype=torch.float32)
    del model.model.layers[s : s + n]
    for l, block in enumerate(model.model.layers):
        block.self_attn.layer_idx = l
    truth = torch.no_grad()(model)(ids, use_cache=False).logits
    assert torch.equal(torch.no_grad()(AutoModelForCausalLM.from_pretrained(tmp_path))(ids).logits, truth)
    assert AutoTokenizer.from_pretrained(tmp_path)(texts[0])["input_ids"] == ids[0].tolist()
    with pytest.raises(ValueError, match="no block can be removed at this cost"):
        dl.remove_blocks(llm, dl.removable(result, at_most=-1))


def test_the_sizes_between_the_doubling_ones_are_tried_where_the_answer_lies(monkeypatch):
    llm, texts = dl.load_model("toy-8l"), dl.load_prompts("gsm8k", 2, source="embedded")
    every = dl.block_removal(llm, texts, sizes="all")
    cheapest = every["removal_loss"].nan_to_num(torch.inf).amin(1)
    for at_most in (0.05, 0.4, 0.7, 1.5, 100.0):
        monkeypatch.setattr("depth_lib.api.AT_MOST", at_most)
        refined = dl.block_removal(llm, texts)
        sizes = refined["removal_sizes"].long().tolist()
        assert {1, 2, 4} <= set(sizes) and sizes == sorted(sizes)
        n = dl.removable(refined, at_most).n
        assert n == 7 or n + 1 in sizes, "the next larger number was tried"
        assert n == 0 or (cheapest[:n] > at_most).any() or n == dl.removable(every, at_most).n
        for key in ("removal_loss", "angular_distance", "removal_kl_by_prompt"):
            rows = every[key][..., [size - 1 for size in sizes], :]
            assert torch.allclose(refined[key], rows, atol=1e-5, equal_nan=True), key


def test_a_prompt_of_one_token_enters_no_mean_of_losses():
    """Nothing predicts its token."""
    llm = dl.load_model("toy-4l")
    alone = dl.block_removal(llm, ["5 + 7 = 12"], sizes=[1])
    both = dl.block_removal(llm, ["5 + 7 = 12", "5"], sizes=[1])
    assert alone["removal_loss"].isfinite().all() and both["removal_loss_by_prompt"][1].isnan().all()
    torch.testing.assert_close(both["removal_loss"], alone["removal_loss"])
    orders = dl.block_orders(llm, ["5 + 7 = 12", "5"], [[0, 1, 3]])
    torch.testing.assert_close(orders["order_loss"], alone["removal_loss"][0, 2:3])
    attention = dl.block_removal(llm, ["5 + 7 = 12", "5"], part="attention")
    assert attention["removal_loss"].isfinite().all()
