"""Which probes are slow tests, and when two results are the same."""

import pytest
import torch

from tests.calls import EVERY


def others_slow(quick):
    """The names in EVERY as parameters of a test, those that are not quick marked slow."""
    return [pytest.param(probe, marks=[] if probe in quick else pytest.mark.slow) for probe in EVERY]


def differences(result, truth):
    """The keys whose values are not the same tensor of float32, bit for bit; NaN is NaN."""
    assert result.keys() == truth.keys()
    return [key for key, value in truth.items() if isinstance(value, torch.Tensor) and not _same(result[key], value)]


def same(result, truth):
    assert not differences(result, truth)


def _same(tensor, truth):
    return tensor.dtype == truth.dtype == torch.float32 and torch.equal(tensor.nan_to_num(9), truth.nan_to_num(9))
