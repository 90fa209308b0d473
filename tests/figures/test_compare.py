"""What the comparisons of runs draw of values, intervals and what is missing."""

import numpy as np
import pandas as pd
import pytest
import torch

from depth_lib.figures import COMPARISONS, save_comparisons
from depth_lib.figures.compare import (
    intervals_figure,
    proxies_figure,
    ratio_by_size_figure,
    ratio_by_task_figure,
    thresholds_figure,
)
from depth_lib.report.table import read_tables
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.figures.drawn import overlaps
from tests.synthetic import result_of, write_run


def frame(**columns):
    row = {"model": "Qwen2.5-7B", "dataset": "gsm8k", "metric": "kl", "layers": 10, "ed": 4, "ratio": 0.5}
    row |= {"low": 3, "high": 6, "ratio_low": 0.4, "ratio_high": 0.7, "same": 0.9, "without": 0.0}
    return pd.DataFrame([row | columns]).astype(dict.fromkeys(("ratio", "ratio_low", "ratio_high", "same"), "Float64"))


def sizes_with_a_gap():
    """One model per size on two datasets; on gsm8k the middle one has no effective depth."""
    models = ("Qwen2.5-Math-1.5B", "Qwen2.5-Math-7B", "Qwen2.5-14B")
    rows = pd.concat([frame(model=m, dataset=d) for m in models for d in ("hellaswag", "gsm8k")], ignore_index=True)
    rows.loc[(rows.model == models[1]) & (rows.dataset == "gsm8k"), "ratio"] = pd.NA
    return rows


@pytest.fixture(scope="module", params=["sizes", pytest.param("paper", marks=pytest.mark.slow)])
def found(request):
    study = request.getfixturevalue(request.param)
    tables = read_tables(study)
    return {"study": study, "intervals": tables.intervals, "thresholds": tables.thresholds}


@pytest.mark.parametrize("name", COMPARISONS)
def test_no_text_of_a_comparison_lies_on_another_or_beyond_the_edge(found, name):
    comparison = COMPARISONS[name]
    assert overlaps(comparison.draw(found[comparison.reads])) == []


@pytest.mark.parametrize(
    ("columns", "span"),
    [
        ({}, [0.4, 0.7]),
        ({"high": pd.NA, "ratio_high": pd.NA}, [0.4, 2]),
        ({"low": pd.NA, "ratio_low": pd.NA}, [-1, 0.7]),
        (dict.fromkeys(("low", "high", "ratio_low", "ratio_high"), pd.NA), None),  # "no interval" in its note
    ],
    ids=["closed", "open above", "open below", "open at both ends"],
)
def test_a_whisker_spans_the_interval_and_leaves_the_panel_where_it_is_open(columns, span):
    ax = intervals_figure(frame(**columns)).axes[0]
    assert ax.get_title().strip() == "kl" and ax.get_ylim() == (0, 1.04)
    spans = [list(segment[:, 1]) for drawn in ax.collections for segment in drawn.get_segments()]
    assert spans == ([] if span is None else [pytest.approx(span)])
    hollow, filled = (line for line in ax.lines if line.get_marker() == "o")
    assert hollow.get_fillstyle() == "none" and list(hollow.get_ydata()) == [0.5]
    assert list(filled.get_ydata()) == ([0.5] if span else [])


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
    assert "in blocks" in blocks.get_suptitle()
    ticks = [
        (text.get_text(), place)
        for text, place in zip(blocks.axes[0].get_xticklabels(), blocks.axes[0].get_xticks(), strict=True)
    ]
    assert ticks == [("4", 2), ("8", 3), ("32", 5)]


def test_a_comparison_of_one_category_is_not_drawn_and_none_of_before_stays(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)  # too little for overview and proxies
    for intervals, drawn in (
        (sizes_with_a_gap(), {"ratio_intervals", "ratio_by_size", "ratio_by_task"}),
        (frame(), {"ratio_intervals"}),
        (frame(ratio=pd.NA), set()),
    ):
        paths = save_comparisons(Study(tmp_path), intervals, pd.DataFrame())
        there = {path.stem for path in (tmp_path / "figures" / "summary").glob("*.png")}
        assert {path.stem for path in paths} == there == drawn


def test_a_proxy_that_ranks_layers_as_skipping_does_has_a_rank_correlation_of_one(tmp_path):
    effects, contribution = result_of("layer_effects", 8), result_of("relative_contribution", 8)
    damage = effects["all_kl"] = effects["all_kl"].flip(0)  # so that it is no other's ranks
    contribution |= {"io_cos": 1 - damage**3, "rc_layer": -damage}
    for probe, result in (("layer_effects", effects), ("relative_contribution", contribution)):
        save_artifact(artifact_path(tmp_path, "gsm8k", "toy-8l", probe, 10), result, {})
    axes = proxies_figure(Study(tmp_path)).axes
    assert [ax.get_title().split()[2] for ax in axes] == ["1.00", "-1.00", "nan"]
    ranks = (1 + torch.argsort(torch.argsort(damage))) / 8
    np.testing.assert_allclose(axes[0].lines[0].get_xydata(), torch.stack([ranks, ranks], 1), rtol=1e-6)


def test_the_papers_threshold_stands_in_each_panel_of_its_metric():
    rows = [frame(metric=metric, threshold=share) for metric in ("kl", "overlap") for share in (0.3, 0.4, 0.5)]
    figure = thresholds_figure(pd.concat(rows, ignore_index=True))
    places = [line.get_xdata()[0] for ax in figure.axes for line in ax.lines if line.get_linestyle() == ":"]
    ticks = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert [ticks[place] for place in places] == ["0.5", "0.3"]


def test_every_dataset_of_a_study_has_a_look_of_its_own():
    known = ["hellaswag", "gsm8k", "aime24", "mquake", "math", "addition", "multiplication", "sums"]
    figure = intervals_figure(pd.concat([frame(dataset=dataset) for dataset in known * 2]))
    assert len({line.get_color() for line in figure.axes[0].lines}) == len(known)
