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
    cell = parameters(tmp_path) | {"PROBES": ["layer_effects", "logit_lens"]}
    with pytest.raises(ValueError, match="no prompt has the 13 tokens"):
        Run(cell, prompts=["Hi."]).result("layer_effects")
    (tmp_path / "log").touch()
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    run = Run(cell, prompts=["Hi."])
    assert run.result("layer_effects") is None
    assert "failed: layer_effects: ValueError: no prompt has the 13 tokens" in capsys.readouterr().out
    assert run.result("logit_lens")["res_kl_divs"].shape == (4,)


@pytest.fixture
def in_a_sweep(tmp_path, monkeypatch):
    (tmp_path / "log").touch()
    monkeypatch.setenv(LOG, str(tmp_path / "log"))


def test_after_a_result_that_is_not_finite_a_sweeps_run_goes_on(tmp_path, in_a_sweep, capsys):
    run = Run(parameters(tmp_path) | {"PROBES": ["relative_contribution", "logit_lens"]})

    def broken(llm):
        return dl.relative_contribution(llm, run.prompts) | {
            "rc_att": torch.full((4,), torch.nan).index_fill(0, torch.tensor(0), 1)
        }

    assert run.result("relative_contribution", broken) is None
    said = capsys.readouterr().out
    assert "failed: relative_contribution: ArtifactError: " in said and "rc_att is not finite" in said
    assert not run.path("relative_contribution").exists() and run.result("logit_lens")


def test_after_prompts_of_one_probe_that_cannot_be_read_a_sweeps_run_goes_on(tmp_path, in_a_sweep, capsys):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"ctx": "a", "endings": ["dog"], "label": "0"}))
    cell = {"DATASET": "hellaswag", "SOURCE": str(tmp_path / "rows.jsonl"), "N_EXAMPLES": 1}
    run = Run(parameters(tmp_path) | cell | {"PROBES": ["residual_erasure", "integrated_gradients"]})
    assert run.result("residual_erasure") is None
    assert "failed: residual_erasure: PromptError: residual_erasure takes its baseline" in capsys.readouterr().out
    assert run.result("integrated_gradients")
