"""Which blocks can be removed: chosen on half of the prompts, measured on the other half."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import depth_lib as dl
from tests.families import SHAPE
from tests.tiny_tokenizers import char_tokenizer


def result_of(by_prompt, sizes=(1, 2, 3), **more):
    return {"removal_sizes": np.array(sizes, float), "removal_loss_by_prompt": np.asarray(by_prompt, float)} | more


def test_the_start_that_half_of_the_prompts_choose_costs_what_the_others_say(stats):
    draw = np.random.default_rng(0)
    by_prompt = draw.uniform(0, 0.2, (10, 3, 8))
    by_prompt[:, 2] += 1
    found = dl.removable(result_of(by_prompt), at_most=0.1)
    chosen = by_prompt[::2].mean(0)
    s = int(chosen[1].argmin())
    assert (found.n, found.s, found.n_layers) == (2, s, 8) and chosen[1, s] <= 0.1
    others = by_prompt[1::2, 1, s]
    half = stats.t.ppf(0.975, 4) * others.std(ddof=1) / np.sqrt(5)
    assert tuple(found.loss) == pytest.approx((others.mean(), others.mean() - half, others.mean() + half))
    assert str(found) == (
        f"Blocks {s} and {s + 1} (2 of 8) can be removed at a cost of {found.loss.value:.3f} "
        f"[{found.loss.low:.3f}, {found.loss.high:.3f}] nats per token"
    )


def test_choosing_among_starts_that_are_alike_does_not_flatter():
    """Every removal costs 0.1 on average; the cheapest of eight on the prompts that choose seems cheaper."""
    draw, found, flattering = np.random.default_rng(1), [], []
    for _ in range(200):
        by_prompt = draw.normal(0.1, 0.1, (10, 1, 8))
        found.append(dl.removable(result_of(by_prompt, [1]), at_most=9).loss)
        flattering.append(by_prompt.mean(0).min())
    assert np.mean(flattering) < 0.07 and np.mean([one.value for one in found]) == pytest.approx(0.1, abs=0.01)
    assert np.mean([one.low <= 0.1 <= one.high for one in found]) >= 0.93


def test_few_prompts_have_no_interval_and_where_nothing_is_cheap_enough_nothing_goes():
    two = dl.removable(result_of(np.full((2, 3, 8), 0.01)))
    assert two.n == 3 and two.loss.value == 0.01 and np.isnan(two.loss.low)
    assert "0.010 nats" in str(two) and "nan" not in str(two)
    alike = dl.removable(result_of(np.full((10, 3, 8), 0.01)))
    assert np.isnan(alike.loss.low), "the spread of equal prompts says nothing"
    assert dl.removable(result_of(np.full((6, 3, 8), 0.5)), at_most=0.5).n == 3, "at most: what costs just that goes"
    for n, name in ((1, "Block 0 (1"), (2, "Blocks 0 and 1 (2"), (3, "Blocks 0 to 2 (3")):
        assert str(dl.removable(result_of(np.full((6, n, 8), 0.01), range(1, n + 1)))).startswith(f"{name} of 8) can")
    with pytest.raises(ValueError, match=r"at_most must be a number, got nan \(float\)"):
        dl.removable(result_of(np.full((6, 3, 8), 0.5)), at_most=np.nan)
    cheap = np.full((6, 3, 8), 0.5)
    cheap[1::2] = 0.01  # on the prompts that do not choose
    none = dl.removable(result_of(cheap))
    assert (none.n, none.s) == (0, None)
    assert str(none).startswith("No block can be removed for 0.05 nats per token: the cheapest removal costs 0.5000")
    with pytest.raises(ValueError, match="no block can be removed at this cost"):
        dl.remove_blocks(dl.load_model("toy-4l"), none)
    with pytest.raises(ValueError, match="removable needs a block_removal result for whole blocks"):
        dl.removable({"x": 1})


@pytest.mark.parametrize("sizes, n, next_one", [((1, 2), 2, 3), ((1, 3), 1, 2), ((2, 3), 0, 1), ((2,), 0, 1)])
def test_the_number_of_blocks_that_was_not_tried_is_named(sizes, n, next_one):
    by_prompt = np.full((6, len(sizes), 8), 9.0)
    by_prompt[:, [size <= n for size in sizes]] = 0.1
    found = dl.removable(result_of(by_prompt, sizes), at_most=0.5)
    assert (
        found.n == n and found.note.startswith(f"Removing {next_one} was not tried; ") and 'sizes="all"' in str(found)
    )
    assert str(found).startswith(
        "Blocks 0 and 1 (2" if n == 2 else "Block 0 (1" if n else "None of the sizes tried can"
    )


@pytest.mark.parametrize("sizes, n", [((1, 2, 3), 2), ((1, 2, 4), 0), (range(1, 8), 7)])
def test_nothing_is_said_where_one_block_more_was_tried_or_none_would_be_left(sizes, n):
    by_prompt = np.full((6, len(sizes), 8), 9.0)
    by_prompt[:, [size <= n for size in sizes]] = 0.1
    found = dl.removable(result_of(by_prompt, sizes), at_most=0.5)
    assert (found.n, found.note) == (n, "") and "not tried" not in str(found)


def test_what_is_chosen_and_measured_on_the_same_prompt_is_not_known():
    of_one_token = np.full((2, 3, 8), np.nan)
    for n in (0, 1):
        found = dl.removable(result_of(np.concatenate([of_one_token, np.full((n, 3, 8), -0.9)])))
        assert (found.n, found.s) == (0, None) and np.isnan(found.loss.value)
        assert f"(one to choose, one to measure), got {n}. Use more prompts" in str(found)
        with pytest.raises(ValueError, match="^Cannot determine which blocks can be removed: at least two prompts"):
            dl.remove_blocks(dl.load_model("toy-4l"), found)


def test_of_a_model_that_predicts_its_prompts_no_better_than_shuffled_ones_nothing_is_said():
    losses = {"loss": np.full(6, 4.0), "shuffled_loss": np.full(6, 4.2), "n_tokens": np.full(6, 20.0)}
    found = dl.removable(result_of(np.full((6, 3, 8), 0.0)) | losses)
    assert found.n == 0 and "Cannot determine" in str(found) and "hardly better (4.0 nats per token)" in str(found)
    assert dl.removable(result_of(np.full((6, 3, 8), 0.0)) | losses | {"loss": np.full(6, 2.0)}).n == 3


def test_of_a_random_model_no_block_can_be_removed_although_each_costs_nothing():
    torch.manual_seed(0)
    llm = dl.load_model(LlamaForCausalLM(LlamaConfig(**SHAPE | {"num_hidden_layers": 6})), char_tokenizer())
    prompts = [prompt[:200] for prompt in dl.load_prompts("gsm8k", 4, source="embedded")]
    result = dl.block_removal(llm, prompts, sizes=[1, 5])
    assert float(result["removal_loss"].nan_to_num(9).min()) < 0.05, "which would be cheap enough"
    found = dl.removable(result)
    assert found.n == 0 and found.note.startswith("the model predicts these prompts hardly better")
