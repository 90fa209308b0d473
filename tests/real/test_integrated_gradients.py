"""Integrated gradients of a real model, on blocks where F jumps as on smooth ones, against `tests.real.reference`."""

import json

import pytest
import torch

from depth_lib.data.prompts import ANSWER, QUESTION
from tests.calls import gradients_of_blocks
from tests.real import reference

pytestmark = pytest.mark.slow  # loading and measuring a real model takes half a minute

TRUTH = {int(block): torch.tensor(row) for block, row in json.loads(reference.KEPT.read_text()).items()}


@pytest.mark.timeout(900)  # block 2 takes a minute on a machine without other work
@pytest.mark.parametrize("l", [28, 2])
def test_the_estimated_error_is_true_and_what_has_converged_is_right(llm, l):
    found = {key: value[0] for key, value in gradients_of_blocks(llm, QUESTION, ANSWER, [l]).items()}
    truth, igrads = TRUTH[l], found["igrads"]
    off = ((igrads[: len(truth)] - truth).abs().max() / truth.abs().max()).item()
    assert off <= found["error"] + 1e-3  # as well as the reference is known
    assert found["n_nodes"] <= 257 and not igrads[len(truth) :].any()
    if found["error"] <= 0.01:
        assert off <= 0.01 and found["completeness"].abs() <= 0.01 * found["f_difference"].abs()
    else:
        assert found["n_nodes"] > 200 and l < 8  # where F jumps
