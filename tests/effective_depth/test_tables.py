"""What an effective depth rests on: thresholds, crossings, the place between layers, and the other probes."""

import numpy as np
import pandas as pd
import pytest
import torch

from depth_lib.effective_depth.published import beside_the_paper, published_depths
from depth_lib.effective_depth.rules import (
    METRICS,
    depth_score,
    effective_depth_erasure,
    effective_depth_future,
    effective_depth_igrads,
    effective_depth_kl,
    effective_depth_overlap,
    future_profile,
    n_answer_tokens,
)
from depth_lib.effective_depth.tables import (
    ALL_METRICS,
    cosine_crossings,
    depths,
    depths_by_threshold,
    depths_with_intervals,
    fractional_depth,
)
from depth_lib.report.table import effective_depth_table
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import curves_with_depths, write_run

pytestmark = pytest.mark.filterwarnings("ignore:.*have no meta")  # one of the models below is the papers'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    write_run(out, "gsm8k", "toy-8l", 8)
    write_run(out, "gsm8k", "Qwen2.5-7B-Instruct", 28, papers_keys_only=True)
    write_run(out, "aime24", "toy-16l", 16, ["logit_lens"], n_examples=5)
    return Study(out)


PAPERS_KEYS = tuple(metric for metric in METRICS if metric != "all")  # their files have future mode only


def thrice(c):
    return [c] * 3


@pytest.mark.parametrize(
    ("c", "crossings"), [([0.1, 0.2], []), ([-0.1, 0.2], [0]), ([-0.1, 0.1, -0.1, -0.1, 0.1, -0.2], [0, 3])]
)
def test_every_crossing_of_the_cosine_is_found(c, crossings):
    assert cosine_crossings(*thrice(c)) == crossings


def test_the_fractional_depth_is_where_straight_lines_cross_the_threshold():
    assert fractional_depth("cosine", *thrice([-0.2, -0.3, 0.1, 0.2])) == pytest.approx(1.75)
    assert fractional_depth("kl", [10.0, 8.0, 4.0, 1.0]) == pytest.approx(1.75)
    assert fractional_depth("kl", [10.0, 8.0, 4.0, 1.0], threshold=0.9) == pytest.approx(0.5)
    assert fractional_depth("overlap", [0.1, 0.2, 0.6, 0.9]) == pytest.approx(1.25)


def test_the_fractional_depth_is_missing_where_the_depth_is_and_zero_where_the_first_layer_has_crossed():
    assert fractional_depth("cosine", *thrice([0.1, 0.2])) is None
    assert fractional_depth("kl", [3.0, 3.0]) is None and fractional_depth("overlap", [0.1, 0.2, 0.9]) is None
    assert fractional_depth("kl", [1.0, 9.0, 9.0]) == 0 and fractional_depth("overlap", [0.4, 0.5]) == 0


def test_the_fractional_depth_lies_within_a_layer_of_the_depth():
    draw = np.random.default_rng(0)
    for curve in draw.uniform(0, 1, (200, 9)):
        for metric, rule in (("kl", effective_depth_kl), ("overlap", effective_depth_overlap)):
            if (ed := rule(curve)) is not None:
                assert max(ed - 1, 0) <= fractional_depth(metric, curve) <= ed


def test_the_sweep_over_thresholds_holds_the_papers_own_and_agrees_with_the_rules(folder):
    sweep = depths_by_threshold(folder, depths(folder)).query("model == 'toy-8l'").set_index(["metric", "threshold"])
    assert len(sweep) == 9 + 7 and sweep.index.is_unique
    table = effective_depth_table(folder)
    for metric, threshold in (("kl", 0.5), ("overlap", 0.3)):
        ours = table.loc["toy-8l", (metric, "gsm8k", "ED")]
        assert sweep.loc[(metric, threshold), "ed"] == ours
        assert sweep.loc[(metric, threshold), "ratio"] == (ours + 1) / 8
    lens = torch.load(artifact_path(folder.folder, "gsm8k", "toy-8l", "logit_lens", 10), weights_only=True)
    assert sweep.loc[("kl", 0.9), "ed"] == effective_depth_kl(lens["res_kl_divs"], 0.9)


