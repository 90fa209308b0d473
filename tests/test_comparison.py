"""Two models side by side: from results, folders and runs; what is said, drawn and refused."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import depth_lib as dl
from depth_lib import comparison
from depth_lib.embedded import toy_path
from depth_lib.results.schemas import MissingArtifact
from depth_lib.run import Run
from tests.synthetic import result_of, save, write_run


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def base_and_tuned():
    """The lens of toy-8l, and of the same with a last block that does nothing."""
    prompts = dl.load_prompts("mquake", 4, source="embedded")
    llm = dl.load_model("toy-8l")
    model = AutoModelForCausalLM.from_pretrained(toy_path("toy-8l")).float()
    tokenizer = AutoTokenizer.from_pretrained(toy_path("toy-8l"))
    with torch.no_grad():
        model.model.layers[7].mlp.down_proj.weight.zero_()
        model.model.layers[7].self_attn.o_proj.weight.zero_()
    return [dl.logit_lens(one, prompts) for one in (llm, dl.load_model(model, tokenizer))]


def test_two_results_are_a_frame_and_curves_in_one_panel(base_and_tuned):
    base, tuned = base_and_tuned
    found = dl.compare({"base": base, "tuned": tuned})
    frame = found.frame.set_index("rule")
    for rule, depth in (("kl", dl.effective_depth_kl), ("overlap", dl.effective_depth_overlap)):
        row = frame.loc[rule]
        assert (row.ed_first, row.ed_second, row.prompts) == (depth(base), depth(tuned), 4)
        assert row.difference == pytest.approx((row.ed_second - row.ed_first) / 8)
        assert row.low <= row.difference <= row.high
    assert "kl" in str(found) and "tuned" in str(found)
    (figure,) = found.plot("lens_kl")
    assert {"base", "tuned"} <= {text.get_text() for text in figure.legends[0].texts}
    drawn = [line.get_ydata() for ax in figure.axes for line in ax.lines if len(line.get_xdata()) == 8]
    for result in base_and_tuned:
        assert any(np.allclose(line, result["res_kl_divs"]) for line in drawn)
    with pytest.raises(ValueError, match="cosine needs a result of relative_contribution"):
        found.plot("cosine")


def test_the_names_may_be_steps_of_a_training(base_and_tuned, tmp_path):
    by_step = dict(zip((100, 200), base_and_tuned, strict=True))
    found = dl.compare(by_step)
    assert found.frame["second"].unique().tolist() == ["200"] and len(found.save(tmp_path)) > 1
    assert {"100", "200"} <= {text.get_text() for text in found.plot("lens_kl")[0].legends[0].texts}
    (ax,) = dl.plot("lens_kl", by_step).figure.axes
    assert "100" in ax.get_legend_handles_labels()[1]
    assert dl.effective_depths(by_step).index.unique("model").tolist() == ["100", "200"]


def test_the_note_names_settings_by_which_other_tokens_are_measured_or_another_lens(base_and_tuned):
    base, tuned = base_and_tuned
    for settings, said in (
        ({"at": "last"}, "measured differently: at='all' and 'last'"),
        ({"generate": 4}, "measured differently: generate=0 and 4"),
        ({"answers": ["12"]}, r"measured differently: answers=None and a list of 1$"),
        ({"lens": "ridge.pt"}, "measured differently: lens=None and 'ridge.pt'"),
        ({"budget": 5, "all_measures": False, "at": "all"}, ""),
    ):
        other = tuned | {"meta": tuned["meta"] | {"settings": settings}}
        for results in ({"base": base, "tuned": other}, {"base": base, "tuned": {**other}}):
            notes = dl.compare(results).frame.note
            assert notes.str.fullmatch(said).all(), notes.tolist()


def test_prompts_are_the_same_if_their_texts_are_not_if_their_lengths_are(base_and_tuned):
    base, tuned = base_and_tuned
    alike, other = ({"meta": {"prompts_hash": name}} for name in ("a", "b"))
    paired = dl.compare({"base": base | alike, "tuned": tuned | alike}).frame
    independent = dl.compare({"base": base | alike, "tuned": tuned | other}).frame
    assert (paired.note == "").all() and independent.note.str.startswith("treated as independent").all()
    longer = base | alike | {"n_tokens": base["n_tokens"] + 1}  # with a first token of its own
    assert (dl.compare({"base": base | alike, "tuned": longer}).frame.note == "").all()


def test_results_in_memory_are_paired_if_they_are_of_the_same_texts(base_and_tuned, toy):
    paired = dl.compare(dict(zip(("base", "tuned"), base_and_tuned, strict=True))).frame
    assert (paired.note == "").all()
    others = dl.logit_lens(toy, [text + "." for text in dl.load_prompts("mquake", 4, source="embedded")])
    independent = dl.compare({"base": base_and_tuned[0], "others": others}).frame
    assert len(independent) == 2 and independent.note.str.startswith("treated as independent").all()


def test_models_are_measured_on_the_prompts_that_are_given():
    models, prompts = {name: dl.load_model(name) for name in ("toy-4l", "toy-8l")}, ["5 + 7 = 12", "3 + 4 = 7", "8"]
    frame = dl.compare(models, prompts).frame
    assert frame.rule.tolist() == ["cosine", "kl", "overlap"] and frame.note.str.startswith("compared as").sum() == 0
    lens = {name: dl.logit_lens(llm, prompts) for name, llm in models.items()}
    alone = dl.effective_depths(lens).ed
    assert frame.set_index("rule").ed_second["kl"] is alone["toy-8l", "kl"] or (
        frame.set_index("rule").ed_second["kl"] == alone["toy-8l", "kl"]
    )
    with pytest.raises(ValueError, match='"toy-4l" is a model; pass the prompts too: dl.compare'):
        dl.compare(models)


def test_folders_and_runs_are_compared_on_what_they_share_and_written(tmp_path, monkeypatch):
    for seed, model in enumerate(("base", "tuned")):
        write_run(tmp_path, "gsm8k", model, 8, ("logit_lens", "layer_effects"), seed=0)
        write_run(tmp_path, "gsm8k", model, 8, ("relative_contribution",), seed=seed)
    write_run(tmp_path, "hellaswag", "base", 8, ("logit_lens",))
    found = dl.compare({name: tmp_path / "gsm8k" / name for name in ("base", "tuned")})
    assert set(found.results) == {("gsm8k", p) for p in ("logit_lens", "layer_effects", "relative_contribution")}
    assert (found.frame.dataset == "gsm8k").all() and found.frame.set_index("rule").difference["kl"] == 0
    (heat,) = found.plot("layer_effects")
    assert {ax.get_title().split("\n")[0] for ax in heat.axes if ax.get_title()} == {"base", "tuned"}
    monkeypatch.setattr(comparison, "FIGURES", ["lens_kl", "layer_effects"])  # of six, each half a second
    (tmp_path / "both").mkdir()
    for name in ("depths.csv", "gsm8k_lens_kl.pdf"):
        (tmp_path / "both" / name).write_text("somebody's")
    written = found.save(tmp_path / "both")
    assert found.save(tmp_path / "both") == written, "the same files again"
    aside = sorted((tmp_path / "both").glob("*.replaced-*"))
    assert [path.name for path in aside] == ["depths.csv.replaced-1", "gsm8k_lens_kl.pdf.replaced-1"]
    assert {path.read_text() for path in aside} == {"somebody's"}
    assert {path.name for path in written} >= {"gsm8k_lens_kl.png", "gsm8k_layer_effects.png", "depths.csv"}
    assert len(pd.read_csv(tmp_path / "both/depths.csv")) == 3
    run = Run({"MODEL": "base", "MODEL_ID": "toy-8l", "DATASET": "gsm8k", "OUT": str(tmp_path), "N_EXAMPLES": 10})
    assert str(dl.compare({"base": run, "tuned": tmp_path / "gsm8k/tuned"})) == str(found)


def test_what_cannot_be_compared_is_refused_in_words(tmp_path):
    lens, effects = result_of("logit_lens", 8), result_of("layer_effects", 8)
    with pytest.raises(ValueError, match="plot: result must be a probe's result, got list"):
        dl.plot("lens_kl", [lens, lens])
    both = dl.effective_depths({"a": lens, "b": lens})
    assert both.loc["b"].equals(dl.effective_depths(lens)) and both.index.names == ["model", "rule"]
    with pytest.raises(ValueError, match="compare expects at least two results"):
        dl.compare({"base": lens})
    with pytest.raises(
        ValueError, match='do not share a probe on the same data set: "a" has logit_lens; "b" has layer'
    ):
        dl.compare({"a": lens, "b": effects})
    with pytest.raises(ValueError, match='"b" is not the result of a probe .keys: x.'):
        dl.compare({"a": lens, "b": {"x": 1}})
    with pytest.raises(MissingArtifact, match="b: no such folder: .*; use that of a run"):
        dl.compare({"a": lens, "b": tmp_path / "none"})
    maps = dl.compare({"a": effects, "b": effects})
    assert maps.frame.empty and str(maps).startswith("no effective depths: ") and maps.plot("layer_effects")
    erasure = result_of("residual_erasure", 8)
    with pytest.raises(ValueError, match="the results have no depths, only residual_erasure; use logit_lens or"):
        dl.compare({"a": erasure, "b": erasure})
    with pytest.raises(ValueError, match=r"toy-4l is not a folder of results; pass the model itself, dl\.load_model"):
        dl.compare({"a": lens, "b": toy_path("toy-4l")})
    for model in ("one", "two"):
        save(tmp_path, model, "logit_lens", result=lens)
    with pytest.raises(ValueError, match="has one, two; use one model's, .*gsm8k/NAME"):
        dl.compare({"a": lens, "b": tmp_path})
