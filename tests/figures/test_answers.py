"""Figures of responses, direct effects and the worth of blocks draw what the results have."""

import numpy as np
import pytest
import torch

import depth_lib as dl
from tests.figures.drawn import bars


def test_a_response_is_a_map_of_its_divergences_with_the_layers_where_its_tokens_settle(toy):
    result = dl.logit_lens(toy, ["5 + 7 = ", "1 + 2 = "], generate=4, per_token=True)
    ax = dl.plot("response", result)
    ax = ax if hasattr(ax, "images") else ax.axes[0]
    np.testing.assert_allclose(ax.images[0].get_array(), result["jsd"][0].float().numpy().T)
    settling = result["settling"][0].numpy()
    (dots,) = (line for line in ax.lines if line.get_label() == "settles")
    np.testing.assert_array_equal(dots.get_ydata(), np.where(settling < 4, settling, np.nan))
    assert len(ax.get_xticklabels()) == len(settling)
    second = result | {key: result[key][1:] for key in ("jsd", "tokens", "settling")}
    drawn = dl.plot("response", second).figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(drawn, result["jsd"][1].float().numpy().T)
    with pytest.raises(ValueError, match="jsd, tokens, settling are not of the same responses; take the same slice"):
        dl.plot("response", result | {"jsd": result["jsd"][1:]})
    assert "response" not in dl.kinds_of("logit_lens", dl.logit_lens(toy, ["5 + 7 = "]))


def test_direct_effects_are_two_maps_of_all_tokens_of_the_answer(toy):
    result = dl.direct_effects(toy, "5 + 7 = ", "12")
    figure = dl.plot("direct_effects", result).figure
    maps = [ax.images[0].get_array() for ax in figure.axes if ax.images][:2]
    for drawn, key in zip(maps, ("direct_att", "direct_mlp"), strict=True):
        np.testing.assert_allclose(drawn, result[key].numpy())


def test_loss_and_accuracy_of_removed_blocks_are_side_by_side(toy):
    result = dl.block_accuracy(toy, dl.load_choices("hellaswag", 4, source="embedded"))
    change = torch.tensor([-0.25, -0.25, 0.25, 0.0])
    result |= {"change": change, "change_low": change - 0.5, "change_high": change + 0.25}
    result["choice_loss"] = torch.tensor([0.5, -0.1, 0.2, 0.0])
    axes = dl.plot("block_accuracy", result).figure.axes
    for ax, cost in zip(axes, (result["choice_loss"], -change), strict=True):
        ((heights, first, _),) = bars(ax).values()
        np.testing.assert_allclose(heights, cost.numpy())
        (circles,) = (line for line in ax.lines if line.get_label() == "only one of the two rises")
        assert first == 0 and circles.get_xdata().tolist() == [1, 2]
        np.testing.assert_allclose(circles.get_ydata(), cost[1:3])
    ends = np.stack([segment[:, 1] for segment in axes[1].collections[0].get_segments()])
    np.testing.assert_allclose(ends, -np.stack([result["change_high"], result["change_low"]], 1), atol=1e-7)


def test_late_tokens_are_drawn_of_each_response_and_as_means_of_right_and_wrong_ones(toy):
    lens = dl.logit_lens(toy, ["5 + 7 = ", "1 + 2 = ", "3 + 3 = ", "8 + 1 = "], generate=4)
    assert "late_tokens" not in dl.kinds_of("logit_lens", lens)
    result = lens | {"correct": torch.tensor([1.0, 0.0, 1.0, 1.0])}
    frame = dl.deep_thinking_ratio(lens, correct=[1, 0, 1, 1])
    (ax, *_) = dl.plot("late_tokens", result).figure.axes
    drawn = {}
    for one in ax.containers:
        drawn.setdefault(one.get_label(), []).append((one.lines[0].get_xdata()[0], one.lines[0].get_ydata()[0]))
    assert drawn["one response"] == [*zip(frame.correct, frame.ratio, strict=True)]
    means = frame.groupby("correct").ratio.mean()
    np.testing.assert_allclose(drawn["mean, 95% interval"], [(0.1, means[0.0]), (1.1, means[1.0])])