def test_the_stability_table_has_the_depths_of_the_table_inside_their_intervals(folder):
    stability, table = depths_with_intervals(folder, depths(folder)), effective_depth_table(folder)
    assert len(stability) == 3 + 3 + 2
    for row in stability.itertuples():
        ed = table.loc[row.model, (row.metric, row.dataset, "ED")]
        assert (pd.isna(ed) and pd.isna(row.ed)) or row.ed == ed
    measured = stability[stability.low.notna() & stability.high.notna()]
    assert len(measured) >= 3 and (measured.low <= measured.ed).all() and (measured.ed <= measured.high).all()
    assert np.allclose(measured.ratio_high.astype(float), (measured.high + 1).astype(float) / measured.layers)
    cosine = stability[stability.metric == "cosine"]
    assert all(str(row.ed) == row.crossings.split(", ")[-1] for row in cosine.itertuples())


def test_results_with_only_the_papers_keys_have_depths_but_no_interval_and_a_reason(folder):
    theirs = depths_with_intervals(folder, depths(folder)).query("model == 'Qwen2.5-7B-Instruct'")
    assert len(theirs) == 3 and theirs.ed.notna().all()
    assert theirs[["low", "high", "same", "prompts"]].isna().all(axis=None)
    assert set(theirs.note) == {"no interval: no per-prompt sums in the file (not written by depth_lib)"}


def map_of(rows):
    """Effects of which each row, but the last, has the given maximum over later layers."""
    effects = torch.zeros(len(rows) + 1, len(rows) + 1)
    for s, largest in enumerate(rows):
        effects[s, s + 1 :] = 0.1
        effects[s, s + 1 + s % (len(rows) - s)] = largest
    return effects


def test_the_future_depth_is_the_last_layer_whose_skipping_changes_a_later_one_by_over_half():
    effects = map_of([0.8, 0.3, 0.6, 0.5])
    assert effective_depth_future(effects) == 2  # exactly half is not over half
    effects[4, 4] = 9.0  # a layer's effect on itself, as in all mode, is no effect on later layers
    assert effective_depth_future(effects) == 2
    assert effective_depth_future(torch.zeros(4, 4)) is None
    with pytest.raises(ValueError, match="must be square"):
        effective_depth_future(torch.zeros(4, 3))


def test_no_single_layer_sets_the_scale_of_the_future_depth():
    usual = [0.7] * 22 + [0.3] * 7  # as SmolLM2-135M beyond its first layers
    assert effective_depth_future(map_of(usual)) == 21
    for first in (0.0, 1.0, 56.0, 1e6):
        rows = [first, 7.5, *usual[2:]]
        assert effective_depth_future(map_of(rows)) == 21
        score = depth_score(future_profile(map_of(rows)))
        assert 10 < score < 14  # nor of the centre of mass: 56 counts as 1, as the map's colours show it


def test_the_erasure_depth_looks_at_question_tokens_that_do_not_predict_the_answer():
    effects = torch.zeros(5, 6)  # four blocks; three question tokens, the one that predicts, and an answer of two
    effects[:, 3:5] = 1.4
    effects[0, 0], effects[1, 1], effects[2, 2], effects[3, 0] = 0.9, 0.6, 0.5, 0.4
    assert effective_depth_erasure(effects, n_answer_tokens=2) == 2
    assert effective_depth_erasure(torch.zeros(5, 6), 2) is None
    with pytest.raises(ValueError, match="no question token precedes"):
        effective_depth_erasure(torch.ones(5, 3), 2)


def test_the_gradients_depth_is_where_half_of_the_absolute_attribution_is_reached():
    igrads = torch.tensor([[0.5, -0.5], [0.25, 0.0], [-0.75, 0.0], [2.0, 0.0]])
    assert effective_depth_igrads(igrads) == 2
    assert effective_depth_igrads(torch.zeros(3, 2)) is None
    with pytest.raises(ValueError, match="not finite at layer 1"):
        effective_depth_igrads([[1.0], [float("nan")]])


