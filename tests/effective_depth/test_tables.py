"""The frames of a study: every depth side by side, what each rests on, and how far it is from the published one."""

import numpy as np
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.effective_depth.published import beside_the_paper, published_depths
from depth_lib.effective_depth.rules import METRICS, PAPER_METRICS
from depth_lib.effective_depth.tables import depths
from depth_lib.results.study import TABLE_PROBES, Study
from tests.synthetic import FIVE_PROBES, result_of, save, write_run

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
    rows = found[found.model == "toy-8l"].set_index("metric")
    assert tuple(rows.index) == tuple(METRICS)
    assert tuple(found[found.dataset == "aime24"].metric) == ("kl", "overlap", "settling")
    known = found[found.ed.notna()]
    assert np.allclose(known.ratio.astype(float), (known.ed + 1).astype(float) / known.layers)
    skips = rows.loc[["skips_future", "skips_all"]]
    assert skips.ed.isna().all() and ((skips.score_low < skips.score) & (skips.score < skips.score_high)).all()
    intervals = found[found.metric.isin(PAPER_METRICS)]
    assert len(intervals) == 3 + 3 + 2
    closed = intervals.dropna(subset=["low", "high"])
    assert len(closed) >= 3 and (closed.low <= closed.ed).all() and (closed.ed <= closed.high).all()
    assert np.allclose(closed.ratio_high.astype(float), (closed.high + 1).astype(float) / closed.layers)


def test_results_with_only_the_papers_keys_have_depths_but_no_interval_and_a_reason(study):
    theirs = depths(study, PAPER_METRICS).query("model == 'Qwen2.5-7B-Instruct'")
    assert len(theirs) == 3 and theirs.ed.notna().all()
    assert theirs[["low", "high", "same", "prompts"]].isna().all(axis=None)
    assert set(theirs.note) == {"no interval: no per-prompt sums in the file (not written by depth_lib)"}


def test_a_curve_that_is_not_finite_or_not_known_has_no_depth_and_a_note_that_says_why_and_stops_nothing(tmp_path):
    results = {probe: result_of(probe, 8) for probe in TABLE_PROBES}
    for key in ("att_cos", "mlp_cos"):
        results["relative_contribution"][key] = torch.full((8,), torch.nan)  # of a model that is read block by block
    paths = {probe: save(tmp_path, "toy", probe, result=result) for probe, result in results.items()}
    path = paths["logit_lens"]
    stored = torch.load(path, weights_only=True)
    stored["res_kl_divs"][2] = torch.nan  # as a script of one's own may leave it
    torch.save(stored, path)
    study = Study(tmp_path)
    with pytest.warns(UserWarning, match="gsm8k × toy has no effective depth: "):
        found = depths(study, PAPER_METRICS)
    notes = found.set_index("metric").note
    assert notes["cosine"] == "attention and MLP cannot be told apart in this model"
    assert "kl is nan at layer 2" in notes["kl"] and found.ed.isna().tolist() == [True, True, False]


def test_the_package_holds_the_108_published_values():
    published = published_depths()
    assert len(published) == 108 and published.groupby("metric").size().to_dict() == dict(cosine=36, kl=36, overlap=36)
    assert np.allclose((published.ed + 1) / published.layers, published.ratio, atol=0.0051)
    odd = published.query("model == 'DeepSeek-R1-Distill-Qwen-1.5B' and dataset == 'gsm8k' and metric == 'kl'")
    assert odd.ed.item() == 1


def test_the_verdict_on_a_depth_beside_the_published_one():
    """Of Qwen2.5-Math-7B on GSM8K by kl, published as layer 23 of 28."""
    rows = [
        (28, 23, 23, 23, 4, "same"),
        (28, 22, 22, 22, 4, "differs"),
        (28, 22, 21, 23, 4, "within the interval"),
        (28, 22, None, 23, 4, "within the interval"),
        (28, 22, 21, None, 4, "within the interval"),
        (28, 22, None, 22, 4, "differs"),
        (28, 24, 24, None, 4, "differs"),
        (28, 22, None, None, None, "differs, no interval"),
        (28, 22, None, None, 4, "undecided"),
        (28, None, 24, None, 4, "no effective depth"),
        (48, 23, 23, 23, 4, "other depth"),
    ]
    ours = pd.DataFrame(rows, columns=["layers", "ed", "low", "high", "prompts", "expected"])
    ours = ours.assign(model="Qwen2.5-Math-7B", dataset="gsm8k", metric="kl", ratio=0.5)
    ours = pd.concat([ours, ours.assign(model="toy-4l")], ignore_index=True)  # which is not in the papers
    beside = beside_the_paper(ours.astype(dict.fromkeys(("ed", "low", "high", "prompts"), "Int64")))
    assert beside.verdict.tolist() == [verdict for *_, verdict in rows]
    assert beside.difference.dropna().tolist() == [ed - 23 for _, ed, *_ in rows if ed]


def test_an_interval_open_at_both_ends_rules_out_no_layer():
    noise = torch.linspace(-4, 4, 5)[:, None]
    curves = torch.where(torch.arange(28) < 12, -0.05, 0.05) + noise
    result = {key: curves.mean(0) for key in METRICS["cosine"].keys}
    result |= {f"{key}_sums": curves * 10 for key in result} | {"n_tokens": torch.full((5,), 10.0)}
    assert dl.effective_depths(result).note.item() == "no interval: the prompts rule out no layer"


def test_a_probes_own_dict_gives_its_depths_with_ratio_and_interval():
    lens, contribution = result_of("logit_lens", 30), result_of("relative_contribution", 30)
    found = pd.concat([dl.effective_depths(contribution), dl.effective_depths(lens)])
    cosines = (contribution[key] for key in METRICS["cosine"].keys)
    assert found.ed.to_dict() == {
        "cosine": dl.effective_depth_cosine(*cosines),
        "kl": dl.effective_depth_kl(lens["res_kl_divs"]),
        "overlap": dl.effective_depth_overlap(lens["res_overlaps"]),
    }
    whole = dl.effective_depth_cosine(contribution), dl.effective_depth_kl(lens), dl.effective_depth_overlap(lens)
    assert whole == tuple(found.ed)
    assert found.ratio["kl"] == dl.ratio(int(found.ed["kl"]), 30)
    assert found.low["kl"] == dl.depth_interval(lens, "kl").low
    with pytest.raises(ValueError, match="no effective depth is read from this result"):
        dl.effective_depths(result_of("layer_effects", 4))
