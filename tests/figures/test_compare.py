"""What the comparisons of runs draw of values, intervals and what is missing."""

import numpy as np
import pandas as pd
import pytest

from depth_lib.figures import overview_figure, ratio_by_size_figure, ratio_by_task_figure, save_comparisons
from depth_lib.figures.compare import RATIOS
from depth_lib.report.table import read_tables
from depth_lib.results.study import Study
from tests.figures.drawn import overlaps
from tests.marks import slow
from tests.synthetic import write_run


def frame(**columns):
    row = {"model": "Qwen2.5-7B", "dataset": "gsm8k", "metric": "kl", "layers": 10, "ed": 4, "ratio": 0.5}
    row |= {"low": 3, "high": 6, "ratio_low": 0.4, "ratio_high": 0.7}
    return pd.DataFrame([row | columns]).astype(dict.fromkeys(("ratio", "ratio_low", "ratio_high"), "Float64"))


def sizes_with_a_gap():
    """One model per size on two datasets; on gsm8k the middle one has no effective depth."""
    models = ("Qwen2.5-Math-1.5B", "Qwen2.5-Math-7B", "Qwen2.5-14B")
    rows = pd.concat([frame(model=m, dataset=d) for m in models for d in ("hellaswag", "gsm8k")], ignore_index=True)
    rows.loc[(rows.model == models[1]) & (rows.dataset == "gsm8k"), ["ratio", "ratio_low", "ratio_high"]] = pd.NA
    return rows


@pytest.mark.parametrize("folder", ["sizes", slow("paper")])
def test_no_text_of_a_comparison_lies_on_another_or_beyond_the_edge(folder, request):
    study = request.getfixturevalue(folder)
    intervals = read_tables(study).intervals
    for figure in (overview_figure(study), *(draw(intervals) for draw in RATIOS.values())):
        assert overlaps(figure) == []


def test_a_whisker_spans_the_interval_and_leaves_the_panel_where_it_is_open():
    runs = {"closed": {}, "above": {"ratio_high": pd.NA}, "below": {"ratio_low": pd.NA}}
    runs["none"] = {"ratio_high": pd.NA, "ratio_low": pd.NA}
    rows = [frame(model=model, dataset=task, **ends) for model, ends in runs.items() for task in ("x", "y")]
    (ax,) = ratio_by_task_figure(pd.concat(rows, ignore_index=True)).axes
    assert ax.get_title() == "kl" and ax.get_ylim() == (0, 1.04)
    spans = [[list(segment[:, 1]) for segment in drawn.get_segments()] for drawn in ax.collections]
    assert spans == [[pytest.approx(ends)] * 2 for ends in ([0.4, 0.7], [0.4, 2], [-1, 0.7])] + [[]]


@pytest.mark.parametrize("draw", [ratio_by_size_figure, ratio_by_task_figure])
def test_no_line_is_drawn_across_a_missing_value_and_lines_on_the_same_values_differ_in_dashes(draw):
    lines = [line for line in draw(sizes_with_a_gap()).axes[0].lines if line.get_linestyle() != "None"]
    gaps = [np.asarray(line.get_ydata(), float) for line in lines]
    assert sum(np.isnan(line).any() for line in gaps) == 1
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == len(lines)


def test_size_is_parameters_where_all_names_say_it_and_blocks_where_not_at_their_logarithms():
    rows = sizes_with_a_gap()
    assert "in billion parameters" in ratio_by_size_figure(rows).get_suptitle()
    blocks = ratio_by_size_figure(rows.assign(model="toy", layers=[4, 4, 8, 8, 32, 32]))
    ax = blocks.axes[0]
    assert "in blocks" in blocks.get_suptitle()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["4", "8", "32"] and list(ax.get_xticks()) == [2, 3, 5]


def test_a_comparison_of_one_category_is_not_drawn_and_none_of_before_stays(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)  # too little for the overview
    for intervals, drawn in ((sizes_with_a_gap(), {"ratio_by_size", "ratio_by_task"}), (frame(), set())):
        paths = save_comparisons(Study(tmp_path), intervals)
        there = {path.stem for path in (tmp_path / "figures" / "summary").glob("*.png")}
        assert {path.stem for path in paths} == there == drawn


def test_every_dataset_of_a_study_has_a_look_of_its_own():
    known = ["hellaswag", "gsm8k", "aime24", "mquake", "math", "addition", "multiplication", "sums"]
    models = ("Qwen2.5-Math-1.5B", "Qwen2.5-Math-7B")
    rows = [frame(model=model, dataset=dataset) for model in models for dataset in known]
    (ax,) = ratio_by_size_figure(pd.concat(rows, ignore_index=True)).axes
    assert len({line.get_color() for line in ax.lines}) == len(known)
