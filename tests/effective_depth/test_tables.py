"""The frames of a study: every depth side by side, what each rests on, and how far it is from the published one."""

import numpy as np
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.effective_depth.published import beside_the_paper, published_depths
from depth_lib.effective_depth.rules import METRICS
from depth_lib.effective_depth.tables import depths, depths_by_threshold, depths_with_intervals
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import FIVE_PROBES, curves_with_depths, result_of, write_run

pytestmark = pytest.mark.filterwarnings("ignore:.*have no meta")  # one of the models below is the papers'


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    write_run(out, "gsm8k", "toy-8l", 8, (*FIVE_PROBES, "block_removal"))
    write_run(out, "gsm8k", "Qwen2.5-7B-Instruct", 28, papers_keys_only=True)
    write_run(out, "aime24", "toy-16l", 16, ["logit_lens"], n_examples=5)
    return Study(out)


def test_all_probes_stand_side_by_side_and_the_papers_with_intervals(study):
    found = depths(study)
    rows = found[(found.model == "toy-8l")].set_index("metric")
    assert tuple(rows.index) == tuple(METRICS)
    assert tuple(found[found.dataset == "aime24"].metric) == ("kl", "overlap", "settling")
    known = found[found.ed.notna()]
    assert np.allclose(known.ratio.astype(float), (known.ed + 1).astype(float) / known.layers)
    skips = rows.loc[["skips_future", "skips_all"]]
    assert skips.ed.isna().all() and ((skips.score_low < skips.score) & (skips.score < skips.score_high)).all()
    intervals = depths_with_intervals(study, found)
    assert len(intervals) == 3 + 3 + 2
    closed = intervals[intervals.low.notna() & intervals.high.notna()]
    assert len(closed) >= 3 and (closed.low <= closed.ed).all() and (closed.ed <= closed.high).all()
    assert np.allclose(closed.ratio_high.astype(float), (closed.high + 1).astype(float) / closed.layers)


def test_results_with_only_the_papers_keys_have_depths_but_no_interval_and_a_reason(study):
    theirs = depths_with_intervals(study, depths(study)).query("model == 'Qwen2.5-7B-Instruct'")
    assert len(theirs) == 3 and theirs.ed.notna().all()
    assert theirs[["low", "high", "same", "prompts"]].isna().all(axis=None)
    assert set(theirs.note) == {"no interval: no per-prompt sums in the file (not written by depth_lib)"}


def test_the_sweep_over_thresholds_holds_the_papers_own(study):
    found = depths(study)
    sweep = depths_by_threshold(study, found).query("model == 'toy-8l'").set_index(["metric", "threshold"])
    assert len(sweep) == 9 + 7 and sweep.index.is_unique
    ours = found.query("model == 'toy-8l'").set_index("metric")
    for metric, threshold in (("kl", 0.5), ("overlap", 0.3)):
        assert sweep.ed[metric, threshold] == ours.ed[metric] and sweep.ratio[metric, threshold] == ours.ratio[metric]


def test_a_curve_that_is_not_finite_has_no_depth_and_a_note_and_stops_nothing(tmp_path):
    for i, (probe, result) in enumerate(curves_with_depths(8, 3, 4, 5).items()):
        path = artifact_path(tmp_path, "gsm8k", "toy", probe, 10)
        save_artifact(path, result, {})
        stored = torch.load(path, weights_only=True)
        stored[("mlp_cos", "res_kl_divs")[i]][2] = float("nan")  # as a script of one's own may leave it
        torch.save(stored, path)
    study = Study(tmp_path)
    with pytest.warns(UserWarning, match="gsm8k × toy has no effective depth: "):
        found = depths(study)
    intervals = depths_with_intervals(study, found).set_index("metric")
    assert "mlp_cos is nan at layer 2" in intervals.loc["cosine", "note"] and "kl is nan" in intervals.loc["kl", "note"]
    assert intervals.ed.isna().tolist() == [True, True, False]


