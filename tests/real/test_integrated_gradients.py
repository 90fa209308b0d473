"""Integrated gradients of a real model, on blocks where F jumps as on smooth ones, against `tests.real.reference`."""

import json
import os

import pytest
import torch

import depth_lib as dl
from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.models.families import describe
from depth_lib.probes.integrated_gradients import integrated_gradients
from depth_lib.session import run
from tests.oracles import answer_span
from tests.real import reference
from tests.real.conftest import NAME

TRUTH = {int(block): torch.tensor(row) for block, row in json.loads(reference.KEPT.read_text()).items()}
LONG = bool(os.environ.get("DEPTH_LIB_LONG_TESTS"))
SLOW = sorted(TRUTH) if LONG else [2, 12]  # all take minutes
BLOCKS = [25, 28, *(pytest.param(l, marks=pytest.mark.slow) for l in SLOW if l not in (25, 28))]


@pytest.mark.parametrize("l", BLOCKS)
def test_the_estimated_error_is_true_and_what_has_converged_is_right(llm, l):
    ids, span = answer_span(llm.tokenizer, QUESTION, ANSWER)
    work = (describe(llm), ids, list(range(*span)), [l], "block", None, 0.01, None)
    found = run(integrated_gradients, llm, *work)
    found, truth = {key: value[0] for key, value in found.items()}, TRUTH[l]
    igrads = found["igrads"]
    off = ((igrads[: len(truth)] - truth).abs().max() / truth.abs().max()).item()
    assert off <= found["error"] + 1e-3  # as well as the reference is known
    assert found["n_nodes"] <= 256 and not igrads[len(truth) :].any()
    if found["error"] <= 0.01:
        assert off <= 0.01 and found["completeness"].abs() <= 0.01 * found["f_difference"].abs()
    else:
        assert found["n_nodes"] > 200 and l < 8  # where F jumps


@pytest.fixture(scope="module")
def in_bfloat16(gguf):
    return dl.load_model(NAME, dtype="bfloat16")


def gradients(llm, blocks):
    ids, span = answer_span(llm.tokenizer, QUESTION, ANSWER)
    work = (describe(llm), ids, list(range(*span)), blocks, "block", None, 0.01, None)
    return run(integrated_gradients, llm, *work)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a CPU that has no bfloat16 takes eight times as long
def test_bfloat16_states_a_bound_of_its_distance_from_float32(in_bfloat16):
    blocks = list(range(12, 30)) if LONG else [16, 25, 28, 29]
    result, off = gradients(in_bfloat16, blocks), []
    for l, igrads in zip(blocks, result["igrads"], strict=True):
        off.append((igrads[: len(TRUTH[l])] - TRUTH[l]).abs().max() / TRUTH[l].abs().max())
    covered = torch.stack(off) <= result["error"]
    assert covered.float().mean() >= 0.9, list(zip(blocks, off, result["error"], strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="takes minutes: DEPTH_LIB_LONG_TESTS=1")
def test_bfloat16_takes_no_more_nodes_than_float32(llm, in_bfloat16):
    blocks = list(range(30))
    assert gradients(in_bfloat16, blocks)["n_nodes"].sum() <= gradients(llm, blocks)["n_nodes"].sum()


def test_the_reference_that_is_kept_is_the_one_that_is_computed(llm):
    ids, span = answer_span(llm.tokenizer, QUESTION, ANSWER)
    torch.testing.assert_close(
        torch.tensor(reference.integrated_gradients(llm._module, ids, list(range(*span)), 28)).float(),
        TRUTH[28],
        rtol=0,
        atol=2e-5,
    )
