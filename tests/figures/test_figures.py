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
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from depth_lib.figures import kinds as drawing
from depth_lib.figures import one_run as plots
from depth_lib.figures.grids import FIGURES, save_figures
from depth_lib.figures.kinds import KINDS
from depth_lib.figures.token_labels import token_label
from depth_lib.results import files as storage
from depth_lib.results.artifacts import ARTIFACTS, MissingArtifact, artifact_path, save_artifact
from depth_lib.results.study import Study
from tests.synthetic import DATASETS, PAPER_MODELS, TOKENS, result_of, write_run

PLOTS = {name: getattr(plots, f"plot_{name}") for name in KINDS}
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


@pytest.mark.parametrize("name", ["cosine", "relative_contribution"])
def test_of_three_bars_at_one_layer_the_smallest_is_in_front(ax, name):
    keys = ("att_cos", "mlp_cos", "layer_cos") if name == "cosine" else ("rc_att", "rc_mlp", "rc_layer")
    sign = -1 if name == "cosine" else 1
    curves = torch.tensor([[0.3, 0.9, 0.6 * sign], [0.6, 0.3, 0.9 * sign], [0.9, 0.6, 0.3 * sign]])
    PLOTS[name](dict(zip(keys, curves, strict=True)), ax)
    ax.get_legend().remove()
    attention, mlp, both = (to_rgb(colour) for colour in drawing.PARTS.values())
    expected = {0: (attention, mlp, both), 1: (mlp, both, attention), 2: (both, attention, mlp)}
    for layer, colours in expected.items():
        for height, colour in zip((0.15, 0.45, 0.75), colours, strict=True):
            up = height * (sign if layer == 2 else 1)
            np.testing.assert_allclose(pixel(ax, layer + 0.2, up), colour, atol=0.02)


@pytest.mark.parametrize(
    ("name", "key"), [("output_change", "max_future_out"), ("lens_kl", "res_kl_divs"), ("lens_overlap", "res_overlaps")]
)
def test_each_layer_has_one_bar_of_its_value(ax, name, key):
    result = result_of(KINDS[name].probe, 8)
    PLOTS[name](result, ax)
    bars = bar_heights(ax, 8)
    assert [len(bar) for bar in bars.values()] == [1] * 8
    np.testing.assert_allclose([bar[0][0] for bar in bars.values()], result[key].flatten(), rtol=1e-6)


def test_the_effective_depth_is_the_marked_bar_and_unmarked_where_it_is_missing(ax):
    PLOTS["lens_kl"]({"res_kl_divs": torch.tensor([9.0, 8.0, 4.0, 1.0])}, ax)
    marked = [layer for layer, bar in bar_heights(ax, 4).items() if bar[0][1] == to_rgb(drawing.MARKED)]
    assert marked == [2]
    ax.clear()
    PLOTS["lens_overlap"]({"res_overlaps": torch.tensor([0.1, 0.2, 0.3, 0.9])}, ax)
    assert {bar[0][1] for bar in bar_heights(ax, 4).values()} == {to_rgb(drawing.PLAIN)}


def test_the_cosine_depth_is_a_line_between_the_layers_where_the_mean_turns(ax):
    turning = torch.tensor([0.1, -0.1, -0.2, 0.1, 0.2])
    PLOTS["cosine"](dict.fromkeys(("att_cos", "mlp_cos", "layer_cos"), turning), ax)
    dotted = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in dotted] == [2.5]


def test_contributions_beyond_the_axis_are_marked_as_cut(ax):
    rc = torch.tensor([40.0, 2.0, 0.4, 0.3])
    PLOTS["relative_contribution"](dict.fromkeys(("rc_att", "rc_mlp", "rc_layer"), rc), ax)
    assert ax.get_ylim()[1] == 1.5
    carets = [line for line in ax.lines if line.get_marker() == "^"]
    assert [list(line.get_xdata()) for line in carets] == [[0, 1]]


