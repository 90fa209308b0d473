"""When two results are the same."""

import torch


def differences(result, truth):
    """The keys whose values are not the same tensor of float32, bit for bit; NaN is NaN."""
    assert result.keys() - {"meta"} == truth.keys() - {"meta"}
    lists = {key: value for key, value in truth.items() if isinstance(value, list) and torch.is_tensor(value[0])}
    wrong = [key for key, value in lists.items() if not all(map(_same, result[key], value))]
    tensors = {key: value for key, value in truth.items() if isinstance(value, torch.Tensor)}
    return wrong + [key for key, value in tensors.items() if not _same(result[key], value)]


def same(result, truth):
    assert not differences(result, truth)


def _same(tensor, truth):
    return tensor.dtype == truth.dtype == torch.float32 and torch.equal(tensor.nan_to_num(9), truth.nan_to_num(9))
