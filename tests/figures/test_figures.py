"""The figures show the numbers they are given, and a person can read them."""

import itertools
import re
import warnings

import matplotlib
import matplotlib.pyplot as plt
import nbclient
import nbformat
import numpy as np
import pytest
import torch
from jupyter_client.provisioning import local_provisioner
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from depth_lib.effective_depth.difficulty import depth_scores
from depth_lib.figures import panels as drawing
from depth_lib.figures.difficulty import difficulty_figure
from depth_lib.figures.grids import grid, save_figures
from depth_lib.figures.kinds import KINDS
from depth_lib.figures.one_run import plot
from depth_lib.figures.token_labels import token_label
from depth_lib.results import files as storage
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import ARTIFACTS, MissingArtifact, artifact_path
from depth_lib.results.study import Study
from tests.figures.texts import assert_modest_titles, overlaps
from tests.forked import Kernel
from tests.synthetic import DATASETS, PAPER_MODELS, TOKENS, result_of, write_run

SINGLE = [name for name in KINDS if not KINDS[name].together]
WITHOUT_REPEATS = set(KINDS) - {part for kind in KINDS.values() for part in kind.shows}
UNNAMED = [name for name, kind in KINDS.items() if kind.mark is drawing.bars and not kind.options]  # one kind of bar
THREE_PROBES = tuple(ARTIFACTS)[:3]
CRAMPED = ("layer_effects", "integrated_gradients")  # the narrowest panels, and those with most around them
TOYS = {"toy-4l": 4, "toy-8l": 8, "toy-16l": 16}
WORDS = ["<|begin_of_text|>", *(f"Ġ{word}" for word in "Tom has 12 extraordinarily small apples , and $ 5 .".split())]


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.os, "fsync", lambda descriptor: None)
        yield


def write_models(out, models, datasets=DATASETS, probes=tuple(ARTIFACTS)):
    for (model, n_layers), dataset in itertools.product(models.items(), datasets):
        here = [probe for probe in probes if dataset == "gsm8k" or probe in THREE_PROBES]
        write_run(out, dataset, model, n_layers, here, n_examples=3)
    return out


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("one"), {"toy-8l": 8}, ["gsm8k"])


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("toys"), TOYS)


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("paper"), PAPER_MODELS, probes=CRAMPED)


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def pixel(ax, x, y):
    """The colour drawn at a place of the axes, as red, green, blue in 0..1."""
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()
    column, row = ax.transData.transform((x, y))
    image = np.asarray(canvas.buffer_rgba())
    return image[image.shape[0] - 1 - int(row), int(column), :3] / 255


def bar_heights(ax, n_layers):
    """(height, colour) of the bars of each layer, in drawing order."""
    bars = ax.collections[0]
    found = {layer: [] for layer in range(n_layers)}
    for path, colour in zip(bars.get_paths(), itertools.cycle(bars.get_facecolors()), strict=False):
        box = path.get_extents()
        layer = round((box.x0 + box.x1) / 2)
        found[layer].append((box.y1 if box.y0 == 0 else box.y0, tuple(colour[:3])))
    return found


def panels(figure):
    return [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]


def steps(ax):
    """Label -> values of the steps drawn, filled or not."""
    return {patch.get_label(): patch.get_data().values for patch in ax.patches if hasattr(patch, "get_data")}


@pytest.mark.parametrize("name", ["cosine", "relative_contribution", "norms"])
def test_each_part_is_one_stepped_line_of_its_values_so_that_nothing_looks_stacked(ax, name):
    result = result_of("relative_contribution", 8)
    plot(name, result, ax)
    drawn, keys = steps(ax), KINDS[name].keys
    for key, label in zip(keys, KINDS[name].options["labels"], strict=True):
        np.testing.assert_allclose(drawn[label], result[key][:8], rtol=1e-6)
    assert [patch.get_fill() for patch in ax.patches].count(True) == 1


def test_a_legend_names_what_is_drawn_with_its_formula_and_nothing_else(ax):
    rising = torch.tensor([0.1, 0.2, 0.3])
    plot("cosine", dict.fromkeys(("att_cos", "mlp_cos", "layer_cos"), rising), ax)
    plain = [text.get_text().replace("\\mathrm", "") for text in ax.get_legend().get_texts()]
    assert plain == [
        "Attention: ${cossim}(a, h)$",
        "MLP: ${cossim}(m, h + a)$",
        "Attention + MLP: ${cossim}(a + m, h)$",
    ]


