"""What generated tokens say: how many settle late, and how fast self-speculation would be."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.effective_depth.deep_thinking import mean_with_interval


def responses(n_layers=20):
    torch.manual_seed(0)
    jsd = [(1 - torch.rand(n, n_layers) ** 6).half() for n in (30, 40, 50, 60, 70)]
    jsd[0][:5] = 0.25
    return jsd


@pytest.mark.parametrize("g, rho, late", [(0.5, 0.85, 17), (0.25, 0.55, 11), (0.05, 0.5, 10), (0.25, 0.50025, 11)])
def test_the_deep_thinking_ratio_is_that_of_its_definition(g, rho, late):
    """The share of tokens whose divergence is above g at all layers before the last (1 − rho) L."""
    jsd, settling, truth = responses(), [], []
    for of_response in jsd:
        c = [next((l for l, d in enumerate(token) if d <= g), 20) for token in of_response.tolist()]
        settling.append(torch.tensor(c).float())
        truth.append(sum(layer >= late for layer in c) / len(c))
    result = {"generated": [], "res_settled": torch.zeros(20), "jsd": jsd, "settling": settling}
    if g != 0.5:
        result["settling"] = [torch.zeros(1)] * 5
    frame = dl.deep_thinking_ratio(result, g, rho, correct=[0, 1, 0, 1, 1])
    assert frame.ratio.tolist() == pytest.approx(truth) and frame.tokens.tolist() == [30, 40, 50, 60, 70]
    if g == 0.5 and rho == 0.85:
        assert frame.equals(dl.deep_thinking_ratio(result, correct=[0, 1, 0, 1, 1])), "the defaults"
    r = frame[["ratio", "correct"]].rank().corr().iloc[0, 1]
    half = 1.959964 * math.sqrt((1 + r**2 / 2) / (5 - 3))
    ends = [math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)]
    found = [frame.attrs[name] for name in ("correlation", "correlation_low", "correlation_high")]
    assert found == pytest.approx([r, *ends], abs=1e-6)
    half = 2.776445 * frame.ratio.std() / 5**0.5
    ends = [max(0, frame.ratio.mean() - half), min(1, frame.ratio.mean() + half)]
    assert [frame.attrs[name] for name in ("mean", "low", "high")] == pytest.approx([np.mean(truth), *ends], abs=1e-6)


def test_an_interval_of_shares_ends_at_0_and_1_and_of_one_share_there_is_none():
    assert mean_with_interval(pd.Series([0.0, 0.1]))[1] == 0 and mean_with_interval(pd.Series([1.0, 0.9]))[2] == 1
    mean, low, high = mean_with_interval(pd.Series([0.4]))
    assert mean == 0.4 and math.isnan(low) and math.isnan(high)


@pytest.mark.parametrize(
    "settling, correct, correlation",
    [
        ([0, 0, 1, 1], [0, 0, 1, 1], 1),
        ([0, 0, 1, 1], [1, 1, 0, 0], -1),
        ([0, 1, 1], [0, 1, 1], math.nan),
        ([1, 1, 1, 1], [0, 0, 1, 1], math.nan),
        ([0, 0, 1, 1], [1, 1, 1, 1], math.nan),
    ],
)
def test_a_correlation_needs_four_responses_that_differ(settling, correct, correlation):
    result = {"settling": [torch.tensor([2.0 * late]) for late in settling], "res_settled": torch.zeros(2)}
    result["generated"] = []
    attrs = dl.deep_thinking_ratio(result, correct=correct).attrs
    assert attrs["correlation"] == pytest.approx(correlation, nan_ok=True)
    assert attrs["correlation_low"] == pytest.approx(correlation, abs=1e-6, nan_ok=True)


def test_what_deep_thinking_lacks_is_named():
    result = {"generated": [], "res_settled": torch.zeros(2), "settling": [torch.zeros(3)]}
    for how, said in (
        ({"rho": 0}, "rho must be a fraction between 0 and 1, such as 0.85, got 0"),
        ({"rho": 1.01}, "rho must be .*, got 1.01"),
        ({"g": 0.4}, "g=0.4 needs the divergence of each token"),
        ({"g": -1}, "g must be between 0 and 1 bit, the largest divergence, got -1"),
        ({"g": 5}, "g must be between 0 and 1 bit"),
        ({"g": float("nan")}, "g must be a number, got nan"),
        ({"correct": [np.nan]}, "correct is nan for a response; leave that response out"),
        ({"correct": [1, 0]}, r"correct must have one value per response, shape \(1,\), got \(2,\)"),
    ):
        with pytest.raises(ValueError, match=said):
            dl.deep_thinking_ratio(result, **how)
    with pytest.raises(ValueError, match="deep_thinking_ratio needs a logit_lens result for responses"):
        dl.deep_thinking_ratio({})
    assert dl.deep_thinking_ratio(result, rho=1).ratio.tolist() == [0]


def generated(top1):
    return {"res_top1": torch.tensor(top1), "generated": ["some"]}


def test_the_speed_of_self_speculation_is_that_of_drawn_tokens():
    """10,000 verifications, in each of which k drafts are accepted until one is not; and exactly."""
    stay, n_layers, draw = [0.2, 0.6, 0.9, 0.97], 4, np.random.default_rng(0)
    frame = dl.early_exit(generated(stay))
    for layer, k in ((1, 1), (2, 3), (3, 8)):
        accepted = np.cumprod(draw.random((10_000, k)) < stay[layer], axis=1).sum(1)
        cost = k * layer / n_layers + 1
        assert frame.loc[layer, k] == pytest.approx((1 + accepted).mean() / cost, rel=0.01)
        assert frame.loc[layer, k] == pytest.approx(sum(stay[layer] ** j for j in range(k + 1)) / cost)
    best = frame[list(range(1, 9))]
    assert (frame.speedup == best.max(axis=1)).all() and (frame.drafts == best.idxmax(axis=1)).all()
    assert list(frame) == ["stay", "drafts", "speedup", *range(1, 9)] and frame.stay.tolist() == pytest.approx(stay)
    assert frame.loc[1:, "speedup"].idxmax() == 2
    assert list(dl.early_exit(generated(stay[:2]), most=1))[3:] == [1]


def test_what_early_exit_lacks_is_named():
    with pytest.raises(ValueError, match="the model has only 1 block; early exit needs at least two"):
        dl.early_exit(generated([0.5]))
    with pytest.raises(ValueError, match="most must be from 1 to 100, got 0"):
        dl.early_exit(generated([0.5, 0.6]), 0)
    with pytest.raises(ValueError, match="early_exit needs a logit_lens result for responses"):
        dl.early_exit({"res_top1": torch.ones(2)})
    with pytest.raises(ValueError, match="early_exit needs a logit_lens result for responses"):
        dl.early_exit({})


def test_an_early_exit_is_the_same_for_a_response_that_was_stored(toy):
    prompts = ["5 + 7 = ", "1 + 2 = "]
    lens = dl.logit_lens(toy, prompts, generate=3)
    stored = dl.logit_lens(toy, prompts, answers=lens["generated"])
    assert dl.early_exit(stored).equals(dl.early_exit(lens))
