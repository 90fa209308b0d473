"""Heat maps of one run show the numbers they are given, in colours and labels that a person can read."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from depth_lib.effective_depth.difficulty import depth_scores
from depth_lib.figures.difficulty import difficulty_figure
from depth_lib.figures.grids import grid
from depth_lib.figures.kinds import KINDS
from depth_lib.figures.one_run import plot
from depth_lib.figures.token_labels import token_label
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.figures.drawn import pixel
from tests.synthetic import TOKENS, result_of


def test_the_effect_map_has_skipped_layers_as_rows_from_the_top_and_runs_from_zero_to_one(ax):
    effects = torch.tensor([[0.0, 0.9, 2.5], [0.0, 0.0, 0.4], [0.0, 0.0, 0.0]])
    plot("layer_effects", {"max_future_layer": effects}, ax)
    image = ax.get_images()[0]
    assert image.get_clim() == (0, 1) and image.origin == "upper" and image.colorbar.extend == "max"
    np.testing.assert_allclose(image.get_array(), effects)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("Layer skipped", "Effect @ layer")
    np.testing.assert_allclose(pixel(ax, 0, 2), matplotlib.colormaps["viridis"](0.0)[:3], atol=0.02)
    np.testing.assert_allclose(pixel(ax, 2, 0), matplotlib.colormaps["viridis"](1.0)[:3], atol=0.02)


@pytest.mark.parametrize(("name", "key"), [("residual_erasure", "erasure_effect"), ("integrated_gradients", "igrads")])
def test_token_maps_have_layers_upwards_and_every_token_but_the_last(ax, name, key):
    result = result_of(KINDS[name].probe, 8)
    plot(name, result, ax)
    image = ax.get_images()[0]
    np.testing.assert_allclose(image.get_array(), result[key][:, :-1], rtol=1e-6)
    assert image.origin == "lower" and ax.get_ylim()[0] < ax.get_ylim()[1]
    labels = {int(tick): label.get_text() for tick, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)}
    assert labels and all(label == token_label(TOKENS[tick]) for tick, label in labels.items())
    assert labels[0] == "BOS" and labels[1] == "5"


def test_one_huge_token_does_not_blank_out_a_map_and_the_colour_bar_says_where_colours_end(ax):
    igrads = torch.full((30, 20), 0.1)
    igrads[3, 7] = 60.0
    plot("integrated_gradients", {"igrads": igrads, "tokens": None}, ax)
    image = ax.get_images()[0]
    np.testing.assert_allclose(image.get_clim(), (-0.1, 0.1), rtol=1e-6)
    assert image.colorbar.extend == "max" and "98th percentile" in image.colorbar.ax.get_ylabel()


def test_layers_whose_estimated_error_is_above_the_tolerance_are_marked_and_named(ax):
    result = {"igrads": torch.ones(4, 5), "tokens": None, "error": torch.tensor([0.3, 0.001, 0.02, 0.0])}
    plot("integrated_gradients", result, ax)
    assert [list(line.get_ydata()) for line in ax.lines] == [[0, 2]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["rough: error above the tolerance"]
    ax.clear()
    plot("integrated_gradients", result | {"meta": {"settings": {"tolerance": 0.5}}}, ax)
    assert not ax.lines and ax.get_legend() is None


def test_integrated_gradients_are_symmetric_about_white_and_not_scaled_by_the_first_token(ax):
    igrads = torch.tensor([[9.0, 0.1, -0.5, 0.0], [-9.0, 0.2, 0.3, 0.0]])
    plot("integrated_gradients", {"igrads": igrads, "tokens": list("a+b=")}, ax)
    image = ax.get_images()[0]
    assert image.get_clim() == (-0.5, 0.5) and image.get_cmap().name == "seismic"
    assert image.colorbar.extend == "both"


def test_attributions_that_are_all_zero_and_maps_of_one_token_can_be_drawn(ax):
    plot("integrated_gradients", {"igrads": torch.zeros(2, 3), "tokens": None}, ax)
    plot("residual_erasure", {"erasure_effect": torch.zeros(3, 1), "tokens": ["a"]}, ax)
    assert [image.get_array().shape for image in ax.get_images()] == [(2, 2), (3, 1)]


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("<|begin_of_text|>", "BOS"),
        ("Ġ5", "␣5"),
        ("▁the", "␣the"),
        (" +", "␣+"),
        ("\n", "\\n"),
        ("Ċ", "\\n"),
        ("", ""),
        ("extraordinarily", "extraor…"),
        ("$x$", "$x$"),
        ("中", "□"),
        ("é", "é"),
    ],
)
def test_tokens_become_short_labels_that_the_font_can_draw(token, label):
    assert token_label(token) == label


def test_where_labels_do_not_fit_blank_tokens_lose_theirs_first(ax):
    tokens = [character for digit in "123456789" * 3 for character in (digit, " ", "+", " ")] + ["="]
    ax.figure.set_size_inches(7, 3)
    plot("residual_erasure", {"erasure_effect": torch.zeros(3, len(tokens)), "tokens": tokens}, ax)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert len(labels) == 54 and set(labels) == set("123456789+")
    ax.figure.set_size_inches(2.4, 3)
    plot("residual_erasure", {"erasure_effect": torch.zeros(3, len(tokens)), "tokens": tokens}, ax)
    assert 8 <= len(ax.get_xticklabels()) <= 22


def test_depth_by_difficulty_has_a_map_a_level_and_both_scores_with_their_intervals():
    result = result_of("depth_by_difficulty", 6)
    figure = difficulty_figure(result, "toy")
    maps = [ax for ax in figure.axes if ax.get_images() and ax.get_title().startswith("level")]
    assert [ax.get_title() for ax in maps] == ["level 2 (n = 3)", "level 3 (n = 3)", "level 4 (n = 3)"]
    first = result["layer_effect"][result["level"] == 2].mean(0)
    np.testing.assert_allclose(maps[0].get_images()[0].get_array(), first, rtol=1e-6)
    (scores,) = [ax for ax in figure.axes if ax.get_title() == "Depth score"]
    heights = [bar.get_height() for bar in scores.patches]
    wanted = [one.value for effect in ("layer", "output") for one in depth_scores(result, effect).scores.values()]
    assert heights == pytest.approx(wanted)
    lines = [ax for ax in figure.axes if ax.get_title() == "Importance on the output"][0].lines
    share = result["output_effect"][result["level"] == 4].mean(0)
    np.testing.assert_allclose(lines[2].get_ydata(), share / share.sum(), rtol=1e-5)


def test_too_few_examples_of_a_level_leave_scores_out_and_say_why_once_in_letters_of_the_axes_size():
    result = result_of("depth_by_difficulty", 6) | {"level": torch.tensor([2.0] * 8 + [3.0])}
    (scores,) = [ax for ax in difficulty_figure(result).axes if ax.get_title() == "Depth score"]
    for ax in (scores, plot("depth_score_by_level", result)):
        (reason,) = ax.texts
        assert reason.get_text().split() == "1 examples of level 3 are too few; run 3 or more".split()
        assert reason.get_fontsize() >= 7 and not [*ax.get_xticks(), *ax.get_yticks()]


def test_an_effect_without_a_score_says_why_beside_the_score_of_the_other():
    result = result_of("depth_by_difficulty", 6)
    ax = plot("depth_score_by_level", result | {"output_effect": torch.zeros(9, 6)})
    assert len(ax.patches) == 3 and "no output effect" in ax.texts[0].get_text().replace("\n", " ")


def test_a_level_has_one_colour_in_all_panels_whatever_others_there_are_and_the_legend_counts_upwards(tmp_path):
    shown = {"mquake": (2, 3, 4), "math": (1, 3, 5), "sums": (2, 4, 6)}
    for dataset, levels in shown.items():
        result = result_of("depth_by_difficulty", 6) | {"level": torch.tensor(levels).repeat(3).float()}
        save_artifact(artifact_path(tmp_path, dataset, "toy", "depth_by_difficulty", 3), result, {})
    figure = grid("importance_by_level_layer", Study(tmp_path))
    colours = {}
    for line in (line for ax in figure.axes for line in ax.lines):
        colours.setdefault(line.get_label(), set()).add(to_hex(line.get_color()))
    assert [len(found) for found in colours.values()] == [1] * 6 and len(set.union(*colours.values())) == 6
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"level {level}" for level in range(1, 7)]


def test_maps_and_curves_by_difficulty_say_that_they_are_means_over_examples_and_shares_of_what():
    figure = difficulty_figure(result_of("depth_by_difficulty", 6))
    (bar,) = [ax for ax in figure.axes if "Relative change" in ax.get_ylabel()]
    assert "mean over examples" in bar.get_ylabel()
    labels = {ax.get_title(): ax.get_ylabel() for ax in figure.axes if ax.get_title().startswith("Importance")}
    kinds = [KINDS[f"importance_by_level_{effect}"] for effect in ("layer", "output")]
    assert {*labels.values(), *(kind.ylabel for kind in kinds)} == {"Share of all layers' effect"}
    assert all("mean over the examples of a level" in kind.caption for kind in kinds)
