"""Every kind of figure is drawn for 4, 30 and 80 layers, can be read, and shows what its result has."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

import depth_lib as dl
from depth_lib.effective_depth.tables import CONTROL, depths
from depth_lib.figures import KINDS, plot, save_figures, study_figure, summary_figure
from depth_lib.figures.marks import COLOURS, PUBLISHED, token_label
from depth_lib.results.result import Result
from depth_lib.results.schemas import ARTIFACTS
from depth_lib.results.study import Study
from tests.figures.drawn import curves, overlaps, panels
from tests.marks import others_slow, slow
from tests.report.studies import write_published
from tests.synthetic import curves_with_depths, result_of, save, write_run

WORDS = ["<|begin_of_text|>", *(f"Ġ{word}" for word in "Tom has 12 extraordinarily small apples , and $ 5 .".split())]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize("name", others_slow(list(KINDS), ["cosine", "layer_effects", "lens_kl"]))
def test_every_kind_is_drawn_for_4_30_and_80_blocks_and_no_text_lies_on_another(sizes, name):
    figure = study_figure(name, sizes, ["gsm8k"])
    if name in ("linear_maps", "response", "late_tokens"):  # of two models, and of results with more keys
        assert figure is None
        return
    assert len(panels(figure)) >= 3 and overlaps(figure) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cosine", "lens_kl", "layer_effects", "integrated_gradients"])
def test_no_text_lies_on_another_with_the_papers_twelve_models(paper, name):
    datasets = ["gsm8k"] if KINDS[name].of_question else ["gsm8k", "hellaswag"]
    figure = study_figure(name, paper, datasets)
    assert overlaps(figure) == [] and figure.get_figwidth() <= 7.3


@pytest.mark.parametrize("repeats", [1, slow(6)])
def test_no_token_is_dropped(tmp_path, repeats):
    tokens = WORDS * repeats + ["28"]
    for model in ("toy-4l", "Llama-3.1-70B-Instruct"):
        save(tmp_path, model, "residual_erasure", result=result_of("residual_erasure", 4, tokens=tokens))
    figure = study_figure("residual_erasure", Study(tmp_path), ["gsm8k"])
    assert overlaps(figure) == []
    for ax in panels(figure):
        assert [label.get_text() for label in ax.get_xticklabels()] == [*map(token_label, tokens[:-1])]


@pytest.mark.slow
def test_tokens_names_are_large_enough_to_read_however_many_maps_and_models_there_are(sizes):
    for name in ("future_erasure", "residual_erasure", "direct_effects", "integrated_gradients"):
        figure = study_figure(name, sizes, ["gsm8k"])
        labels = [label for ax in panels(figure) for label in ax.get_xticklabels()]
        assert len(labels) >= 78 and min(label.get_size() for label in labels) > 4, name


@pytest.mark.slow
def test_the_table_of_words_has_every_kth_layer_and_the_last_and_every_token():
    words = [[[f"{layer},{token}"] * 5 for token in range(27)] for layer in range(81)]
    divergence = np.random.default_rng(0).random((81, 27))
    result = {"answer_kl": divergence, "top_tokens": words, "tokens": [f"Ġ{token}" for token in range(27)]}
    result |= {"answer_log_probs": divergence, "answer_ranks": divergence}
    ax = plot("lens_table", result)
    assert overlaps(ax.figure) == [] and ax.figure.get_figwidth() <= 7.3
    layers = [*range(0, 79, 6), 80]
    assert [label.get_text() for label in ax.get_xticklabels()] == [*map(str, layers)]
    assert [label.get_text() for label in ax.get_yticklabels()] == [*map(str, range(27))]
    np.testing.assert_array_equal(ax.images[0].get_array(), divergence[layers].T)
    drawn = {tuple(text.get_position()): text.get_text() for text in ax.texts}
    assert drawn == {(k, token): f"{layer},{token}" for k, layer in enumerate(layers) for token in range(27)}
    width, height = (72 * side / ax.figure.dpi for side in (ax.bbox.width / 15, ax.bbox.height / 27))
    assert {text.get_size() for text in ax.texts} == {5} and width > 25 and height > 6, "in points"
    shallow = {key: value[:5] for key, value in result.items()} | {"tokens": result["tokens"]}
    assert [label.get_text() for label in plot("lens_table", shallow).get_xticklabels()] == list("01234")


def test_the_lowest_panel_of_each_column_names_its_axis(sizes):
    figure = study_figure("cosine", sizes, ["gsm8k"])
    assert [ax.get_xlabel() != "" for ax in panels(figure)] == [False, True, True]


def test_layer_0_is_at_the_top_of_effects_as_in_the_papers_and_at_the_bottom_of_tokens():
    effects = plot("layer_effects", result_of("layer_effects", 8))
    erasure = plot("residual_erasure", result_of("residual_erasure", 8))
    assert effects.yaxis_inverted() and not erasure.yaxis_inverted()
    assert np.ma.getmaskarray(effects.images[0].get_array())[5, 2], "what is not a later layer is white"


def test_a_plain_dict_is_drawn_by_its_keys_and_a_result_only_as_what_its_probe_measures():
    for kind, other, probe in (
        ("layer_effects", "mlp_effects", "layer_effects"),
        ("attention_effects", "layer_effects", "attention_effects"),
        ("mlp_gradients", "integrated_gradients", "mlp_gradients"),
    ):
        result = Result(probe, result_of(probe, 8))
        assert plot(kind, result) and plot(other, {**result})
        with pytest.raises(ValueError, match=f"needs a result of {other} .*is from {probe}"):
            plot(other, {"a": result})


@pytest.mark.parametrize("kind, probe, depth", [("cosine", "relative_contribution", 2), ("lens_kl", "logit_lens", 4)])
def test_the_dot_is_at_the_layer_of_the_table_and_the_published_line_at_its_own(kind, probe, depth):
    result = curves_with_depths(8, 2, 4, 5)[probe]
    ax = plot(kind, result)
    (dot,) = [line for line in ax.lines if line.get_label() == "effective depth"]
    assert [*dot.get_xdata()] == [depth] == [int(dl.effective_depths(result).ed[KINDS[kind].rule])]
    assert dot.get_fillstyle() == "none", "without an interval it is hollow"
    assert PUBLISHED not in [line.get_label() for line in ax.lines]


def test_an_open_interval_is_no_line_to_the_frame():
    some = np.array([[0.1] * 4 + [0.9] * 4] * 2 + [[0.1] * 8] * 3)
    lens = {
        "res_overlaps": some.mean(0),
        "res_overlaps_sums": some,
        "n_tokens": np.ones(5),
        "res_kl_divs": np.full(8, 5.0),
    }
    ax = plot("lens_overlap", lens)
    (wide,) = [line for line in ax.lines if line.get_label().startswith("95%")]
    (dot,) = [line for line in ax.lines if line.get_label() == "effective depth"]
    assert wide.get_xdata().max() == dot.get_xdata()[0] and dot.get_fillstyle() == "none"


def test_each_prompts_curve_is_thin_and_grey_where_it_is_asked_for():
    result = result_of("relative_contribution", 8, 5)
    plain, with_prompts = plot("cosine", result), plot("cosine", result, prompts=True)
    thin = [line for line in with_prompts.lines if line.get_linewidth() < 0.5]
    assert len(thin) == 15 and not [line for line in plain.lines if line.get_linewidth() < 0.5]
    of_prompts = result["att_cos_sums"] / result["n_tokens"][:, None]
    assert any(np.allclose(line.get_ydata(), of_prompts[3]) for line in thin)
    ax = plot("output_change", result_of("layer_effects", 8, 3), prompts=True)
    assert len([line for line in ax.lines if line.get_linewidth() < 0.5]) == 6


def test_a_result_without_signal_or_with_nan_says_so_in_its_panel_and_others_are_drawn():
    lens = result_of("logit_lens", 8)
    flat, broken = (
        lens | {"res_kl_divs": lens["res_kl_divs"] * 0.01},
        lens | {"res_kl_divs": lens["res_kl_divs"].clone()},
    )
    broken["res_kl_divs"][3] = np.nan
    assert [text.get_text() for text in plot("lens_kl", flat).texts] == ["no reliable depth"]
    (text,) = plot("lens_kl", broken).texts
    assert text.get_text() == "the curve is not finite at layer 3; run the probe again"
    assert not plot("lens_kl", lens).texts


def test_several_results_are_curves_in_one_panel_and_maps_in_a_row_each_with_the_same_colours():
    results = {name: result_of("logit_lens", n, seed=n) for name, n in (("one", 8), ("two", 12))}
    drawn = curves(plot("lens_kl", results))
    for name, result in results.items():
        assert np.allclose(drawn[name], result["res_kl_divs"])
    maps = plot("layer_effects", {"one": result_of("layer_effects", 8), "two": result_of("layer_effects", 12)}).figure
    assert [ax.get_title() for ax in panels(maps)] == [
        f"{n}\n{part}" for n in ("one", "two") for part in ("future tokens", "all tokens")
    ]
    assert {ax.images[0].get_clim() for ax in panels(maps)} == {(0, 1)}
    _, axes = plt.subplots(1, 2)
    assert plot("lens_kl", result_of("logit_lens", 8), axes[0]) is axes[0]
    with pytest.raises(ValueError, match="has 2 panels; leave out ax="):
        plot("layer_effects", result_of("layer_effects", 8), axes[0])
    with pytest.raises(ValueError, match="such as plt.gca.., got ndarray"):
        plot("lens_kl", result_of("logit_lens", 8), axes)


def test_a_score_whose_interval_reaches_the_first_or_last_layer_is_hollow():
    draw = np.random.default_rng(0)
    effects = np.vstack([draw.gamma(8, 1, (30, 12)), np.eye(12)[[0, 11, 11, 0]]])
    result = {"level": np.repeat([1, 2], [30, 4]), "output_effect": effects, "layer_effect": np.ones((34, 12, 12))}
    ax = plot("depth_score_by_level", result)
    looks = {
        round(float(line.get_xdata()[0]), 1): line.get_fillstyle() for line in ax.lines if line.get_marker() == "o"
    }
    assert looks[1.1] == "full" and looks[2.1] == "none"


def test_the_summary_has_dots_intervals_published_diamonds_and_the_controls_crosses(tmp_path):
    model = "Qwen2.5-7B-Instruct"
    for probe in ("relative_contribution", "logit_lens"):
        save(tmp_path, model, probe, result=result_of(probe, 28))
        save(tmp_path, "toy-8l", probe, result=result_of(probe, 8))
    frame = depths(Study(tmp_path))
    control = frame[frame.model == "toy-8l"].assign(variant=CONTROL, ed=0, ratio=0.125)
    figure = summary_figure(pd.concat([frame, control], ignore_index=True))
    texts = {text.get_text() for text in figure.legends[0].texts}
    assert texts == {"gsm8k", PUBLISHED, "random weights"}
    (row,) = frame[(frame.model == model) & (frame.rule == "kl")].itertuples()
    ax = figure.axes[1]
    points = {line.get_marker(): line for line in ax.lines if line.get_marker() != "None"}
    assert row.ratio in points["o"].get_xdata() and (row.published + 1) / 28 in points["D"].get_xdata()
    assert [*points["x"].get_xdata()] == [0.125]
    ends = {tuple(segment[:, 0]) for segment in ax.collections[0].get_segments()}
    assert (row.ratio_low, row.ratio_high) in ends
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [model, "toy-8l"]


@pytest.mark.slow
def test_no_text_of_the_summary_lies_on_another_with_the_papers_twelve_models(tmp_path):
    assert overlaps(summary_figure(depths(Study(write_published(tmp_path))))) == []


def test_a_character_that_the_font_lacks_is_a_box_and_no_warning():
    tokens = "Ġhello", "Ċ", "", "\x16", "你好", "extraordinary"
    assert [*map(token_label, tokens)] == ["hello", "↵", "␣", "□", "□□", "extraor…"]


def test_depths_on_the_same_layer_are_dots_in_the_colours_of_all():
    results = {name: curves_with_depths(8, 3, 4, 5)["logit_lens"] for name in "abc"}
    for i, name in enumerate(results):
        results[name]["res_kl_divs"] = results[name]["res_kl_divs"] * (1 + i)  # curves apart from each other
    dots = [line for line in plot("lens_kl", results).lines if line.get_label() == "effective depth"]
    assert [to_rgb(dot.get_color()) for dot in dots] == [*map(to_rgb, COLOURS[:3])]
    assert all(dot.get_xdata()[0] == 4 for dot in dots)


@pytest.mark.slow
def test_files_have_the_same_bytes_of_the_same_results_and_a_question_is_written_once(tmp_path):
    for dataset in ("gsm8k", "aime24"):
        write_run(tmp_path, dataset, "toy-8l", 8, ["residual_erasure", "attention_removal"], n_examples=3)
    first = save_figures(Study(tmp_path), tmp_path / "figures")
    assert {name: len(paths) for name, paths in first.items()} == {"residual_erasure": 1, "attention_removal": 2}
    contents = {path: path.read_bytes() for path in (tmp_path / "figures").glob("*.*") if path.name != ".written"}
    assert {path.suffix for path in contents} == {".pdf", ".png"}
    save_figures(Study(tmp_path), tmp_path / "figures")
    assert {path: path.read_bytes() for path in contents} == contents and plt.get_fignums() == []


def test_a_caption_speaks_of_a_part_of_a_layer_only_where_a_part_is_skipped():
    for part in ("attention", "mlp"):
        assert part in KINDS[f"{part}_effects"].caption.lower()
    assert "MLP" not in KINDS["layer_effects"].caption
    assert all(kind.caption.endswith(".") and kind.probe in {*ARTIFACTS, "linear_map"} for kind in KINDS.values())


def test_a_map_between_models_marks_the_best_source_layer_and_equal_depth():
    relative = np.random.default_rng(2).random((4, 7))
    ax = plot("linear_maps", {"relative": relative, "best": relative.argmin(0)})
    diagonal, best = ax.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [6, 3]]
    assert to_rgb(diagonal.get_color()) != to_rgb(ax.figure.get_facecolor()), "the legend shows it, too"
    assert np.array_equal(best.get_ydata(), relative.argmin(0))


def test_the_summary_has_room_for_a_rule_that_one_dataset_lacks(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ("logit_lens", "relative_contribution"))
    write_run(tmp_path, "questions", "toy-4l", 4, ("logit_lens",))
    frame = depths(Study(tmp_path))
    assert not ((frame.dataset == "questions") & (frame.rule == "cosine")).any()
    of_cosine, *of_lens = summary_figure(frame).axes
    assert [len({line.get_label() for line in ax.lines} & {"gsm8k", "questions"}) for ax in of_lens] == [2, 2]
    assert all(len(line.get_xdata()) == 0 for line in of_cosine.lines if line.get_label() == "questions")
