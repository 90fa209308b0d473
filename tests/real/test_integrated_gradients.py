"""Integrated gradients of a real model, on blocks where F jumps as on smooth ones, against `tests.real.reference`."""

import json

import pytest
import torch

from depth_lib.data.prompts import ANSWER, QUESTION
from tests.calls import gradients_of_blocks
from tests.marks import slow
from tests.oracles import answer_span
from tests.real import reference

TRUTH = {int(block): torch.tensor(row) for block, row in json.loads(reference.KEPT.read_text()).items()}


@pytest.mark.timeout(900)  # block 2 takes a minute on a machine without other work
@pytest.mark.parametrize("l", [28, slow(2)])
def test_the_estimated_error_is_true_and_what_has_converged_is_right(llm, l):
    found = {key: value[0] for key, value in gradients_of_blocks(llm, QUESTION, ANSWER, [l]).items()}
    truth, igrads = TRUTH[l], found["igrads"]
    off = ((igrads[: len(truth)] - truth).abs().max() / truth.abs().max()).item()
    assert off <= found["error"] + 1e-3  # as well as the reference is known
    assert found["n_nodes"] <= 256 and not igrads[len(truth) :].any()
    if found["error"] <= 0.01:
        assert off <= 0.01 and found["completeness"].abs() <= 0.01 * found["f_difference"].abs()
    else:
        assert found["n_nodes"] > 200 and l < 8  # where F jumps


@pytest.mark.slow
@pytest.mark.timeout(900)  # minutes on a CPU that has no bfloat16, the more the earlier the block
@pytest.mark.parametrize("l", [25, 28])
def test_bfloat16_states_a_bound_of_its_distance_from_float32(in_bfloat16, l):
    found = gradients_of_blocks(in_bfloat16, QUESTION, ANSWER, [l])
    off = (found["igrads"][0, : len(TRUTH[l])] - TRUTH[l]).abs().max() / TRUTH[l].abs().max()
    assert off <= found["error"][0]


def test_the_reference_that_is_kept_is_the_one_that_is_computed(llm):
    ids, span = answer_span(llm.tokenizer, QUESTION, ANSWER)
    torch.testing.assert_close(
        torch.tensor(reference.integrated_gradients(llm._module, ids, list(range(*span)), 28)).float(),
        TRUTH[28],
        rtol=0,
        atol=2e-5,
    )
