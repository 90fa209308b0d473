"""What `make real` runs, and its line about bfloat16."""

import pytest

from depth_lib.models import precision
from depth_lib.sweep import cli


@pytest.mark.parametrize(("gain", "said"), [(3.0, "bfloat16 3.0 times as fast as float32: DTYPE=bfloat16"), (1.9, "")])
def test_bfloat16_is_suggested_where_this_machine_multiplies_it_twice_as_fast(monkeypatch, capsys, gain, said):
    monkeypatch.setattr(precision, "bfloat16_gain", lambda: gain)
    cli._suggest_bfloat16()
    printed = capsys.readouterr().out
    assert said in printed and bool(printed) == bool(said)


def test_real_is_the_one_model_that_can_be_fetched_whatever_else_is_in_its_set(monkeypatch):
    plans = []
    monkeypatch.setattr(cli, "fetched", lambda name: None)
    monkeypatch.setattr(cli, "_suggest_bfloat16", lambda: None)
    monkeypatch.setattr(cli, "run_unfinished", plans.append)
    monkeypatch.setattr(cli, "make_table", plans.append)
    cli.main(["real"])
    for plan in plans:
        assert plan.folder == "outputs/real" and plan.models == ["SmolLM2-135M-Instruct"]
    assert len(plans) == 2 and len(plans[0].runs()) == 3


def test_the_gain_is_a_positive_ratio():
    assert precision.bfloat16_gain(repeats=1) > 0