def test_the_effect_map_has_skipped_layers_as_rows_from_the_top_and_runs_from_zero_to_one(ax):
    effects = torch.tensor([[0.0, 0.9, 2.5], [0.0, 0.0, 0.4], [0.0, 0.0, 0.0]])
    PLOTS["layer_effects"]({"max_future_layer": effects}, ax)
    image = ax.get_images()[0]
    assert image.get_clim() == (0, 1) and image.origin == "upper" and image.colorbar.extend == "max"
    np.testing.assert_allclose(image.get_array(), effects)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("Layer skipped", "Effect @ layer")
    np.testing.assert_allclose(pixel(ax, 0, 2), matplotlib.colormaps["viridis"](0.0)[:3], atol=0.02)
    np.testing.assert_allclose(pixel(ax, 2, 0), matplotlib.colormaps["viridis"](1.0)[:3], atol=0.02)


@pytest.mark.parametrize(("name", "key"), [("residual_erasure", "erasure_effect"), ("integrated_gradients", "igrads")])
def test_token_maps_have_layers_upwards_and_every_token_but_the_last(ax, name, key):
    result = result_of(KINDS[name].probe, 8)
    PLOTS[name](result, ax)
    image = ax.get_images()[0]
    np.testing.assert_allclose(image.get_array(), result[key][:, :-1], rtol=1e-6)
    assert image.origin == "lower" and ax.get_ylim()[0] < ax.get_ylim()[1]
    labels = {int(tick): label.get_text() for tick, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)}
    assert labels and all(label == token_label(TOKENS[tick]) for tick, label in labels.items())
    assert labels[0] == "BOS" and labels[1] == "5"


def test_integrated_gradients_are_symmetric_about_white_and_not_scaled_by_the_first_token(ax):
    igrads = torch.tensor([[9.0, 0.1, -0.5, 0.0], [-9.0, 0.2, 0.3, 0.0]])
    PLOTS["integrated_gradients"]({"igrads": igrads, "tokens": list("a+b=")}, ax)
    image = ax.get_images()[0]
    assert image.get_clim() == (-0.5, 0.5) and image.get_cmap().name == "seismic"
    assert image.colorbar.extend == "both"


def test_attributions_that_are_all_zero_and_maps_of_one_token_can_be_drawn(ax):
    PLOTS["integrated_gradients"]({"igrads": torch.zeros(2, 3), "tokens": None}, ax)
    PLOTS["residual_erasure"]({"erasure_effect": torch.zeros(3, 1), "tokens": ["a"]}, ax)
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
    PLOTS["residual_erasure"]({"erasure_effect": torch.zeros(3, len(tokens)), "tokens": tokens}, ax)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert len(labels) == 54 and set(labels) == set("123456789+")
    ax.figure.set_size_inches(2.4, 3)
    PLOTS["residual_erasure"]({"erasure_effect": torch.zeros(3, len(tokens)), "tokens": tokens}, ax)
    assert 8 <= len(ax.get_xticklabels()) <= 22


@pytest.mark.parametrize("name", KINDS)
def test_a_single_plot_draws_into_given_axes_or_makes_its_own_with_title_labels_and_key(ax, name):
    result = result_of(KINDS[name].probe, 8)
    assert PLOTS[name](result, ax, title="mine") is ax and ax.get_title() == "mine"
    own = PLOTS[name](result)
    assert own is not ax and own.get_title() == KINDS[name].title and own.get_xlabel() and own.get_ylabel()
    has_key = bool(own.figure.legends) or any(image.colorbar for image in own.get_images())
    assert has_key or name == "output_change"  # one kind of bar, named by its axis
    plt.close(own.figure)


