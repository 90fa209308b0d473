"""Two models side by side: from results, folders and runs; what is said, drawn and refused."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import depth_lib as dl
from depth_lib.comparison import beside_the_first
from depth_lib.embedded import toy_path
from depth_lib.results.study import Study
from depth_lib.run import Run
from tests.synthetic import result_of, save, write_run


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def base_and_tuned():
    """The lens of toy-8l, and of the same with a last block that does nothing."""
    prompts = dl.load_prompts("gsm8k", 4, source="embedded")
    llm = dl.load_model("toy-8l")
    model = AutoModelForCausalLM.from_pretrained(toy_path("toy-8l")).float()
    tokenizer = AutoTokenizer.from_pretrained(toy_path("toy-8l"))
    with torch.no_grad():
        model.model.layers[7].mlp.down_proj.weight.zero_()
        model.model.layers[7].self_attn.o_proj.weight.zero_()
    return [dl.logit_lens(one, prompts) for one in (llm, dl.load_model(model, tokenizer))]


def test_two_results_are_a_sentence_a_frame_and_curves_in_one_panel(base_and_tuned):
    base, tuned = base_and_tuned
    found = dl.compare({"base": base, "tuned": tuned})
    frame = found.depths().set_index("metric")
    for metric, depth in (("kl", dl.effective_depth_kl), ("overlap", dl.effective_depth_overlap)):
        row = frame.loc[metric]
        assert (row.ed_first, row.ed_second) == (depth(base), depth(tuned))
        assert row.difference == row.ed_second - row.ed_first and row.low <= row.difference <= row.high
        assert row.prompts == 4
    lines = str(found).splitlines()
    assert len(lines) == 2 and lines[0].startswith("By kl the prediction forms") and "in tuned" in lines[0]
    figure, *others = found.plot("lens_kl")
    assert not others and {"base", "tuned"} <= {text.get_text() for text in figure.legends[0].texts}
    drawn = [line.get_ydata() for ax in figure.axes for line in ax.lines if len(line.get_xdata()) == 8]
    for result in base_and_tuned:
        assert any(np.allclose(line, result["res_kl_divs"]) for line in drawn)
    with pytest.raises(ValueError, match="cosine is drawn from relative_contribution"):
        found.plot("cosine")


def test_folders_and_runs_are_compared_on_what_they_share_and_written(tmp_path, monkeypatch):
    for seed, model in enumerate(("base", "tuned")):
        write_run(tmp_path, "gsm8k", model, 8, ("logit_lens", "layer_effects"), seed=0)
        write_run(tmp_path, "gsm8k", model, 8, ("relative_contribution",), seed=seed)
    write_run(tmp_path, "hellaswag", "base", 8, ("logit_lens",))
    found = dl.compare({name: tmp_path / "gsm8k" / name for name in ("base", "tuned")})
    assert set(found.results) == {("gsm8k", p) for p in ("logit_lens", "layer_effects", "relative_contribution")}
    assert all(line.startswith("gsm8k: By ") for line in str(found).splitlines())
    same = found.depths().set_index("metric").loc["kl"]
    assert (same.difference, same.low, same.high) == (0, 0, 0)
    (heat,) = found.plot("layer_effects")
    assert any("tuned - base" in ax.get_title() for ax in heat.axes)
    monkeypatch.setattr(
        "depth_lib.comparison.save", lambda _, stem: [stem.with_suffix(end) for end in (".png", ".pdf")]
    )
    written = found.save(tmp_path / "both")
    assert {path.name for path in written} >= {
        "gsm8k_lens_kl.png",
        "gsm8k_layer_effects.pdf",
        "depths.csv",
        "comparison.txt",
    }
    assert len(pd.read_csv(tmp_path / "both/depths.csv")) == 3
    cell = {"MODEL": "base", "MODEL_ID": "toy-8l", "DATASET": "gsm8k", "OUT": str(tmp_path)}
    assert "hellaswag" not in "".join(said := beside_the_first(Study(tmp_path, ["base", "tuned"])))
    assert sorted(said) == sorted(line for line in str(found).splitlines() if "different prompts" not in line)
    run = Run(cell | {"N_EXAMPLES": 10})
    assert str(dl.compare({"base": run, "tuned": tmp_path / "gsm8k/tuned"})) == str(found)


def test_what_cannot_be_compared_is_refused_in_words(tmp_path):
    lens, effects = result_of("logit_lens", 8), result_of("layer_effects", 8)
    for given in ([[lens, lens]], [lens, effects]):
        with pytest.raises(ValueError, match="give several results by name: dl.plot"):
            dl.plot("lens_kl", *given)
    both = dl.effective_depths({"a": lens, "b": lens})
    assert both.loc["b"].equals(dl.effective_depths(lens)) and both.index.names == ["model", "metric"]
    with pytest.raises(ValueError, match="give two results or more by name"):
        dl.compare({"base": lens})
    with pytest.raises(ValueError, match="no probe on the same dataset in common: a has logit_lens; b has layer_eff"):
        dl.compare({"a": lens, "b": effects})
    with pytest.raises(ValueError, match="b is no result of a probe; its keys are x"):
        dl.compare({"a": lens, "b": {"x": 1}})
    with pytest.raises(dl.MissingArtifact, match="b: there is no folder .*; give that of a run"):
        dl.compare({"a": lens, "b": tmp_path / "none"})
    for model in ("one", "two"):
        save(tmp_path, model, "logit_lens", result=lens)
    with pytest.raises(ValueError, match="has one, two; give one model's, .*gsm8k/NAME"):
        dl.compare({"a": lens, "b": tmp_path})
