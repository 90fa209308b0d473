"""Figures of responses, direct effects and the worth of blocks draw what the results have."""

import numpy as np

import depth_lib as dl


def test_a_response_is_a_map_of_its_divergences_with_the_layers_where_its_tokens_settle(toy):
    result = dl.logit_lens(toy, ["5 + 7 = ", "1 + 2 = "], generate=4, per_token=True)
    ax = dl.plot("response", result)
    ax = ax if hasattr(ax, "images") else ax.axes[0]
    np.testing.assert_allclose(ax.images[0].get_array(), result["jsd"][0].float().numpy().T)
    settling = result["settling"][0].numpy()
    (dots,) = (line for line in ax.lines if line.get_label() == "settles")
    np.testing.assert_array_equal(dots.get_ydata(), np.where(settling < 4, settling, np.nan))
    assert len(ax.get_xticklabels()) == len(settling)
    assert "response" not in dl.kinds_of("logit_lens", dl.logit_lens(toy, ["5 + 7 = "]))


def test_direct_effects_are_two_maps_of_all_tokens_of_the_answer(toy):
    result = dl.direct_effects(toy, "5 + 7 = ", "12")
    figure = dl.plot("direct_effects", result).figure
    maps = [ax.images[0].get_array() for ax in figure.axes if ax.images][:2]
    for drawn, key in zip(maps, ("direct_att", "direct_mlp"), strict=True):
        np.testing.assert_allclose(drawn, result[key].numpy())


def test_loss_and_accuracy_of_removed_blocks_are_side_by_side(toy):
    result = dl.block_accuracy(toy, dl.load_choices("hellaswag", 4, source="embedded"))
    lines = {line.get_label(): line.get_ydata() for line in dl.plot("block_accuracy", result).figure.axes[0].lines}
    np.testing.assert_allclose(lines["rise in the loss"], result["choice_loss"].numpy())
    np.testing.assert_allclose(lines["fall of the accuracy"], -result["change"].numpy())
