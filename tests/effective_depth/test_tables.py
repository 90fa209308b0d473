"""The one frame of depths, and what changes over models."""

import numpy as np
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.effective_depth.over_models import over_models
from depth_lib.effective_depth.rules import RULES
from depth_lib.effective_depth.tables import CONTROL, depths, effective_depths, published_depths
from depth_lib.params import facts_of
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.result import Result
from depth_lib.results.study import Study
from tests.report.studies import write_depths, write_published
from tests.synthetic import artifact_path, curves_with_depths, result_of, save


def test_every_published_depth_is_beside_the_same_one_of_ours(published):
    frame = depths(Study(published)).query("model != 'toy-8l'")
    assert len(frame) == 108 and (frame.ed == frame.published).all()
    assert frame.ratio.round(2).tolist() == pytest.approx(
        frame.merge(published_depths(), on=["model", "dataset", "rule"]).ratio_y.tolist(), abs=0.0051
    )


def test_a_curve_that_is_not_finite_is_a_note_in_its_row_and_the_others_stand(tmp_path):
    for model, at in (("broken", torch.nan), ("sound", 1.0)):
        lens = result_of("logit_lens", 8)
        path = save(tmp_path, model, "logit_lens", result=lens)
        lens["res_kl_divs"][3] *= at
        torch.save(lens, path)  # `save_artifact` refuses it
    frame = depths(Study(tmp_path)).set_index(["model", "rule"])
    assert frame.note["broken", "kl"] == "the curve is not finite at layer 3; run the probe again"
    assert pd.isna(frame.ed["broken", "kl"]) and frame.ed["broken", "overlap"] == frame.ed["sound", "overlap"]
    assert frame.ed.notna()["sound", "kl"]


def test_a_control_has_rows_of_its_own_and_nothing_published(tmp_path):
    model = "Qwen2.5-7B-Instruct"
    lens = result_of("logit_lens", 28)
    save(tmp_path, model, "logit_lens", result=lens)
    of_random = artifact_path(tmp_path, "gsm8k", model, "logit_lens", 10, changed="weights=random")
    save_artifact(of_random, lens | {"res_kl_divs": lens["res_kl_divs"] * 0.01}, {})
    frame = depths(Study(tmp_path))
    assert (
        frame.variant.tolist() == ["", "", CONTROL, CONTROL]
        and frame.published.notna().tolist() == [True] * 2 + [False] * 2
    )
    assert frame.ed.isna().tolist() == [False, False, True, True]
    assert frame.note[2].startswith("no reliable depth: the lens's largest KL divergence is 0.")


def test_notes_say_which_limit_is_missing_and_why_there_is_no_interval():
    papers = curves_with_depths(8, 1, 4, None)["logit_lens"]
    frame = effective_depths(papers).set_index("rule")
    assert frame.note.tolist() == ["no interval: the file has no sums per prompt", "no layer satisfies the rule"]
    some = np.array([[0.1] * 4 + [0.9] * 4] * 2 + [[0.1] * 8] * 3)
    n_tokens = np.ones(5)
    lens = {"res_overlaps": some.mean(0), "res_overlaps_sums": some, "n_tokens": n_tokens}
    (row,) = effective_depths(lens | {"res_kl_divs": np.full(8, 5.0)}).query("rule == 'overlap'").itertuples()
    assert row.note == "no upper limit: the data are also consistent with no effective depth" and pd.isna(row.high)
    few = dict(zip("ab", [Result("logit_lens", lens | {"res_kl_divs": np.full(8, 5.0)})] * 2, strict=True))
    compared = dl.compare(few).frame.set_index("rule").loc["overlap"]
    assert pd.isna(compared[["low", "high"]]).any() and "limit: the data are also" in compared.note
    none = effective_depths({"res_kl_divs": np.full(8, 0.1), "res_overlaps": np.full(8, 0.1)})
    assert none.ed.isna().all() and none.dtypes[["ed", "low", "ratio"]].tolist() == ["Int64", "Int64", float]
    sound = effective_depths(result_of("logit_lens", 8))
    for end in ("low", "high"):
        assert ((sound[end] + 1) / 8 == sound[f"ratio_{end}"]).all() and (sound.note == "").all()
    with pytest.raises(ValueError, match="no effective depth can be computed from this result"):
        effective_depths(result_of("layer_effects", 8))


