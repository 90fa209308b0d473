"""A probe that fails does not lose the others of a sweep's run."""

import json

import pytest
import torch

import depth_lib as dl
from depth_lib.progress import LOG
from depth_lib.sweep.run import Run
from tests.sweep.cells import parameters


def test_after_a_probe_that_fails_a_sweeps_run_goes_on_and_any_other_caller_sees_the_error(
    tmp_path, monkeypatch, capsys
):
    """It raises, with a text or without, gives what is not finite, or has prompts that cannot be read."""
    (rows := tmp_path / "rows.jsonl").write_text(json.dumps({"ctx": "a", "endings": ["dog"], "label": "0"}))
    cell = parameters(tmp_path)
    short, of_file = Run(cell, prompts=["Hi."]), Run(cell | {"DATASET": "hellaswag", "SOURCE": str(rows)})
    with pytest.raises(ValueError, match="no prompt has the 13 tokens"):
        short.result("layer_effects")
    (tmp_path / "log").touch()
    monkeypatch.setenv(LOG, str(tmp_path / "log"))

    def broken(llm):
        return dl.relative_contribution(llm, short.prompts) | {"layer_cos": torch.full((4,), torch.nan)}

    def silent(llm):
        raise AssertionError

    assert short.result("logit_lens", silent) is None
    assert short.result("layer_effects") is short.result("relative_contribution", broken) is None
    assert of_file.result("residual_erasure") is None
    said = capsys.readouterr().out
    assert "failed: logit_lens: AssertionError" in said
    assert "failed: layer_effects: ValueError: no prompt has the 13 tokens" in said
    assert "failed: relative_contribution: ArtifactError: " in said and "layer_cos is not finite" in said
    assert "failed: residual_erasure: PromptError: residual_erasure takes its baseline from gsm8k" in said
    assert not short.path("relative_contribution").exists() and short.result("logit_lens")["res_kl_divs"].shape == (4,)
