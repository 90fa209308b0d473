"""A probe that fails does not lose the others of a sweep's run."""

import pytest

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
