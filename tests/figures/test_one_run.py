"""The curves and bars of one run show the numbers they are given, and say what they are."""

import re

import matplotlib.pyplot as plt
import nbclient
import nbformat
import numpy as np
import pytest
import torch
from jupyter_client.provisioning import local_provisioner
from matplotlib.colors import to_rgb

from depth_lib.figures import panels as drawing
from depth_lib.figures.grids import grid
from depth_lib.figures.kinds import KINDS, kinds_of
from depth_lib.figures.one_run import plot
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.figures.drawn import bar_heights, panels, steps
from tests.forked import Kernel
from tests.synthetic import result_of, write_run

SINGLE = [name for name in KINDS if not KINDS[name].together]
UNNAMED = [name for name, kind in KINDS.items() if kind.mark is drawing.bars and not kind.options]  # one kind of bar


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


@pytest.mark.parametrize("part", ["layer", "attention", "mlp", "local"])
def test_effects_on_future_and_on_all_tokens_stand_side_by_side_in_one_scale(part):
    probe, key = f"{part}_effects", "local" if part == "local" else "layer"
    result = result_of(probe, 8)
    figure = plot(f"{probe}_modes", result).figure
    future, everywhere = panels(figure)
    assert (future.get_title(), everywhere.get_title()) == ("future tokens", "all tokens")
    for ax, mode in ((future, "future"), (everywhere, "all")):
        np.testing.assert_array_equal(ax.get_images()[0].get_array(), result[f"max_{mode}_{key}"])
        assert ax.get_images()[0].get_clim() == (0, 1)
    plt.close(figure)


@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_what_skipping_a_part_does_to_the_output_is_drawn_in_both_modes(ax, part):
    result = result_of(f"{part}_effects", 8)
    for name, keys in (("output_change_modes", "max_{}_out"), ("skip_damage", "{}_kl")):
        ax.clear()
        plot(f"{part}_{name}", result, ax)
        np.testing.assert_allclose(steps(ax)["at future tokens"], result[keys.format("future")].flatten())
        np.testing.assert_allclose(steps(ax)["at all tokens"], result[keys.format("all")].flatten())


def test_of_a_probes_result_all_is_drawn_once_and_of_one_mode_what_there_is():
    both = result_of("attention_effects", 4)
    assert kinds_of("attention_effects", both) == [
        f"attention_{name}" for name in ("effects_modes", "output_change_modes", "skip_damage")
    ]
    everywhere = {key: value for key, value in both.items() if "all" in key}
    assert kinds_of("attention_effects", everywhere) == ["attention_effects_all", "attention_output_change_all"]
    assert kinds_of("local_effects", result_of("local_effects", 4)) == ["local_effects_modes"]


@pytest.mark.parametrize(
    ("name", "mode", "calls"),
    [
        (
            "layer_effects_modes",
            "future",
            'dl.layer_effects(llm, prompts) | dl.layer_effects(llm, prompts, mode="all")',
        ),
        ("skip_damage", "all", 'dl.layer_effects(llm, prompts) | dl.layer_effects(llm, prompts, mode="all")'),
        ("layer_effects", "all", "dl.layer_effects(llm, prompts)"),
        ("local_effects_all", "future", 'dl.local_effects(llm, prompts, mode="all")'),
        ("mlp_skip_damage", "all", 'part="mlp") | dl.layer_effects(llm, prompts, mode="all", part="mlp")'),
    ],
)
def test_of_a_result_of_one_mode_a_figure_of_the_other_or_of_both_names_the_calls_that_make_it(name, mode, calls):
    result = {key: value for key, value in result_of(KINDS[name].probe, 4).items() if mode in key}
    with pytest.raises(ValueError, match=f"{name} needs .*; run .*{re.escape(calls)}$"):
        plot(name, result)


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


@pytest.mark.parametrize(("settled", "words"), [([0.1, 0.2, 0.9], "10%"), ([0.1, 0.7, 1.0], "0%")])
def test_how_many_tokens_settle_late_stands_above_both_lines_of_the_lens(ax, settled, words):
    plot("lens_settled", {"res_jsd": torch.tensor([1.0, 1.0, 1.0]), "res_settled": torch.tensor(settled)}, ax)
    (text,) = ax.texts
    assert text.get_text().startswith(f"{words} of tokens settle")
    ax.figure.canvas.draw()
    highest = max(ax.transData.transform((0, line.get_ydata().max()))[1] for line in ax.lines)
    assert highest < text.get_window_extent().y0
    assert text.get_window_extent().y1 < ax.get_window_extent().y1


@pytest.mark.parametrize("n_layers", [2, 6, 7, 20])
def test_tokens_that_settle_late_are_said_to_settle_in_the_last_layers_only_where_those_are_one_or_more(ax, n_layers):
    settled = torch.linspace(0, 0.9, n_layers)
    plot("lens_settled", {"res_jsd": 1 - settled, "res_settled": settled}, ax)
    share = 1 - settled[-1 if n_layers < 7 else int(0.85 * n_layers)]  # settled at the input of the layers before
    where = "behind the last layer" if n_layers < 7 else "in the last 15% of the layers"
    assert ax.texts[0].get_text() == f"{share:.0%} of tokens settle {where}"


@pytest.mark.parametrize("name", ["future_erasure", "past_erasure"])
def test_an_erasures_caption_says_whose_mean_replaces_and_which_of_several_datasets_is_shown(name):
    assert "GSM8K's" in KINDS[name].caption and "the first that the study names" in KINDS[name].caption
