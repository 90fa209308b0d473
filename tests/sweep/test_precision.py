"""The line of `make real` about bfloat16."""

import pytest

from depth_lib.models import precision
from depth_lib.sweep import cli


@pytest.mark.parametrize(("gain", "said"), [(3.0, "bfloat16 3.0 times as fast as float32: DTYPE=bfloat16"), (1.9, "")])
def test_bfloat16_is_suggested_where_this_machine_multiplies_it_twice_as_fast(monkeypatch, capsys, gain, said):
    monkeypatch.setattr(precision, "bfloat16_gain", lambda: gain)
    cli._suggest_bfloat16()
    printed = capsys.readouterr().out
    assert said in printed and bool(printed) == bool(said)


def test_the_gain_is_a_positive_ratio():
    assert precision.bfloat16_gain(repeats=1) > 0
