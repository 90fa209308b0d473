"""Progress and settling against their definitions, token by token, on a model and on curves made by hand."""

import numpy as np
import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.effective_depth.readings import progress_depth, settles_late, settling_depth, settling_profile
from depth_lib.effective_depth.rules import depth_score
from tests.families import save_family
from tests.oracles.streams import block_states, in_float64, lens


@pytest.mark.parametrize(
    ("progress", "l"), [([0, 0.2, 0.5, 0.4, 1], 2), ([0, 0.2, 0.3, 0.4, 1], None), ([0, 0.9, 0.3, 0.4, 1], 1)]
)
def test_progress_is_the_first_block_before_which_half_of_the_way_is_gone(progress, l):
    assert progress_depth(progress) == l


def test_settling_is_the_median_and_the_score_the_mean_of_where_each_token_settles():
    draw, L = np.random.default_rng(0), 20
    for _ in range(20):
        first = draw.integers(0, L + 1, 31)  # L: behind the last block only
        settled = [(first <= l).mean() for l in range(L)]
        median = int(np.sort(first)[15])
        assert settling_depth(settled) == (median if median < L else None)
        assert depth_score(settling_profile(settled)) == pytest.approx(first.mean())
        assert settles_late(settled) == pytest.approx((first > 0.85 * L).mean())


def test_late_is_behind_seventeen_of_twenty_layers_and_not_of_sixteen():
    settled = np.zeros(20)
    settled[17:] = 1
    assert settles_late(settled) == 0
    settled[17] = 0
    assert settles_late(settled) == 1


def test_each_token_of_a_model_settles_where_its_lens_first_comes_within_half_a_bit(tmp_path):
    from transformers import AutoModelForCausalLM

    folder, text = save_family("llama", tmp_path), "The quick brown fox jumps over 13 lazy dogs"
    llm = dl.load_model(folder)
    model = in_float64(AutoModelForCausalLM.from_pretrained(folder).eval())
    ids = torch.tensor(tokenize(llm, [text])[0])
    with torch.no_grad():
        h, logits = block_states(model, ids)
        first, y = [], logits.softmax(-1)
        for i in range(len(ids)):
            found = len(h) - 1
            for l in reversed(range(len(h) - 1)):
                p = lens(model, h[l])[i].softmax(-1)
                mean = (p + y[i]) / 2
                jsd = sum((q * (q / mean).log2()).sum() / 2 for q in (p, y[i]))
                found = l if jsd <= 0.5 else found
            first.append(found)
        moved, whole = h - h[0], h[-1] - h[0]
        progress = ((moved * whole).sum(-1) / (whole * whole).sum(-1)).mean(1)
    settled = dl.logit_lens(llm, [text])["res_settled"]
    assert depth_score(settling_profile(settled)) == pytest.approx(np.mean(first), abs=1e-5)
    assert settles_late(settled) == pytest.approx(np.mean([one > 0.85 * (len(h) - 1) for one in first]), abs=1e-6)
    ours = dl.relative_contribution(llm, [text])["progress"]
    assert torch.allclose(ours.double(), progress, atol=1e-5)
    assert progress_depth(ours) == next((l for l in range(len(h) - 1) if progress[l] >= 0.5), None)
