"""The figures of answers and of the paper: what they show, how they are laid out, and that a person can read them."""

import warnings

import numpy as np
import pandas as pd
import pytest

from depth_lib.effective_depth.tables import depths, depths_by_threshold, depths_with_intervals
from depth_lib.figures.paper import PAPER_FIGURES, paper_figure, save_paper_figures
from depth_lib.figures.proxies import proxies_figure
from depth_lib.figures.summary import (
    intervals_figure,
    ratio_by_size_figure,
    ratio_by_task_figure,
    ratio_by_training_figure,
    save_summary_figures,
    thresholds_figure,
)
from depth_lib.results import files as storage
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import MissingArtifact, artifact_path
from depth_lib.results.study import Study, read_name
from tests.figures.texts import assert_modest_titles, overlaps
from tests.synthetic import DATASETS, PAPER_MODELS, result_of, write_run

MODELS = {"one": {"toy-8l": 8}, "three": {"toy-4l": 4, "toy-8l": 8, "toy-16l": 16}, "paper": PAPER_MODELS}
QUESTIONS = (intervals_figure, ratio_by_size_figure, ratio_by_training_figure, ratio_by_task_figure)


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.os, "fsync", lambda descriptor: None)
        for i, (model, n_layers) in enumerate(MODELS[request.param].items()):
            for dataset in DATASETS:
                probes = ("relative_contribution", "logit_lens", "layer_effects")
                if dataset == "gsm8k":
                    probes += ("residual_erasure", "integrated_gradients")
                write_run(out, dataset, model, n_layers, probes, n_examples=4, seed=10 * i)
    return out


@pytest.fixture(scope="module")
def study(folder):
    return Study(folder, datasets=DATASETS)


@pytest.fixture(scope="module")
def stability(study):
    return depths_with_intervals(study, depths(study))


@pytest.mark.parametrize("draw", QUESTIONS)
def test_no_text_of_an_answer_lies_on_another_or_beyond_the_edge(stability, draw):
    assert overlaps(draw(stability)) == []


def test_no_text_of_the_thresholds_lies_on_another(study):
    assert overlaps(thresholds_figure(depths_by_threshold(study, depths(study)), "gsm8k")) == []


def test_no_text_of_a_paper_figure_lies_on_another_and_it_is_as_wide_as_a_page(folder, study):
    fullest = ["gsm8k_cosine_similarity", "gsm8k_integrated_gradients", "gsm8k_hellaswag_logit_lens_overlap"]
    for name in fullest if folder.name.startswith("paper") else PAPER_FIGURES:
        figure = paper_figure(name, study)
        assert overlaps(figure) == [], name
        assert figure.get_figwidth() <= 7.8


def test_there_are_the_papers_twelve_figures():
    probes = ("cosine_similarity", "layer_effects", "output_change", "logit_lens_kl", "logit_lens_overlap")
    alone = {f"gsm8k_{name}" for name in (*probes, "residual_erasure", "integrated_gradients")}
    assert PAPER_FIGURES.keys() == alone | {f"gsm8k_hellaswag_{name}" for name in probes}


@pytest.mark.parametrize("draw", QUESTIONS)
def test_titles_are_hardly_larger_than_the_numbers_at_the_axes(draw):
    assert_modest_titles(draw(sizes_with_a_gap()))


def panels(figure):
    return [ax for ax in figure.axes if ax.get_title()]


def test_the_papers_models_stand_in_a_grid_of_types_by_sizes(folder, study):
    if folder.name.startswith("paper"):
        alone, both = (
            panels(paper_figure(name, study)) for name in ("gsm8k_logit_lens_kl", "gsm8k_hellaswag_logit_lens_kl")
        )
        tops = [sorted({round(ax.get_position().y0, 3) for ax in shown}, reverse=True) for shown in (alone, both)]
        assert [len(rows) for rows in tops] == [3, 3] and (len(alone), len(both)) == (12, 24)
        first_row = [ax.get_title() for ax in both if round(ax.get_position().y0, 3) == tops[1][0]]
        assert first_row == [
            f"DS-R1-Qwen-{size}B\n{dataset}" for size in ("1.5", "7", "14", "32") for dataset in ("gsm8k", "hellaswag")
        ]
        assert [ax.get_title() for ax in alone[8:]] == [
            "Qwen2.5-Math-1.5B",
            "Qwen2.5-Math-7B",
            "Qwen2.5-14B",
            "Qwen2.5-32B",
        ]
    else:
        assert [ax.get_title() for ax in panels(paper_figure("gsm8k_logit_lens_kl", study))] == list(
            MODELS[folder.name[:-1]]
        )