def test_a_model_without_attention_and_mlp_apart_has_no_cosine_depth_and_a_note_that_says_why(tmp_path):
    result = result_of("relative_contribution", 8)
    result |= {key: torch.full_like(result[key], float("nan")) for key in result if key.startswith(("att_", "mlp_"))}
    save_artifact(artifact_path(tmp_path, "gsm8k", "toy", "relative_contribution", 10), result, {})
    study = Study(tmp_path)
    with pytest.warns(UserWarning, match="attention and MLP cannot be told apart in this model"):
        intervals = depths_with_intervals(study, depths(study)).set_index("metric")
    assert pd.isna(intervals.ed["cosine"])
    assert intervals.note["cosine"] == "attention and MLP cannot be told apart in this model"


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
    intervals = depths_with_intervals(study, depths(study))
    beside = beside_the_paper(intervals).set_index(["model", "metric"])
    assert "toy-4l" not in beside.index and set(beside.loc["Qwen2.5-14B", "verdict"]) == {"other depth"}
    assert list(beside.loc["Qwen2.5-Math-7B", "verdict"]) == ["same", "differs", "no effective depth"]
    assert list(beside.loc["Qwen2.5-32B", "verdict"]) == ["same", "differs, no interval", "no effective depth"]
    assert beside.loc[("Qwen2.5-Math-7B", "kl"), "difference"] == -1

    def verdict(low, high):
        other = beside_the_paper(intervals.assign(low=low, high=high)).set_index(["model", "metric"])
        return other.loc[("Qwen2.5-Math-7B", "kl"), "verdict"]

    assert verdict(intervals.low - 1, intervals.high + 1) == "within the interval"
    assert verdict(pd.NA, intervals.high + 1) == "within the interval"
    assert verdict(intervals.low - 1, intervals.high) == "differs"


def test_an_interval_open_at_both_ends_leaves_the_comparison_undecided(tmp_path):
    noise = torch.linspace(-4, 4, 5)[:, None]
    curves = (torch.where(torch.arange(28) < 12, -0.05, 0.05) + noise).float()
    result = {key: curves.mean(0) for key in ("att_cos", "mlp_cos", "layer_cos")}
    result |= {f"{key}_sums": curves * 10 for key in result} | {"n_tokens": torch.full((5,), 10.0)}
    result |= {key: torch.ones(28) for key in ("rc_att", "rc_mlp", "rc_layer")}
    save_artifact(artifact_path(tmp_path, "gsm8k", "Qwen2.5-7B-Instruct", "relative_contribution", 5), result, {})
    study = Study(tmp_path)
    intervals = depths_with_intervals(study, depths(study))
    assert intervals.note.item() == "no interval: the prompts rule out no layer"
    assert beside_the_paper(intervals).verdict.item() == "undecided"
    without = beside_the_paper(intervals.assign(ed=pd.NA, low=5))
    assert without.verdict.item() == "no effective depth"  # though the published layer is above 5


def test_a_probes_own_dict_gives_its_depths_with_ratio_and_interval():
    lens, contribution = result_of("logit_lens", 30), result_of("relative_contribution", 30)
    found = dl.effective_depths(lens)
    assert list(found.index) == ["kl", "overlap"] and list(dl.effective_depths(contribution).index) == ["cosine"]
    assert found.ed["kl"] == dl.effective_depth_kl(lens) == dl.effective_depth_kl(lens["res_kl_divs"])
    assert found.ed["overlap"] == dl.effective_depth_overlap(lens)
    assert found.ratio["kl"] == dl.ratio(int(found.ed["kl"]), 30)
    assert found.low["kl"] == dl.depth_interval(lens, "kl").low
    curves = (contribution[key] for key in ("att_cos", "mlp_cos", "layer_cos"))
    assert dl.effective_depth_cosine(contribution) == dl.effective_depth_cosine(*curves)
    with pytest.raises(ValueError, match="no effective depth is read from this result"):
        dl.effective_depths(result_of("layer_effects", 4))
