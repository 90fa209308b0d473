"""The depths beside the papers': skips, erasure, progress and settling, on curves made by hand and on models."""

import numpy as np
import pytest
import torch

import depth_lib as dl
from depth_lib.effective_depth.intervals import centre_of_mass
from depth_lib.effective_depth.rules import (
    depth_score,
    effective_depth_erasure,
    n_answer_tokens,
    progress_depth,
    settling_depth,
    settling_profile,
    skip_profile,
)
from tests.families import build, make_identity
from tests.probes.comparing import loaded

TEXTS = ["The quick brown fox jumps over 13 lazy dogs", "Pack my box with five dozen liquor jugs"]


def skip_depth(llm):
    return depth_score(skip_profile(dl.layer_effects(llm, TEXTS, "all")["all_kl"]))


def test_identity_blocks_at_the_end_leave_the_depth_of_skips_where_it_is():
    longer = make_identity(build("llama"), (2, 3))
    shorter = build("llama", n_blocks=2)
    shorter.load_state_dict(longer.state_dict(), strict=False)
    depths = [skip_depth(loaded(model)) for model in (longer, shorter)]
    assert depths[0] == pytest.approx(depths[1], abs=1e-4) and depths[0] < 2


def test_where_one_block_alone_does_anything_the_depth_of_skips_is_that_block():
    model = make_identity(build("llama"), (0, 1, 3))
    assert skip_depth(loaded(model)) == pytest.approx(2, abs=1e-4)


def test_the_erasure_depth_looks_at_question_tokens_that_neither_come_first_nor_predict_the_answer():
    effects = torch.zeros(5, 7)  # four blocks; four question tokens, the one that predicts, and an answer of two
    effects[:, 0] = 9.0  # the first token, an attention sink
    effects[:, 4:6] = 1.4
    effects[0, 1], effects[1, 2], effects[2, 3], effects[3, 1] = 0.9, 0.6, 0.5, 0.4
    assert effective_depth_erasure(effects, n_answer_tokens=2) == 2
    assert effective_depth_erasure(effects, n_answer_tokens=2, first_token=0) == 3
    assert effective_depth_erasure(torch.zeros(5, 7), 2) is None
    with pytest.raises(ValueError, match="no question token lies between token 1 and the one that predicts"):
        effective_depth_erasure(torch.ones(5, 4), 2)
    effects[1, 1] = float("nan")
    with pytest.raises(ValueError, match="erasure is nan at layer 1"):
        effective_depth_erasure(effects, 2)


def test_the_depth_score_is_the_centre_of_mass():
    assert depth_score([0, 0, 1, 0]) == 2 and depth_score([1, 0, 0, 3]) == pytest.approx(2.25)
    assert depth_score([0.0, 0.0]) is None
    with pytest.raises(ValueError, match="-1 at layer 1"):
        depth_score([1.0, -1.0])


@pytest.mark.parametrize("shared", [0, 1])
def test_what_can_be_removed_is_in_its_interval_where_noise_makes_some_of_many_starts_cheap(shared):
    draw, sizes, covered = np.random.default_rng(0), np.arange(1, 9), 0
    loss = np.where(np.arange(16) + sizes[:, None] <= 16, np.where(sizes == 1, 0.02, 0.055)[:, None], np.nan)
    for _ in range(100):
        own, common = draw.standard_normal((5, *loss.shape)), draw.standard_normal((5, 1, 1))
        by_prompt = loss + 0.05 * (common if shared else own)
        result = {"removal_loss": by_prompt.mean(0), "removal_loss_by_prompt": by_prompt, "removal_sizes": sizes}
        found = dl.removable(result, at_most=0.05)
        covered += found.low <= 1 <= found.high
    assert covered >= 94


@pytest.mark.parametrize(
    ("tokens", "n"), [(["5", "=", "2", "8"], 2), (["5", "=", " 28"], 1), (["5", "=", "28"], 1), (None, 1)]
)
def test_answer_tokens_are_counted_from_the_end_by_their_text(tokens, n):
    assert n_answer_tokens({"tokens": tokens, "meta": {"settings": {"answer": "28"}}}) == n
    assert n_answer_tokens({"tokens": tokens}) == n
    assert n_answer_tokens({"tokens": tokens, "n_answer": torch.tensor([2.0])}) == 2


@pytest.mark.parametrize(
    ("progress", "l"), [([0, 0.2, 0.5, 0.4, 1], 2), ([0, 0.2, 0.3, 0.4, 1], None), ([0, 0.9, 0.3, 0.4, 1], 1)]
)
def test_progress_is_the_first_block_before_which_half_of_the_way_is_gone(progress, l):
    assert progress_depth(progress) == l


def test_settling_is_the_median_and_the_score_the_mean_of_where_each_token_settles():
    draw, n_layers = np.random.default_rng(0), 20
    for _ in range(20):
        first = draw.integers(0, n_layers + 1, 31)  # n_layers: after the last block only
        settled = [(first <= l).mean() for l in range(n_layers)]
        median = int(np.sort(first)[15])
        assert settling_depth(settled) == (median if median < n_layers else None)
        assert depth_score(settling_profile(settled)) == pytest.approx(first.mean())


@pytest.mark.slow
def test_five_prompts_and_ten_have_the_same_depth_of_skips_within_their_intervals():
    prompts = dl.load_prompts("gsm8k", 10, source="embedded")
    by_prompt = dl.layer_effects(dl.load_model("toy-8l"), prompts, "all")["all_kl_by_prompt"].double().clip(0).numpy()
    few, many = centre_of_mass(by_prompt[:5]), centre_of_mass(by_prompt)
    assert few.low <= many.value <= few.high and many.low <= few.value <= many.high
    assert many.high - many.low < few.high - few.low