def test_a_paper_figure_without_one_of_its_datasets_names_it_and_is_left_out(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)
    with pytest.raises(MissingArtifact, match='no logit_lens artifacts for hellaswag .* DATASETS="hellaswag"'):
        paper_figure("gsm8k_hellaswag_logit_lens_kl", Study(tmp_path))
    written = save_paper_figures(Study(tmp_path))
    assert {path.stem for path in written} == {"gsm8k_logit_lens_kl", "gsm8k_logit_lens_overlap"}


@pytest.mark.parametrize(
    ("model", "kind", "billions"),
    [
        ("DeepSeek-R1-Distill-Qwen-7B", "R1-distill", 7),
        ("Qwen2.5-Math-1.5B", "base", 1.5),
        ("toy-8l", "base", None),
        ("Llama-3.1-70B-Instruct", "instruct", 70),
        ("Qwen2.5-14B-Instruct", "instruct", 14),
    ],
)
def test_a_models_name_says_its_training_and_size(model, kind, billions):
    assert (read_name(model).training, read_name(model).billions) == (kind, billions)


def frame(**columns):
    row = {
        "model": "Qwen2.5-7B",
        "dataset": "gsm8k",
        "metric": "kl",
        "layers": 10,
        "ed": 4,
        "ratio": 0.5,
        "low": 3,
        "high": 6,
        "ratio_low": 0.4,
        "ratio_high": 0.7,
        "same": 0.9,
        "without": 0.0,
    }
    return pd.DataFrame([row | columns]).astype({"ratio": "Float64", "ratio_low": "Float64", "ratio_high": "Float64"})


def whisker(stability):
    ax = intervals_figure(stability).axes[1]
    lines = {line.get_marker(): line for line in ax.lines}
    spans = [line.get_xdata() for line in ax.lines if len(line.get_xdata()) == 2]
    return spans, lines


def test_a_whisker_spans_the_interval_and_an_arrow_ends_where_it_is_open():
    spans, lines = whisker(frame())
    np.testing.assert_allclose(spans, [[0.4, 0.7]])
    assert "|" in lines and ">" not in lines and "<" not in lines
    spans, lines = whisker(frame(high=pd.NA, ratio_high=pd.NA))
    np.testing.assert_allclose(spans, [[0.4, 1.0]])
    assert ">" in lines


def test_without_an_interval_the_point_is_hollow_and_has_no_whisker():
    spans, lines = whisker(frame(low=pd.NA, high=pd.NA, ratio_low=pd.NA, ratio_high=pd.NA))
    assert spans == []
    assert [line.get_markerfacecolor() for line in lines.values()] == ["white"]


def test_size_is_parameters_where_all_names_say_it_and_blocks_where_not(stability, folder):
    label = ratio_by_size_figure(stability).axes[0].get_xlabel()
    assert label == ("Parameters (billions)" if folder.name.startswith("paper") else "Blocks")


def sizes_with_a_gap():
    """One model a size on two datasets; on gsm8k the middle one has no effective depth."""
    rows = [
        frame(model=f"Qwen2.5-{size}B", dataset=dataset, ratio=pd.NA if (size, dataset) == ("7", "gsm8k") else 0.5)
        for size in ("1.5", "7", "14")
        for dataset in ("hellaswag", "gsm8k")
    ]
    return pd.concat(rows, ignore_index=True)


