"""The real model's curves stay where they are: what moves one by more than rounding is seen."""

import math

import pandas as pd
import pytest

from tests.real import golden

pytestmark = pytest.mark.slow  # loading and measuring a real model takes half a minute

ROUNDING = 3e-5  # of the largest value of a curve: a hundred times what one machine moves it, a fifth of bfloat16


def moved(found, kept):
    """The curves that are further from those kept than rounding takes them, and by how much."""
    assert found[["key", "place"]].equals(kept[["key", "place"]])
    off = (found.value - kept.value).abs().fillna(math.inf).groupby(kept.key).max()
    off /= kept.value.abs().groupby(kept.key).max()
    return {key: value for key, value in off.items() if not value <= ROUNDING}  # NaN has moved


def test_no_curve_of_the_real_model_has_moved(llm):
    assert moved(golden.as_frame(golden.curves(llm)), pd.read_csv(golden.KEPT)) == {}