def test_where_skipping_changes_the_output_both_modes_stand_in_one_panel(ax):
    result = result_of("layer_effects", 8)
    plot("output_change_modes", result, ax)
    np.testing.assert_allclose(steps(ax)["at future tokens"], result["max_future_out"].flatten())
    np.testing.assert_allclose(steps(ax)["at all tokens"], result["max_all_out"].flatten())


def test_effects_on_future_and_on_all_tokens_stand_side_by_side_in_one_scale():
    result = result_of("layer_effects", 8)
    figure = plot("layer_effects_modes", result).figure
    future, everywhere = panels(figure)
    assert (future.get_title(), everywhere.get_title()) == ("future tokens", "all tokens")
    for ax, key in ((future, "max_future_layer"), (everywhere, "max_all_layer")):
        np.testing.assert_array_equal(ax.get_images()[0].get_array(), result[key])
        assert ax.get_images()[0].get_clim() == (0, 1)
    plt.close(figure)


def test_a_figure_of_several_panels_or_an_unknown_one_or_another_probes_result_is_refused_in_one_line(ax):
    result = result_of("layer_effects", 8)
    with pytest.raises(
        ValueError, match="layer_effects_modes draws 2 panels; give each of layer_effects, layer_effects_all"
    ):
        plot("layer_effects_modes", result, ax)
    with pytest.raises(ValueError, match="no figure is called 'cosines'; there are cosine, "):
        plot("cosines", result, ax)
    with pytest.raises(
        ValueError, match="lens_kl needs res_kl_divs, and the result has max_future_layer.*logit_lens's"
    ):
        plot("lens_kl", result, ax)


@pytest.mark.parametrize(
    ("name", "key"), [("output_change", "max_future_out"), ("lens_kl", "res_kl_divs"), ("lens_overlap", "res_overlaps")]
)
def test_each_layer_has_one_bar_of_its_value(ax, name, key):
    result = result_of(KINDS[name].probe, 8)
    plot(name, result, ax)
    bars = bar_heights(ax, 8)
    assert [len(bar) for bar in bars.values()] == [1] * 8
    np.testing.assert_allclose([bar[0][0] for bar in bars.values()], result[key].flatten(), rtol=1e-6)


def test_the_effective_depth_is_the_marked_bar_and_unmarked_where_it_is_missing(ax):
    plot("lens_kl", {"res_kl_divs": torch.tensor([9.0, 8.0, 4.0, 1.0])}, ax)
    marked = [layer for layer, bar in bar_heights(ax, 4).items() if bar[0][1] == to_rgb(drawing.MARKED)]
    assert marked == [2]
    ax.clear()
    plot("lens_overlap", {"res_overlaps": torch.tensor([0.1, 0.2, 0.3, 0.9])}, ax)
    assert {bar[0][1] for bar in bar_heights(ax, 4).values()} == {to_rgb(drawing.PLAIN)}


def test_the_cosine_depth_is_a_line_between_the_layers_where_the_mean_turns(ax):
    turning = torch.tensor([0.1, -0.1, -0.2, 0.1, 0.2])
    plot("cosine", dict.fromkeys(("att_cos", "mlp_cos", "layer_cos"), turning), ax)
    dotted = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in dotted] == [2.5]


def test_contributions_beyond_the_axis_are_marked_as_cut(ax):
    rc = torch.tensor([40.0, 2.0, 0.4, 0.3])
    plot("relative_contribution", dict.fromkeys(("rc_att", "rc_mlp", "rc_layer"), rc), ax)
    assert ax.get_ylim()[1] == 1.5
    carets = [line for line in ax.lines if line.get_marker() == "^"]
    assert [list(line.get_xdata()) for line in carets] == [[0, 1]]


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


@pytest.mark.parametrize("name", KINDS)
def test_a_single_plot_makes_its_own_figure_with_title_labels_and_key(name):
    own = plot(name, result_of(KINDS[name].probe, 8))
    assert own.figure.get_suptitle().startswith(KINDS[name].title)
    assert own.get_xlabel() and own.figure.get_supylabel()
    bars = [image.colorbar for image in own.get_images() if image.colorbar]
    assert all(bar.ax.get_ylabel() for bar in bars)
    assert bars or own.figure.legends or name in UNNAMED
    plt.close(own.figure)


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_plot_draws_into_given_axes(ax, name):
    assert plot(name, result_of(KINDS[name].probe, 8), ax, title="mine") is ax and ax.get_title() == "mine"
    assert ax.get_xlabel() == KINDS[name].xlabel and ax.get_ylabel() == KINDS[name].ylabel