def test_the_depth_score_is_the_centre_of_mass():
    assert depth_score([0, 0, 1, 0]) == 2 and depth_score([1, 0, 0, 3]) == pytest.approx(2.25)
    assert depth_score([0.0, 0.0]) is None
    with pytest.raises(ValueError, match="-1 at layer 1"):
        depth_score([1.0, -1.0])


@pytest.mark.parametrize(
    ("tokens", "answer", "n"),
    [
        (["5", "+", "=", "2", "8"], "28", 2),
        (["5", "=", " 28"], "28", 1),
        (["5", "=", "28"], "28", 1),
        (["a", "b", "c"], "bc", 2),
        (None, "28", 1),
    ],
)
def test_answer_tokens_are_counted_from_the_end_by_their_text(tokens, answer, n):
    assert n_answer_tokens({"tokens": tokens, "meta": {"settings": {"answer": answer}}}) == n
    if answer == "28":
        assert n_answer_tokens({"tokens": tokens, "meta": {}}) == n


def test_all_five_probes_stand_side_by_side(folder):
    rows_of = dict(tuple(depths(folder).groupby(["model", "dataset"])))
    for model, n_layers in (("toy-8l", 8), ("Qwen2.5-7B-Instruct", 28)):
        rows = rows_of[model, "gsm8k"].set_index("metric")
        assert (
            tuple(rows.index) == (tuple(ALL_METRICS) if model == "toy-8l" else PAPERS_KEYS)
            and (rows.layers == n_layers).all()
        )
        found = rows[rows.ed.notna()]
        assert np.allclose(found.ratio.astype(float), (found.ed + 1).astype(float) / n_layers)
        assert rows.loc[["future", "erasure", "igrads"], "score"].between(0, n_layers - 1).all()
    assert tuple(rows_of["toy-16l", "aime24"].metric) == ("kl", "overlap", "settling")


def test_the_package_holds_the_108_published_values():
    published = published_depths()
    assert len(published) == 108 and published.groupby("metric").size().to_dict() == dict(cosine=36, kl=36, overlap=36)
    assert np.allclose((published.ed + 1) / published.layers, published.ratio, atol=0.0051)
    odd = published.query("model == 'DeepSeek-R1-Distill-Qwen-1.5B' and dataset == 'gsm8k' and metric == 'kl'")
    assert odd.ed.item() == 1


def write_depths(out, model, n_layers, cosine, kl, overlap, sums=True):
    for probe, result in curves_with_depths(n_layers, cosine, kl, overlap).items():
        if sums:
            result |= {f"{key}_sums": curve.repeat(4, 1) * 10 for key, curve in result.items()}
            result["n_tokens"] = torch.full((4,), 10.0)
        save_artifact(artifact_path(out, "gsm8k", model, probe, 10), result, {})


def test_verdicts_are_same_differs_or_within_the_interval(tmp_path):
    write_depths(tmp_path, "Qwen2.5-Math-7B", 28, 11, 22, None)  # published: 11, 23, 24
    write_depths(tmp_path, "Qwen2.5-14B", 28, 5, 5, 5)  # published with 48 layers
    write_depths(tmp_path, "Qwen2.5-32B", 64, 46, 50, None, sums=False)
    write_depths(tmp_path, "toy-4l", 4, 1, 1, 1)
    study = Study(tmp_path)
    stability = depths_with_intervals(study, depths(study))
    beside = beside_the_paper(stability).set_index(["model", "metric"])
    assert beside.loc["Qwen2.5-Math-7B", "verdict"].to_dict() == {
        "cosine": "same",
        "kl": "differs",
        "overlap": "no effective depth",
    }
    assert beside.loc[("Qwen2.5-Math-7B", "kl"), "difference"] == -1
    assert set(beside.loc["Qwen2.5-14B", "verdict"]) == {"other depth"}
    assert beside.loc["Qwen2.5-32B", "verdict"].to_dict() == {
        "cosine": "same",
        "kl": "differs, no interval",
        "overlap": "no effective depth",
    }
    assert "toy-4l" not in beside.index
    wide = stability.assign(low=stability.low.sub(1), high=stability.high + 1)
    assert beside_the_paper(wide).set_index(["model", "metric"]).loc[("Qwen2.5-Math-7B", "kl"), "verdict"] == (
        "within the interval"
    )