def test_a_notebook_shows_every_plot_not_only_the_first(one):
    result = artifact_path(one, "gsm8k", "toy-8l", "logit_lens", 3)
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(source)
            for source in (
                "from depth_lib import load_artifact\nfrom depth_lib.figures import one_run as plots\n"
                f"result = load_artifact({str(result)!r})",
                "plots.plot_lens_kl(result)",
                "axes = plots.plot_lens_overlap(result)",
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
    PLOTS["lens_kl"]({"res_kl_divs": kl}, ax)
    PLOTS["cosine"](dict.fromkeys(("att_cos", "mlp_cos", "layer_cos"), kl), ax)
    assert not [line for line in ax.lines if line.get_linestyle() == ":"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_a_panel_for_every_model_and_dataset_that_has_the_kind(toys, name):
    datasets = DATASETS if KINDS[name].probe in THREE_PROBES else ["gsm8k"]
    titles = {ax.get_title() for ax in panels(FIGURES[name](Study(toys)))}
    assert titles == (
        {f"{model}\n{dataset}" for model in TOYS for dataset in datasets} if len(datasets) > 1 else set(TOYS)
    )


def test_panels_show_their_own_model_and_dataset(toys):
    for ax in panels(FIGURES["layer_effects"](Study(toys))):
        model, dataset = ax.get_title().split("\n")
        stored = torch.load(artifact_path(toys, dataset, model, "layer_effects", 3), weights_only=True)
        np.testing.assert_array_equal(ax.get_images()[0].get_array(), stored["max_future_layer"])


def test_models_and_columns_can_be_chosen(toys):
    figure = FIGURES["lens_kl"](Study(toys, ["toy-16l", "toy-4l"], ["gsm8k", "aime24"]), columns=2)
    places = {
        ax.get_title(): (ax.get_subplotspec().rowspan.start, ax.get_subplotspec().colspan.start)
        for ax in panels(figure)
    }
    assert places == {
        "toy-16l\ngsm8k": (0, 0),
        "toy-16l\naime24": (0, 1),
        "toy-4l\ngsm8k": (0, 2),
        "toy-4l\naime24": (0, 3),
    }


def test_what_is_missing_is_an_empty_panel_that_says_so(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)
    write_run(tmp_path, "aime24", "toy-8l", 8, ["logit_lens"], n_examples=3)
    found = {
        ax.get_title(): [text.get_text() for text in ax.texts] for ax in panels(FIGURES["lens_kl"](Study(tmp_path)))
    }
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
        FIGURES["residual_erasure"](Study(tmp_path))
    assert [path.name for path in save_figures(Study(tmp_path))] == [
        "lens_kl.png",
        "lens_kl.pdf",
        "lens_overlap.png",
        "lens_overlap.pdf",
    ]


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
        (one / "figures" / f"{name}.{ending}").relative_to(one) for name in FIGURES for ending in ("pdf", "png")
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


def drawn_texts(figure):
    """Every text that is really drawn, with its box; a tick outside its axis has a label that is not."""
    found = []

    def draw(text, renderer, *arguments, **options):
        if text.get_visible() and text.get_text().strip():
            found.append((text, text.get_window_extent(renderer).padded(-1)))

    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        FigureCanvasAgg(figure).draw()
    return found


def overlaps(figure):
    """Pairs of texts that lie on each other, texts that leave the figure, and texts on a panel that is not theirs."""
    boxes = drawn_texts(figure)
    assert len(boxes) > 10
    found = [
        (a.get_text(), b.get_text()) for (a, one), (b, other) in itertools.combinations(boxes, 2) if one.overlaps(other)
    ]
    whole = figure.bbox.padded(2)
    found += [
        (text.get_text(), "edge")
        for text, box in boxes
        if not (whole.contains(box.x0, box.y0) and whole.contains(box.x1, box.y1))
    ]
    for ax in panels(figure):
        inside = ax.get_window_extent().padded(-2)
        found += [
            (text.get_text(), f"panel {ax.get_title()}")
            for text, box in boxes
            if text not in ax.texts and box.overlaps(inside)
        ]
    return found


@pytest.mark.parametrize("folder", ["one", "toys"])
@pytest.mark.parametrize("name", FIGURES)
def test_no_text_lies_on_another_on_a_panel_or_beyond_the_edge(request, folder, name):
    assert overlaps(FIGURES[name](Study(request.getfixturevalue(folder)))) == []


@pytest.mark.parametrize("name", CRAMPED)
def test_no_text_overlaps_with_twelve_models(paper, name):
    assert overlaps(FIGURES[name](Study(paper))) == []


@pytest.mark.parametrize("name", ["residual_erasure", "integrated_gradients"])
@pytest.mark.parametrize("repeats", [1, 3, 6])
def test_no_text_overlaps_with_long_tokens(tmp_path, name, repeats):
    probe, tokens = KINDS[name].probe, WORDS * repeats + ["28"]
    for model in ("toy-4l", "Llama-3.1-70B-Instruct"):
        path = artifact_path(tmp_path, "gsm8k", model, probe, 10)
        save_artifact(path, result_of(probe, 4, tokens=tokens), {})
    assert overlaps(FIGURES[name](Study(tmp_path))) == []