@pytest.mark.parametrize("name", ["residual_erasure", "integrated_gradients"])
def test_a_figure_about_a_question_is_titled_with_it_and_shown_once_whatever_dataset_it_ran_beside(tmp_path, name):
    probe = KINDS[name].probe
    for dataset, model in (("gsm8k", "toy-4l"), ("aime24", "toy-4l"), ("aime24", "toy-8l")):
        write_run(tmp_path, dataset, model, 4, [probe])
    figure = grid(name, Study(tmp_path))
    assert figure.get_suptitle() == f"{KINDS[name].title}: 5 + 7 + 5 + 3 + 1 + 7 = 28"
    assert [ax.get_title() for ax in panels(figure)] == ["toy-4l", "toy-8l"]


def test_a_notebook_shows_every_plot_not_only_the_first(one, monkeypatch):
    monkeypatch.setattr(local_provisioner, "launch_kernel", Kernel)
    result = artifact_path(one, "gsm8k", "toy-8l", "logit_lens", 3)
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(source)
            for source in (
                "from depth_lib import load_artifact\nfrom depth_lib.figures.one_run import plot\n"
                f"result = load_artifact({str(result)!r})",
                "plot('lens_kl', result)",
                "axes = plot('lens_overlap', result)",
            )
        ]
    )
    nbclient.NotebookClient(notebook, timeout=300).execute()
    shown = [
        [output.output_type for output in cell.outputs if "image/png" in output.get("data", {})]
        for cell in notebook.cells
    ]
    assert shown == [[], ["display_data"], ["display_data"]]


def test_a_curve_with_nan_is_drawn_without_a_depth(ax):
    kl = torch.tensor([9.0, float("nan"), 4.0, 1.0])
    plot("lens_kl", {"res_kl_divs": kl}, ax)
    plot("cosine", dict.fromkeys(("att_cos", "mlp_cos", "layer_cos"), kl), ax)
    assert not [line for line in ax.lines if line.get_linestyle() == ":"]


@pytest.mark.parametrize("name", SINGLE)
def test_a_figure_has_a_panel_for_every_model_and_dataset_that_has_the_kind(toys, name):
    datasets = DATASETS if KINDS[name].probe in THREE_PROBES else ["gsm8k"]
    titles = {ax.get_title() for ax in panels(grid(name, Study(toys)))}
    assert titles == (
        {f"{model}\n{dataset}" for model in TOYS for dataset in datasets} if len(datasets) > 1 else set(TOYS)
    )


def test_panels_show_their_own_model_and_dataset(toys):
    for ax in panels(grid("layer_effects", Study(toys))):
        model, dataset = ax.get_title().split("\n")
        stored = torch.load(artifact_path(toys, dataset, model, "layer_effects", 3), weights_only=True)
        np.testing.assert_array_equal(ax.get_images()[0].get_array(), stored["max_future_layer"])


def test_small_maps_count_layers_in_whole_numbers(toys):
    figure = grid("layer_effects_modes", Study(toys, ["toy-4l"]))
    assert all(float(tick).is_integer() for ax in panels(figure) for tick in (*ax.get_xticks(), *ax.get_yticks()))


def test_models_and_columns_can_be_chosen(toys):
    figure = grid("lens_kl", Study(toys, ["toy-16l", "toy-4l"], ["gsm8k", "aime24"]), columns=2)
    first_row = ["toy-16l\ngsm8k", "toy-16l\naime24", "toy-4l\ngsm8k", "toy-4l\naime24"]
    assert [ax.get_title() for ax in sorted(panels(figure), key=lambda ax: ax.get_position().x0)] == first_row
    assert len({ax.get_position().y0 for ax in panels(figure)}) == 1


def rows_of(figure):
    """The panels of a figure, row by row."""
    by_height = sorted(panels(figure), key=lambda ax: (-round(ax.get_position().y0, 4), ax.get_position().x0))
    return [list(row) for _, row in itertools.groupby(by_height, key=lambda ax: round(ax.get_position().y0, 4))]


@pytest.mark.parametrize("name", ["cosine", "norms", "output_change_modes", "lens_kl"])
def test_curves_in_a_row_have_one_scale_with_its_numbers_at_the_left(toys, name):
    for row in rows_of(grid(name, Study(toys))):
        assert len({ax.get_ylim() for ax in row}) == 1 and len({ax.get_yscale() for ax in row}) == 1
        assert [ax.yaxis.get_tick_params()["labelleft"] for ax in row] == [True] + [False] * (len(row) - 1)


def test_three_models_stand_in_a_row_without_an_empty_place(toys):
    for name in ("residual_erasure", "integrated_gradients"):
        assert [len(row) for row in rows_of(grid(name, Study(toys)))] == [3]


