"""The real model's curves stay where they are: what moves one by more than rounding is seen."""

import math

import pandas as pd
import pytest
from torch import nn

from tests.real import golden

ROUNDING = 3e-5  # of the largest value of a curve: a hundred times what one machine moves it, a fifth of bfloat16


def moved(found, kept):
    """The curves that are further from those kept than rounding takes them, and by how much."""
    assert found[["key", "place"]].equals(kept[["key", "place"]])
    off = (found.value - kept.value).abs().fillna(math.inf).groupby(kept.key).max()
    off /= kept.value.abs().groupby(kept.key).max()
    return {key: value for key, value in off.items() if not value <= ROUNDING}  # NaN has moved


@pytest.fixture(scope="module")
def kept():
    return pd.read_csv(golden.KEPT)


def test_no_curve_of_the_real_model_has_moved(llm, kept):
    assert moved(golden.as_frame(golden.curves(llm)), kept) == {}


@pytest.mark.slow
def test_matrices_rounded_to_bfloat16_are_seen_in_every_curve(llm, kept):
    matrices = [part for block in llm._module.model.layers for part in block.modules() if isinstance(part, nn.Linear)]
    before = [matrix.weight.data for matrix in matrices]
    for matrix in matrices:
        matrix.weight.data = matrix.weight.data.bfloat16().float()
    try:
        found = golden.as_frame(golden.curves(llm))
    finally:
        for matrix, weight in zip(matrices, before, strict=True):
            matrix.weight.data = weight
    assert moved(found, kept).keys() == set(kept.key)
