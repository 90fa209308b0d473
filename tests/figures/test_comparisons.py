"""What the comparisons of runs draw of values, intervals and what is missing."""

import numpy as np
import pandas as pd
import pytest

from depth_lib.figures.summary import (
    intervals_figure,
    ratio_by_size_figure,
    ratio_by_task_figure,
    ratio_by_training_figure,
    save_summary_figures,
)
from depth_lib.results.study import Study
from tests.figures.texts import assert_modest_titles
from tests.synthetic import write_run

QUESTIONS = (intervals_figure, ratio_by_size_figure, ratio_by_training_figure, ratio_by_task_figure)


@pytest.mark.parametrize("draw", QUESTIONS)
def test_titles_are_hardly_larger_than_the_numbers_at_the_axes(draw):
    assert_modest_titles(draw(sizes_with_a_gap()))


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