def test_what_is_missing_is_an_empty_panel_that_says_so(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)
    write_run(tmp_path, "aime24", "toy-8l", 8, ["logit_lens"], n_examples=3)
    found = {ax.get_title(): [text.get_text() for text in ax.texts] for ax in panels(grid("lens_kl", Study(tmp_path)))}
    assert found == {
        "toy-4l\ngsm8k": [],
        "toy-4l\naime24": ["missing"],
        "toy-8l\ngsm8k": ["missing"],
        "toy-8l\naime24": [],
    }


def test_a_kind_without_any_result_is_left_out_and_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(MissingArtifact, match="run: make sweep"):
        save_figures(Study(tmp_path))
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)
    with pytest.raises(MissingArtifact, match="no residual_erasure artifacts under .* PROBES=residual_erasure"):
        grid("residual_erasure", Study(tmp_path))
    lens = ("lens_kl", "lens_overlap", "lens_first_k", "lens_entropy", "lens_settled")
    written = [path.name for path in save_figures(Study(tmp_path))]
    assert written == [f"{name}.{ending}" for name in lens for ending in ("png", "pdf")]


def test_the_papers_files_are_drawn_too(tmp_path):
    write_run(tmp_path, "gsm8k", "Qwen2.5-7B", 28, ["layer_effects", "residual_erasure"], papers_keys_only=True)
    with (
        pytest.warns(UserWarning, match="1 of 1 layer_effects results .* have no meta"),
        pytest.warns(UserWarning, match="1 of 1 residual_erasure results .* have no meta"),
    ):
        assert [path.stem for path in save_figures(Study(tmp_path))[::2]] == [
            "layer_effects",
            "output_change",
            "residual_erasure",
        ]


def test_saving_writes_vector_bars_and_image_heat_maps_and_leaves_nothing_open(one):
    style = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = save_figures(Study(one))
    assert {path.relative_to(one) for path in paths} == {
        (one / "figures" / f"{name}.{ending}").relative_to(one) for name in WITHOUT_REPEATS for ending in ("pdf", "png")
    }
    for path in paths:
        content = path.read_bytes()
        if path.suffix == ".pdf":
            assert content.startswith(b"%PDF")
            # A colour bar is an image or a patch; only a heat map has an image as large as itself.
            images = [int(width) for width in re.findall(rb"/Width (\d+)", content)]
            assert bool(images and max(images) > 100) == (KINDS[path.stem].colorbar is not None), path.name
        else:
            assert plt.imread(path).shape[2] == 4 and plt.imread(path)[..., :3].std() > 0.02
    assert plt.get_fignums() == [] and dict(matplotlib.rcParams) == style


def test_saving_twice_gives_the_same_bytes(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-8l", 8, ["residual_erasure"])
    first = [path.read_bytes() for path in save_figures(Study(tmp_path))]
    assert [path.read_bytes() for path in save_figures(Study(tmp_path))] == first


@pytest.mark.parametrize("folder", ["one", "toys"])
@pytest.mark.parametrize("name", KINDS)
def test_no_text_lies_on_another_on_a_panel_or_beyond_the_edge(request, folder, name):
    assert overlaps(grid(name, Study(request.getfixturevalue(folder)))) == []


@pytest.mark.parametrize("name", ["cosine", "layer_effects_modes", "residual_erasure"])
def test_titles_are_hardly_larger_than_the_numbers_at_the_axes(toys, name):
    assert_modest_titles(grid(name, Study(toys)))


@pytest.mark.parametrize("name", CRAMPED)
def test_no_text_overlaps_with_twelve_models(paper, name):
    assert overlaps(grid(name, Study(paper))) == []


@pytest.mark.parametrize("name", ["residual_erasure", "integrated_gradients"])
@pytest.mark.parametrize("repeats", [1, 3, 6])
def test_no_text_overlaps_with_long_tokens(tmp_path, name, repeats):
    probe, tokens = KINDS[name].probe, WORDS * repeats + ["28"]
    for model in ("toy-4l", "Llama-3.1-70B-Instruct"):
        path = artifact_path(tmp_path, "gsm8k", model, probe, 10)
        save_artifact(path, result_of(probe, 4, tokens=tokens), {})
    assert overlaps(grid(name, Study(tmp_path))) == []


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


def test_too_few_examples_of_a_level_leave_scores_out_and_say_why():
    result = result_of("depth_by_difficulty", 6) | {"level": torch.tensor([2.0] * 8 + [3.0])}
    assert "1 examples of level 3 are too few" in plot("depth_score_by_level", result).texts[0].get_text()
