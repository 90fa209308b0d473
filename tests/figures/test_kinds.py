"""Figures of one run show the numbers they are given, and say what they are."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from depth_lib.effective_depth.difficulty import depth_scores
from depth_lib.figures import KINDS, kinds_of, plot
from depth_lib.figures.marks import LEVELS, MARKED_BAR, ROUNDING, Curves, Heat, token_label
from tests.figures.drawn import bars, curves, panels
from tests.synthetic import result_of

COSINES = ("att_cos", "mlp_cos", "layer_cos")


def legend(ax):
    return [text.get_text() for legend in ax.figure.legends for text in legend.get_texts()]


def colour_map(ax):
    return ax.get_images()[0].get_array()


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_draws_each_of_its_keys_with_title_labels_and_a_key_of_its_colours(name):
    kind = KINDS[name]
    result = result_of(kind.probe, 8)
    figure = plot(name, result).figure
    shown = panels(figure)
    assert figure.get_suptitle().replace("\n", " ").startswith(kind.title)
    assert (shown[0].get_xlabel(), figure.get_supylabel()) == (kind.xlabel, kind.ylabel)
    if isinstance(kind, Heat):
        assert all(low < 0 < high for low, high in (ax.get_ylim() for ax in shown)), "layer 0 is at the bottom"
        assert kind.colorbar in [axes.get_ylabel() for axes in figure.axes]
    elif len(kind.keys) > 1:
        assert set(kind.keys.values()) - {""} <= set(legend(shown[0]))
    if type(kind) is Curves:
        for key, label in kind.keys.items():
            np.testing.assert_allclose(curves(shown[0])[label], result[key].flatten(), rtol=1e-6)
        assert shown[0].get_xlim()[0] < 0 and shown[0].get_xlim()[1] > len(result[key]) - 1
    if type(kind) is Heat:
        for ax, (key, label) in zip(shown, kind.keys.items(), strict=True):
            values = result[key][:, :-1] if kind.tokens else result[key]
            assert np.ma.allequal(colour_map(ax), values)  # where not white
            assert ax.get_title().startswith(label)


@pytest.mark.parametrize("name", ["cosine", "norms", "lens_kl", "layer_effects", "integrated_gradients"])
def test_a_value_that_is_not_finite_does_not_stop_a_plot(name):
    result = result_of(KINDS[name].probe, 8)
    for key in KINDS[name].keys:
        result[key][1] = float("nan")
    assert plot(name, result).figure.axes


def test_what_cannot_be_drawn_is_refused_in_one_line():
    result = result_of("layer_effects", 8)
    with pytest.raises(ValueError, match='figure "cosines" is not known; did you mean cosine\\?$'):
        plot("cosines", result)
    said = "KL .* needs res_kl_divs, and the result given has max_future_layer.*logit_lens's"
    with pytest.raises(ValueError, match=said):
        plot("lens_kl", result)


def test_one_tall_bar_is_the_effective_depth_and_none_where_it_is_missing():
    ax = plot("lens_kl", {"res_kl_divs": torch.tensor([9.0, 8.0, 4.0, 1.0])})
    heights, layer, colour = bars(ax)["effective depth"]
    assert (list(heights), layer, colour) == ([4.0], 2, to_rgb(MARKED_BAR))
    assert curves(ax)["half of the maximum"][0] == 4.5
    for values in ([0.1, 0.2, 0.3, 0.9], [0.1, float("nan"), 0.3, 0.9]):
        ax = plot("lens_overlap", {"res_overlaps": torch.tensor(values)})
        assert "effective depth" not in bars(ax)


def test_the_cosine_figure_draws_the_mean_of_the_three_and_every_layer_where_it_turns():
    attention, mlp = torch.tensor([[-0.3, 0.3, -0.3, 0.6, 0.1], [0.0, 0.0, -0.3, 0.0, 0.2]])
    ax = plot("cosine", dict(zip(COSINES, (attention, mlp, torch.tensor([0.0, 0.3, 0.0, 0, 0])), strict=True)))
    drawn = {line.get_label(): line for line in ax.lines}
    np.testing.assert_allclose(drawn["mean of the three"].get_ydata(), [-0.1, 0.2, -0.2, 0.2, 0.1], rtol=1e-6)
    assert list(drawn["mean crosses zero upwards"].get_xdata()) == [0.5, 2.5]
    assert list(drawn["effective depth"].get_xdata()) == [2.5, 2.5]
    ax = plot("cosine", dict.fromkeys(COSINES, torch.tensor([0.1, 0.2, 0.3])))
    assert legend(ax)[3:] == ["mean of the three"]


@pytest.mark.parametrize(
    ("kind", "key", "first_column"),
    [
        ("layer_effects", "max_future_layer", [1, 2, 3, 4]),
        ("layer_effects", "max_all_layer", [0, 1, 2, 3]),
        ("local_effects", "max_all_local", [1, 2, 3, 4]),
        ("future_erasure", "past_erasure", [2, 2, 2, 2]),
        ("future_erasure", "future_erasure", [0, 0, 0, 0]),
    ],
)
def test_an_impossible_cell_is_white_and_a_zero_is_not(kind, key, first_column):
    shown = colour_map(plot(kind, {key: torch.zeros(4, 5)}))
    white = np.broadcast_to(np.ma.getmaskarray(shown), shown.shape)
    columns = np.arange(shown.shape[1])
    np.testing.assert_array_equal(white, [columns < first for first in first_column])


def test_what_rounding_may_have_made_is_grey():
    floor = torch.tensor([0.1, 0.2])  # of two prompts
    effects = torch.tensor([[0.0, 0.9, 0.4], [0.0, 0.0, 0.1], [0.0, 0.0, 0.0]])
    ax = plot("layer_effects", {"max_future_layer": effects, "max_future_layer_rounding_floor": floor})
    _, grey = ax.get_images()
    assert np.argwhere(~np.ma.getmaskarray(grey.get_array())).tolist() == [[1, 2]]
    assert tuple(grey.to_rgba(0)[:3]) == to_rgb(ROUNDING)
    assert legend(ax) == ["within rounding"]
    changes = {"max_future_out": torch.tensor([[1.0], [0.01]]), "max_future_out_rounding_floor": floor}
    (span,) = [patch for patch in plot("output_change", changes).patches if patch.get_label() == "within rounding"]
    assert (span.get_y(), span.get_height()) == (0, pytest.approx(0.2))


def test_tokens_are_labels_and_the_last_one_of_an_answer_is_left_out():
    result = {"erasure_effect": torch.rand(4, 6), "tokens": ["<s>", "5", "Ġ+", "Ġ", "Ġ=", "8"]}
    ax = plot("residual_erasure", result)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["BOS", "5", "+", "␣", "="]
    assert colour_map(ax).shape == (4, 5)
    many = plot("residual_erasure", {"erasure_effect": torch.rand(4, 141), "tokens": ["Ġ", "Ġ5"] * 70 + ["8"]})
    labels = [text.get_text() for text in many.get_xticklabels()]
    assert 10 < len(labels) < 50 and set(labels) == {"5"}


@pytest.mark.parametrize(
    ("token", "label"),
    [("Ġ5", "5"), ("▁the", "the"), (" ", "␣"), ("Ċ", "\\n"), ("", ""), ("extraordinarily", "extraor…"), ("<s>", "BOS")],
)
def test_tokens_become_short_labels(token, label):
    assert token_label(token) == label


def test_gradients_are_symmetric_about_white_and_neither_the_first_token_nor_one_huge_value_scales_them():
    igrads = torch.full((30, 20), 0.1)
    igrads[3, 7], igrads[:, 0] = 60.0, -9.0
    image = plot("integrated_gradients", {"igrads": igrads}).get_images()[0]
    np.testing.assert_allclose(image.get_clim(), (-0.1, 0.1), rtol=1e-6)
    assert image.colorbar.extend == "both" and "98th percentile" in image.colorbar.ax.get_ylabel()
    for shape in ((2, 3), (2, 1)):  # nothing but zeros, of one token too
        assert plot("integrated_gradients", {"igrads": torch.zeros(shape)}).get_images()[0].get_clim() == (-1, 1)


def scales(name, result, **options):
    axes = panels(plot(name, result, **options).figure)
    return [ax.get_images()[0].get_clim() for ax in axes], axes[0].get_images()[0].colorbar.extend


def test_colours_do_not_follow_the_data_so_that_small_effects_look_small():
    effects = {"max_future_layer": torch.full((9, 9), 0.02), "max_all_layer": torch.full((9, 9), 0.5)}
    assert scales("layer_effects", effects) == ([(0, 1)] * 2, "neither")
    assert scales("layer_effects", {key: 50 * value for key, value in effects.items()}) == ([(0, 1)] * 2, "max")
    assert scales("layer_effects", effects, limits=(0, 0.1)) == ([(0, 0.1)] * 2, "max")
    erased = plot("residual_erasure", {"erasure_effect": torch.full((5, 6), 0.01)})
    assert erased.get_images()[0].get_clim() == (0, pytest.approx(2**0.5))
    assert plot("lens_overlap", {"res_overlaps": torch.full((4,), 0.01)}).get_ylim() == (0, 1)
    assert plot("lens_kl", {"res_kl_divs": torch.full((4,), 0.01)}, limits=(0, 9)).get_ylim() == (0, 9)


def test_colours_without_limits_end_at_a_percentile_and_are_pointed_where_values_lie_beyond():
    loss = torch.full((3, 9), 2.0)
    loss[0, 8] = 50.0
    result = {"removal_loss": loss, "removal_sizes": torch.arange(1.0, 4)}
    assert scales("block_removal", result) == ([(0, 2.0)], "max")
    none = {"removal_loss": torch.zeros(1, 4), "removal_sizes": torch.ones(1)}
    assert scales("block_removal", none) == ([(0, 1)], "neither")


def test_layers_whose_estimated_error_is_above_the_tolerance_are_marked_and_counted_above():
    result = {"igrads": torch.ones(4, 5), "error": torch.tensor([0.3, 0.001, 0.02, 0.0])}
    ax = plot("integrated_gradients", result)
    assert ax.get_title() == "estimated error above 1% at 2 layers"
    assert [list(line.get_ydata()) for line in ax.lines] == [[0, 2]]
    assert plot("integrated_gradients", result | {"meta": {"settings": {"tolerance": 0.5}}}).get_title() == ""


def test_by_difficulty_there_is_a_map_and_a_line_per_level_of_the_mean_over_its_examples():
    result = result_of("depth_by_difficulty", 6)
    hardest = result["level"] == 4
    maps = panels(plot("effects_by_level", result).figure)
    assert [ax.get_title() for ax in maps] == [f"level {level} (n = 3)" for level in (2, 3, 4)]
    assert np.ma.allclose(colour_map(maps[2]), result["layer_effect"][hardest].mean(0))
    output, share = panels(plot("importance_by_level", result).figure)[1], result["output_effect"][hardest].mean(0)
    np.testing.assert_allclose(curves(output)["level 4"], share / share.sum(), rtol=1e-5)
    lines = output.lines[:3]
    assert [line.get_color() for line in lines] == [LEVELS[f"level {level}"] for level in (2, 3, 4)]
    widths = [line.get_linewidth() for line in lines]  # so that all are seen where values are the same
    assert widths == sorted(set(widths), reverse=True)
    assert len(set(LEVELS.values())) == 12


def test_depth_scores_are_bars_with_whiskers_where_there_are_enough_examples():
    result = result_of("depth_by_difficulty", 6)
    ax = plot("depth_score_by_level", result)
    estimates = [score for effect in ("layer", "output") for score in depth_scores(result, effect).scores.values()]
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([score.value for score in estimates])
    whiskers = [segment[:, 1] for drawn in ax.collections for segment in drawn.get_segments()]
    np.testing.assert_allclose(whiskers, [(score.low, score.high) for score in estimates])
    few = {key: result[key][:3] for key in ("level", "layer_effect", "output_effect")}
    for effect in (1, 0):
        ax = plot("depth_score_by_level", few | {key: effect * few[key] for key in ("layer_effect", "output_effect")})
        ax.figure.draw_without_rendering()
        heights = [bar.get_height() for bar in ax.patches]
        assert len(heights) == 6 and np.isfinite(heights).all() == bool(effect)
        assert not any(segment.size for drawn in ax.collections for segment in drawn.get_segments())
        assert [text.get_text() for text in ax.get_xticklabels()] == ["2", "3", "4"]


def test_curves_of_several_results_stand_in_one_panel_each_with_its_depth():
    lens = {
        name: {"res_kl_divs": torch.tensor(kl)}
        for name, kl in {"base": [9.0, 8, 4, 1], "tuned": [9.0, 1, 1, 0]}.items()
    }
    ax = plot("lens_kl", lens)
    assert panels(ax.figure) == [ax] and legend(ax) == ["base", "tuned"]
    drawn = {line.get_label(): line for line in ax.lines}
    for name, result in lens.items():
        assert list(drawn[name].get_ydata()) == result["res_kl_divs"].tolist()
    upright = [line for line in ax.lines if len(set(line.get_xdata())) == 1]
    depths = {line.get_color(): line.get_xdata()[0] for line in upright}
    assert depths == {drawn["base"].get_color(): 2, drawn["tuned"].get_color(): 1}
    cosines = {name: result_of("relative_contribution", 8, seed=seed) for seed, name in enumerate("ab")}
    mean = torch.stack([cosines["a"][key] for key in COSINES]).mean(0)
    np.testing.assert_allclose(curves(plot("cosine", cosines))["a"], mean, rtol=1e-5)
    both = {name: result_of("layer_effects", 8, seed=seed) for seed, name in enumerate("ab")}
    names = [f"{name}, at {which} tokens" for name in "ab" for which in ("future", "all")]
    assert legend(plot("output_change", both)) == names


def test_heat_maps_of_two_results_stand_one_above_the_other_with_their_difference():
    effects = {name: result_of("layer_effects", 6, seed=seed) for seed, name in enumerate(("base", "tuned"))}
    axes = panels(plot("layer_effects", effects).figure)
    names = ("base", "tuned", "tuned - base")
    assert [ax.get_title() for ax in axes] == [
        f"{name}\n{which} tokens" for name in names for which in ("future", "all")
    ]
    base, tuned, more = (colour_map(ax) for ax in axes[::2])
    later = np.triu(np.ones((6, 6), bool), 1)
    np.testing.assert_allclose((tuned - base)[later], more[later], atol=1e-6)
    low, high = axes[4].get_images()[0].get_clim()
    assert low == -high < 0 and axes[0].get_images()[0].get_clim() == (0, 1)
    smaller = {"base": effects["base"], "other": result_of("layer_effects", 4)}
    assert len(panels(plot("layer_effects", smaller).figure)) == 4  # layers that are not the same are not subtracted
    removal = {name: result_of("block_removal", 6, seed=seed) for seed, name in enumerate("ab")}
    assert len(panels(plot("block_removal", removal).figure)) == 3  # also of a map with marks of its own


def test_a_figure_goes_into_axes_of_ones_own():
    figure, axes = plt.subplots(1, 2)
    plot("lens_kl", result_of("logit_lens", 8), ax=axes[0])
    plot("integrated_gradients", result_of("integrated_gradients", 8), ax=axes[1], limits=(-0.1, 0.1))
    assert "effective depth" in bars(axes[0]) and axes[1].get_images()[0].get_clim() == (-0.1, 0.1)
    assert axes[0].get_xlabel() == KINDS["lens_kl"].xlabel and len(panels(figure)) == 2
    assert axes[0].get_legend() and axes[0].get_title() == KINDS["lens_kl"].title
    with pytest.raises(ValueError, match="layer_effects of this has 2 panels, and ax has 1 axes; give one per panel"):
        plot("layer_effects", result_of("layer_effects", 8), ax=axes[0])


def test_model_and_dataset_stand_in_the_title():
    result = result_of("logit_lens", 8) | {"meta": {"model": "toy-8l", "dataset": "gsm8k"}}
    title = plot("lens_kl", result).figure.get_suptitle().replace("\n", " ")
    assert title == f"{KINDS['lens_kl'].title}: toy-8l, gsm8k"
    assert plot("lens_kl", result, title="mine").figure.get_suptitle() == "mine"


def test_rows_of_erasure_are_inputs_of_blocks_and_those_of_gradients_outputs():
    labels = [KINDS[name].ylabel for name in ("residual_erasure", "future_erasure", "integrated_gradients")]
    assert labels == ["Input of block $l$"] * 2 + ["Output of block $l$"]
    assert KINDS["lens_kl"].xlabel == "Input of block $l$"


@pytest.mark.parametrize(
    ("attention", "mlp", "endings"),
    [([0.1, 0.2], [0.0, 0.0], ["", " = 0, one mixer only"]), ([torch.nan] * 2, [torch.nan] * 2, [" is not known"] * 2)],
)
def test_parts_that_blocks_lack_or_that_are_not_known_say_so_in_the_legend(attention, mlp, endings):
    values = (attention, mlp, [0.1, 0.2])
    ax = plot("cosine", {key: torch.tensor(curve) for key, curve in zip(COSINES, values, strict=True)})
    labels = zip(KINDS["cosine"].keys.values(), [*endings, ""], strict=True)
    assert legend(ax)[:3] == [label + ending for label, ending in labels]
    assert ("mean of the three" in legend(ax)) == np.isfinite(attention).all()


def test_of_a_result_of_one_mode_what_there_is_is_drawn():
    one = {key: value for key, value in result_of("attention_effects", 4).items() if "all" in key}
    drawn = ["attention_effects", "attention_output_change", "attention_skip_damage"]
    assert kinds_of("attention_effects", one) == drawn
    assert np.ma.allequal(colour_map(plot("attention_effects", one)), one["max_all_layer"])


def test_the_deep_thinking_ratio_stands_above_the_curve_of_settled_tokens():
    settled = torch.linspace(0, 0.95, 20)  # 0.8 before layer 17 of 20
    ax = plot("lens_settled", {"res_jsd": 1 - settled, "res_settled": settled})
    assert ax.get_title() == "deep-thinking ratio 0.20"
    assert plot("lens_settled", {"res_jsd": 1 - settled}).get_title() == ""