def test_of_an_unrolled_model_a_depth_is_a_number_of_passes_too():
    lens = result_of("logit_lens", 8)
    frame = effective_depths(lens | {"layer_passes": torch.tensor([0.0, 1, 2, 3]).repeat_interleave(2)})
    assert frame.passes.tolist() == (4 * frame.ratio).tolist() and "passes" not in effective_depths(lens)
    shorter = effective_depths(lens | {"layer_passes": torch.tensor([0.0, 0, 0, 1, 1, 1, 1, 1])})
    assert shorter.ed.tolist() == [6, 6] and shorter.passes.tolist() == [1 + 4 / 5] * 2


def test_the_frame_is_read_back_by_pandas_without_options(published, tmp_path):
    frame = depths(Study(published))
    frame.to_csv(tmp_path / "depths.csv", index=False)
    back = pd.read_csv(tmp_path / "depths.csv")
    assert list(back) == list(frame) and len(back) == len(frame)
    assert (back.ed.fillna(-1) == frame.ed.fillna(-1).astype(float)).all()


def test_over_the_papers_models_each_comparison_is_students_over_models(published, stats):
    frame = depths(Study(published)).query("model != 'toy-8l'")
    found = over_models(frame)
    assert {*found.question} == {"size", "training", "task"} and {*found.rule} == {*RULES}
    control = frame.assign(variant=CONTROL, ratio=0.1)
    assert over_models(pd.concat([frame, control])).equals(found), "random weights say nothing of models"
    of_kl = frame.query("rule == 'kl'").pivot(index="model", columns="dataset", values="ratio")
    change = of_kl.gsm8k - of_kl.hellaswag
    row = found.query("question == 'task' and rule == 'kl' and after == 'gsm8k'").iloc[0]
    ends = stats.ttest_1samp(change, 0).confidence_interval(0.95)
    assert (row.before, row.models) == ("hellaswag", 12)
    assert (row.estimate, row.low, row.high) == pytest.approx((change.mean(), ends.low, ends.high))
    size = found.query("question == 'size' and rule == 'kl'").iloc[0]
    assert (size.before, size.after, size.models) == ("1.5 B", "32 B", 12)
    models = frame.query("rule == 'kl'").groupby("model").ratio.mean()
    facts = [facts_of(model) for model in models.index]
    groups = sorted({fact.training for fact in facts})
    columns = [[np.log2(fact.billions), *(fact.training == group for group in groups)] for fact in facts]
    fit = np.linalg.lstsq(np.array(columns, float), models.to_numpy(), rcond=None)
    free = 12 - 1 - len(groups)
    error = np.sqrt(fit[1][0] / free * np.linalg.inv(np.transpose(columns).astype(float) @ columns)[0, 0])
    half, slope = stats.t.ppf(0.975, free) * error, fit[0][0]
    assert (size.low, size.estimate, size.high) == pytest.approx((slope - half, slope, slope + half))
    training = found.query("question == 'training' and rule == 'kl'")
    assert training.models.tolist() == [4, 4] and training.before.eq("base").all()


def test_two_models_are_too_few_and_three_that_agree_exactly_have_no_interval(published):
    frame = depths(Study(published)).query("model != 'toy-8l'")
    of_two = over_models(frame[frame.model.isin(frame.model.unique()[:2])])
    assert of_two.empty and list(of_two) == list(over_models(frame))
    of_two_sizes = frame[[facts_of(model).billions < 8 for model in frame.model]]
    assert of_two_sizes.model.nunique() == 6 and {*over_models(of_two_sizes).question} == {"task"}
    of_three_sizes = frame[[facts_of(model).billions < 16 for model in frame.model]]
    assert over_models(of_three_sizes).query("question == 'size'").models.tolist() == [9] * len(RULES)
    alike = frame.assign(ratio=0.5)
    rows = over_models(alike).query("question == 'task'")
    assert (rows.estimate == 0).all() and rows.low.isna().all() and rows.models.eq(12).all()


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The papers' twelve models on three data sets, and a toy without a cosine depth."""
    folder = write_published(tmp_path_factory.mktemp("paper"))
    write_depths(folder, "gsm8k", "toy-8l", 8, None, 4, 6)
    return folder
