"""The paired change of an effective depth: known differences, coverage in simulations, and what is refused."""

import numpy as np
import pytest
import torch

from depth_lib.effective_depth.changes import depth_change
from depth_lib.effective_depth.rules import METRICS, PAPER_METRICS
from tests.effective_depth.coverage import CURVES, N_LAYERS, depths_of, noise, spread
from tests.effective_depth.coverage import result_of as of_prompts


def result_of(metric, curves):
    """A result in which each prompt has its own curve [P, L] and 50 tokens, with its means."""
    curves = torch.as_tensor(np.asarray(curves), dtype=torch.float32)
    return of_prompts(metric, curves) | dict.fromkeys(METRICS[metric].keys, curves.mean(0))


def shifted(curve, layers):
    """A curve whose every crossing comes so many layers earlier."""
    return np.concatenate([curve[layers:], np.repeat(curve[-1:], layers)])


@pytest.mark.parametrize("metric", PAPER_METRICS)
@pytest.mark.parametrize("kind", CURVES)
def test_the_interval_of_a_change_holds_the_truth(metric, kind):
    draw, curve, covered = np.random.default_rng(0), CURVES[kind][metric], []
    other = shifted(curve, 3)
    truth = int(depths_of(metric, other[None])[0] - depths_of(metric, curve[None])[0])
    for shared in [0.1, 0.9] * 40:
        common, *own = noise(draw, (3, 10, N_LAYERS), 0.5)
        curves = [
            of_model + spread(curve) * (np.sqrt(shared) * common + np.sqrt(1 - shared) * mine)
            for of_model, mine in zip((curve, other), own, strict=True)
        ]
        found = depth_change(*(result_of(metric, one) for one in curves), metric)
        if found.difference is None:
            continue
        covered.append((found.low is None or found.low <= truth) and (found.high is None or truth <= found.high))
        assert found.low is None or found.low <= found.difference
        assert found.high is None or found.difference <= found.high
    assert np.mean(covered) >= 0.95


def test_noise_that_both_share_does_not_widen_the_interval():
    metric, draw, curve = "kl", np.random.default_rng(1), CURVES["slow"]["kl"]
    prompts = curve + spread(curve) * noise(draw, (10, N_LAYERS), 0.9)
    other = prompts + 0.001 * spread(curve) * noise(draw, (10, N_LAYERS), 0)
    base, alike, in_another_order = (result_of(metric, one) for one in (prompts, other, other[::-1].copy()))
    paired, not_paired = (depth_change(base, one, metric) for one in (alike, in_another_order))
    assert paired.difference == not_paired.difference == 0
    assert 2 * (paired.high - paired.low) <= not_paired.high - not_paired.low


def test_of_a_result_and_itself_nothing_changes_and_of_two_the_sentence_says_which_is_earlier():
    draw = np.random.default_rng(0)
    curve = CURVES["steep"]["kl"]
    common = 0.1 * noise(draw, (10, N_LAYERS), 0)
    base, tuned = result_of("kl", curve + common), result_of("kl", shifted(curve, 3) + common)
    same = depth_change(base, base, "kl")
    assert (same.difference, same.low, same.high) == (0, 0, 0) and "as early in second as in first" in str(same)
    found = depth_change(base, tuned, "kl", ("base", "tuned"))
    assert found.difference == -3 and found.low <= -3 <= found.high < 0 and found.n_prompts == 10
    assert str(found).startswith("By kl the prediction forms 3 layers earlier in tuned than in base (layers ")
    assert "95 % over 10 shared prompts" in str(found) and "may be chance" not in str(found)
    assert str(depth_change(tuned, base, "kl")).startswith("By kl the prediction forms 3 layers later")


def test_what_has_no_interval_or_no_depth_says_why():
    curve = CURVES["steep"]["kl"]
    ten, nine = (result_of("kl", np.tile(curve, (n, 1))) for n in (10, 9))
    assert "no interval: they have read different prompts" in str(depth_change(ten, nine, "kl"))
    hashed = [ten | {"meta": {"prompts_hash": text}} for text in ("a", "b")]
    assert depth_change(*hashed, "kl").note == "they have read different prompts"
    assert depth_change(hashed[0], hashed[0], "kl").low == 0
    two = result_of("kl", np.tile(curve, (2, 1)))
    assert "too few prompts" in depth_change(two, two, "kl").note
    flat = {key: value / 100 for key, value in ten.items()}
    assert str(depth_change(ten, flat, "kl", ("a", "b"))) == (
        f"By kl there is nothing to compare: b has no signal: largest KL {curve.max() / 100:.2f} nats."
    )
    shallow = result_of("kl", np.tile(curve[::2], (10, 1)))
    assert (
        "of the depth later in second" in str(depth_change(ten, shallow, "kl"))
        and depth_change(ten, shallow, "kl").low is not None
    )
