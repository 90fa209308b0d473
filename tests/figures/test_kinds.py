"""Figures of one run show the numbers they are given, and say what they are."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib import colormaps

from depth_lib.effective_depth.difficulty import depth_scores
from depth_lib.figures import KINDS, grid, kinds_of, plot
from depth_lib.figures.marks import LEVELS, MARKED_BAR, ROUNDING, Curves, Heat, token_label
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.figures.drawn import bars, colour_at, curves, panels, same_colour
from tests.synthetic import result_of

COSINES = ("att_cos", "mlp_cos", "layer_cos")


def legend(ax):
    return [text.get_text() for legend in ax.figure.legends for text in legend.get_texts()]


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
        assert kind.colorbar in [axes.get_ylabel() for axes in figure.axes]
    else:
        named = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
        assert {label for label in kind.keys.values() if label and len(kind.keys) > 1} <= named
    if type(kind) not in (Curves, Heat):
        return
    for ax, (key, label) in zip(shown * len(kind.keys), kind.keys.items(), strict=False):
        values = result[key][:, :-1] if getattr(kind, "tokens", False) else result[key]
        if isinstance(kind, Curves):
            np.testing.assert_allclose(curves(ax)[label], values.flatten(), rtol=1e-6)
            assert ax.get_xlim()[0] < 0 and ax.get_xlim()[1] > len(values) - 1
        else:
            assert np.ma.allequal(ax.get_images()[0].get_array(), values)  # of cells that are not white
            assert ax.get_title() == label


@pytest.mark.parametrize("name", ["cosine", "norms", "lens_kl", "layer_effects", "integrated_gradients"])
@pytest.mark.filterwarnings("ignore:All-NaN")
def test_a_value_that_is_not_finite_does_not_stop_a_plot(name):
    result = result_of(KINDS[name].probe, 8)
    for key in KINDS[name].keys:
        result[key][1] = float("nan")
    assert plot(name, result).figure.axes


def test_an_mlp_that_blocks_lack_is_named_in_the_legend():
    ax = plot("cosine", dict.fromkeys(COSINES, torch.tensor([0.1, 0.2, 0.3])) | {"mlp_cos": torch.zeros(3)})
    labels = legend(ax)
    assert [label.endswith("= 0, one mixer only") for label in labels] == [False, True, False, False]


def test_parts_that_are_not_known_say_so_in_the_legend():
    unknown = torch.full((3,), torch.nan)
    result = {"att_cos": unknown, "mlp_cos": unknown, "layer_cos": torch.tensor([0.1, 0.2, 0.3])}
    assert [label.endswith(" is not known") for label in legend(plot("cosine", result))] == [True, True, False]


def test_what_cannot_be_drawn_is_refused_in_one_line():
    result = result_of("layer_effects", 8)
    with pytest.raises(ValueError, match="no figure is called 'cosines'; there are cosine, "):
        plot("cosines", result)
    with pytest.raises(
        ValueError, match="lens_kl needs res_kl_divs, and the result has max_future_layer.*logit_lens's"
    ):
        plot("lens_kl", result)


def test_of_a_result_of_one_mode_what_there_is_is_drawn():
    one = {key: value for key, value in result_of("attention_effects", 4).items() if "all" in key}
    drawn = ["attention_effects", "attention_output_change", "attention_skip_damage"]
    assert kinds_of("attention_effects", one) == drawn
    ax = plot("attention_effects", one)
    assert np.ma.allequal(ax.get_images()[0].get_array(), one["max_all_layer"])


def test_one_tall_bar_is_the_effective_depth_and_none_where_it_is_missing():
    ax = plot("lens_kl", {"res_kl_divs": torch.tensor([9.0, 8.0, 4.0, 1.0])})
    heights, layer, colour = bars(ax)["effective depth"]
    assert (list(heights), layer) == ([4.0], 2) and same_colour(colour, MARKED_BAR)
    assert curves(ax)["threshold"][0] == 4.5  # half of the maximum
    for values in ([0.1, 0.2, 0.3, 0.9], [0.1, float("nan"), 0.3, 0.9]):
        ax = plot("lens_overlap", {"res_overlaps": torch.tensor(values)})
        assert "effective depth" not in bars(ax)


def test_the_cosine_figure_draws_the_mean_of_the_three_and_every_layer_where_it_turns():
    attention, mlp, both = torch.tensor(
        [[-0.3, 0.3, -0.3, 0.6, 0.1], [0.0, 0.0, -0.3, 0.0, 0.2], [0.0, 0.3, 0.0, 0, 0]]
    )
    ax = plot("cosine", dict(zip(COSINES, (attention, mlp, both), strict=True)))
    drawn = {line.get_label(): line for line in ax.lines}
    np.testing.assert_allclose(drawn["mean of the three"].get_ydata(), [-0.1, 0.2, -0.2, 0.2, 0.1], rtol=1e-6)
    assert list(drawn["mean crosses zero upwards"].get_xdata()) == [0.5, 2.5]
    assert list(drawn["effective depth"].get_xdata()) == [2.5, 2.5]
    ax = plot("cosine", dict.fromkeys(COSINES, torch.tensor([0.1, 0.2, 0.3])))
    assert [label.split(":")[0] for label in legend(ax)] == ["Attention", "MLP", "Attention + MLP", "mean of the three"]


@pytest.mark.parametrize(
    ("probe", "name", "impossible", "possible"),
    [
        ("layer_effects", "max_future_layer", (1, 1), (1, 0)),
        ("layer_effects", "max_all_layer", (0, 1), (1, 1)),
        ("local_effects", "max_all_local", (1, 1), (1, 0)),
    ],
)
def test_an_impossible_cell_is_white_and_a_zero_is_not(probe, name, impossible, possible):
    effects = torch.zeros(3, 3)
    effects[0, 2] = 2.5
    ax = plot(probe, {name: effects})
    assert same_colour(colour_at(ax, *impossible), "white")
    assert same_colour(colour_at(ax, *possible), colormaps["viridis"](0.0))
    assert same_colour(colour_at(ax, 2, 0), colormaps["viridis"](1.0))
    assert ax.get_images()[0].get_clim() == (0, 2.5) and ax.get_ylim() == (2.5, -0.5)


def test_before_the_first_two_tokens_there_is_no_past_to_erase():
    result = {"future_erasure": torch.zeros(3, 5), "past_erasure": torch.zeros(3, 5), "tokens": list("abcde")}
    this, before = panels(plot("future_erasure", result).figure)
    assert not this.get_images()[0].get_array().mask.any()
    np.testing.assert_array_equal(before.get_images()[0].get_array().mask.any(0), [True, True, False, False])


def test_what_rounding_may_have_made_is_grey():
    effects = torch.tensor([[0.0, 0.9, 0.4], [0.0, 0.0, 0.1], [0.0, 0.0, 0.0]])
    ax = plot(
        "layer_effects", {"max_future_layer": effects, "max_future_layer_rounding_floor": torch.tensor([0.1, 0.2])}
    )
    assert same_colour(colour_at(ax, 2, 1), ROUNDING)
    assert same_colour(colour_at(ax, 2, 0), colormaps["viridis"](0.4 / 0.9)) and same_colour(
        colour_at(ax, 0, 2), "white"
    )
    assert legend(ax) == ["within rounding"]
    floor = {"max_future_out_rounding_floor": torch.tensor([0.1, 0.2])}
    ax = plot("output_change", {"max_future_out": torch.tensor([[1.0], [0.01]])} | floor)
    np.testing.assert_allclose(bars(ax)["within rounding"][0], [0.2, 0.2])


def test_token_maps_have_layers_upwards_and_tokens_as_labels():
    result = {"erasure_effect": torch.rand(4, 6), "tokens": ["<s>", "5", "Ġ+", "Ġ", "Ġ=", "8"]}
    ax = plot("residual_erasure", result)
    labels = [(text.get_text(), text.get_rotation()) for text in ax.get_xticklabels()]
    assert labels == [("BOS", 90), ("5", 0), ("+", 0), ("␣", 0), ("=", 0)]
    assert ax.get_ylim()[0] < ax.get_ylim()[1]


@pytest.mark.parametrize(
    ("token", "label"),
    [("Ġ5", "5"), ("▁the", "the"), (" ", "␣"), ("Ċ", "\\n"), ("", ""), ("extraordinarily", "extraor…"), ("<s>", "BOS")],
)
def test_tokens_become_short_labels(token, label):
    assert token_label(token) == label


def test_gradients_are_symmetric_about_white_and_neither_the_first_token_nor_one_huge_value_scales_them():
    igrads = torch.full((30, 20), 0.1)
    igrads[3, 7], igrads[:, 0] = 60.0, -9.0
    ax = plot("integrated_gradients", {"igrads": igrads})
    image = ax.get_images()[0]
    np.testing.assert_allclose(image.get_clim(), (-0.1, 0.1), rtol=1e-6)
    assert image.colorbar.extend == "both" and "98th percentile" in image.colorbar.ax.get_ylabel()
    plot("integrated_gradients", {"igrads": torch.zeros(2, 3)})  # all zero
    plot("integrated_gradients", {"igrads": torch.zeros(2, 1)})  # one token


def test_layers_whose_estimated_error_is_above_the_tolerance_are_marked_and_named():
    result = {"igrads": torch.ones(4, 5), "error": torch.tensor([0.3, 0.001, 0.02, 0.0])}
    ax = plot("integrated_gradients", result)
    assert [list(line.get_ydata()) for line in ax.lines] == [[0, 2]]
    assert legend(ax) == ["rough: error above the tolerance"]
    ax = plot("integrated_gradients", result | {"meta": {"settings": {"tolerance": 0.5}}})
    assert ax.figure.legends == []


def test_by_difficulty_there_is_a_map_per_level_and_a_line_per_level_in_its_own_colour():
    result = result_of("depth_by_difficulty", 6)
    hardest = result["level"] == 4
    maps = panels(plot("effects_by_level", result).figure)
    assert [ax.get_title() for ax in maps] == [f"level {level} (n = 3)" for level in (2, 3, 4)]
    assert np.ma.allclose(maps[2].get_images()[0].get_array(), result["layer_effect"][hardest].mean(0))
    _, output = panels(plot("importance_by_level", result).figure)
    share = result["output_effect"][hardest].mean(0)
    np.testing.assert_allclose(curves(output)["level 4"], share / share.sum(), rtol=1e-5)
    assert [line.get_color() for line in output.lines[:3]] == [LEVELS[f"level {level}"] for level in (2, 3, 4)]


def test_levels_on_the_same_values_are_lines_of_different_colours_and_widths():
    result = {"level": torch.arange(1, 13), "layer_effect": torch.ones(12, 4, 4), "output_effect": torch.ones(12, 4)}
    later, output = panels(plot("importance_by_level", result).figure)
    for ax in (later, output):
        levels = ax.lines[:12]
        assert len({tuple(line.get_color()) for line in levels}) == 12
        widths = [line.get_linewidth() for line in levels]
        assert widths == sorted(set(widths), reverse=True)


def test_depth_scores_are_bars_with_their_intervals_as_whiskers():
    result = result_of("depth_by_difficulty", 6)
    ax = plot("depth_score_by_level", result)
    estimates = [score for effect in ("layer", "output") for score in depth_scores(result, effect).scores.values()]
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([score.value for score in estimates])
    whiskers = [segment[:, 1] for drawn in ax.collections for segment in drawn.get_segments()]
    np.testing.assert_allclose(whiskers, [(score.low, score.high) for score in estimates])
    assert why_no_interval(ax) == ""


def test_depth_scores_of_too_few_examples_are_bars_without_whiskers():
    result = result_of("depth_by_difficulty", 6)
    result = {key: result[key][:3] for key in ("level", "layer_effect", "output_effect")}
    ax = plot("depth_score_by_level", result)
    assert len(ax.patches) == 6 and all(bar.get_height() > 0 for bar in ax.patches)
    assert not any(segment.size for drawn in ax.collections for segment in drawn.get_segments())
    assert why_no_interval(ax) == "too few examples of level 2 with an effect: 1; run 3 or more."


def test_depth_scores_of_layers_without_any_effect_have_no_bars_and_the_panel_says_why():
    result = result_of("depth_by_difficulty", 6)
    result |= {key: torch.zeros_like(result[key]) for key in ("layer_effect", "output_effect")}
    ax = plot("depth_score_by_level", result)
    ax.figure.draw_without_rendering()
    assert np.isnan([bar.get_height() for bar in ax.patches]).all()
    assert why_no_interval(ax) == "too few examples of level 2 with an effect: 0; run 3 or more."
    assert [text.get_text() for text in ax.get_xticklabels()] == ["2", "3", "4"]


def why_no_interval(ax):
    return " ".join(text.get_text().replace("\n", " ") for text in ax.texts)


def test_the_deep_thinking_ratio_stands_above_the_curve_of_settled_tokens():
    settled = torch.linspace(0, 0.95, 20)  # 0.8 before layer 17 of 20
    ax = plot("lens_settled", {"res_jsd": 1 - settled, "res_settled": settled})
    assert ax.get_title() == "deep-thinking ratio 0.20"
    assert plot("lens_settled", {"res_jsd": 1 - settled}).get_title() == ""


def test_maps_share_one_scale_which_is_pointed_where_values_lie_beyond():
    effects = {"max_future_layer": torch.full((9, 9), 2.0), "max_all_layer": torch.full((9, 9), 4.0)}
    effects["max_all_layer"][0, 8] = 50.0
    figure = plot("layer_effects", effects).figure
    assert [ax.get_images()[0].get_clim() for ax in panels(figure)] == [(0, 4.0), (0, 4.0)]
    (bar,) = {ax.get_images()[0].colorbar for ax in panels(figure)} - {None}
    assert bar.extend == "max"


def test_an_axis_that_panels_share_is_not_cut_at_the_first_ones_range(tmp_path):
    for model, largest in (("toy-4l", 0.6), ("toy-8l", 1.2)):
        result = {key: torch.full((4,), largest) for key in ("rc_att", "rc_mlp", "rc_layer")}
        result |= dict.fromkeys(("att_cos", "mlp_cos", "layer_cos"), torch.zeros(4))
        save_artifact(artifact_path(tmp_path, "gsm8k", model, "relative_contribution", 10), result, {})
    assert all(ax.get_ylim()[1] > 1.2 for ax in panels(grid("relative_contribution", Study(tmp_path))))


def test_each_prompt_is_a_thin_line():
    result = result_of("logit_lens", 8, n_prompts=3)
    thin = [line for line in plot("lens_kl", result).lines if line.get_linewidth() == 0.3]
    truth = result["res_kl_divs_sums"] / result["n_tokens"][:, None]
    np.testing.assert_allclose([line.get_ydata() for line in thin], truth, rtol=1e-6)