@pytest.mark.parametrize("draw", [ratio_by_size_figure, ratio_by_task_figure])
def test_no_line_is_drawn_across_a_missing_value(draw):
    ax = draw(sizes_with_a_gap()).axes[1]
    joined = [np.asarray(line.get_ydata(), float) for line in ax.lines if line.get_linestyle() != "None"]
    gaps = [line for line in joined if np.isnan(line).any()]
    assert len(gaps) == 1 and np.isfinite(gaps[0]).sum() == len(gaps[0]) - 1


def test_models_of_one_size_are_not_joined_across_a_training_that_is_missing():
    models = {"Qwen2.5-7B": 0.5, "Qwen2.5-7B-Instruct": pd.NA, "DeepSeek-R1-Distill-Qwen-7B": 0.5}
    ax = ratio_by_training_figure(pd.concat([frame(model=m, ratio=r) for m, r in models.items()])).axes[1]
    joined = [np.asarray(line.get_ydata(), float) for line in ax.lines if line.get_linestyle() != "None"]
    assert [list(np.isnan(line)) for line in joined] == [[False, True, False]]


def test_lines_on_the_same_values_differ_in_width_so_that_all_are_seen():
    for draw in (ratio_by_size_figure, ratio_by_task_figure):
        lines = [line for line in draw(sizes_with_a_gap()).axes[1].lines if line.get_linestyle() != "None"]
        widths = [line.get_linewidth() for line in lines if line.get_color() != "#777777"]
        assert len(set(widths)) == len(widths) > 1 and sorted(widths, reverse=True) == widths


def test_a_legend_names_only_marks_that_are_drawn():
    texts = [text.get_text() for text in intervals_figure(frame()).legends[0].get_texts()]
    assert texts == ["gsm8k"]
    without = frame(low=pd.NA, high=pd.NA, ratio_low=pd.NA, ratio_high=pd.NA)
    assert [text.get_text() for text in intervals_figure(without).legends[0].get_texts()] == ["gsm8k", "no interval"]
    assert {line.get_linewidth() for line in ratio_by_training_figure(frame()).legends[0].get_lines()} == {0}


def test_a_comparison_of_one_category_is_not_drawn(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)

    def written(stability):
        found = {path.stem for path in save_summary_figures(Study(tmp_path), stability, stability[:0])}
        assert found == {path.stem for path in (tmp_path / "figures" / "summary").glob("*.png")}  # none of before stay
        return found

    assert written(frame()) == {"ratio_intervals"}
    assert written(sizes_with_a_gap()) == {"ratio_intervals", "ratio_by_size", "ratio_by_task"}
    assert written(frame(ratio=pd.NA)) == set()


def test_a_proxy_that_ranks_layers_as_skipping_does_has_a_rank_correlation_of_one(tmp_path):
    effects, contribution = result_of("layer_effects", 8), result_of("relative_contribution", 8)
    contribution["io_cos"] = 1 - effects["max_all_out"].flatten() ** 3
    contribution["rc_layer"] = -effects["max_all_out"].flatten()
    for probe, result in (("layer_effects", effects), ("relative_contribution", contribution)):
        save_artifact(artifact_path(tmp_path, "gsm8k", "toy-8l", probe, 10), result, {})
    figure = proxies_figure(Study(tmp_path))
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["rank correlation 1.00", "rank correlation -1.00", "no rank correlation"]
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), effects["max_all_out"].flatten())
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xdata(), 1 - contribution["io_cos"], rtol=1e-6)


def test_no_text_of_the_proxies_lies_on_another(study):
    assert overlaps(proxies_figure(study)) == []


def test_saving_writes_a_vector_and_an_image_of_each_and_no_warning(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-8l", 8, ["relative_contribution", "logit_lens"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = Study(tmp_path)
        found = depths(study)
        tables = depths_with_intervals(study, found), depths_by_threshold(study, found)
        paths = save_summary_figures(study, *tables)
    names = {"ratio_intervals", "thresholds_gsm8k"}
    assert {path.name for path in paths} == {f"{name}.{end}" for name in names for end in ("pdf", "png")}
    assert all(path.read_bytes()[:4] in (b"%PDF", b"\x89PNG") for path in paths)
