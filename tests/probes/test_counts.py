"""Nothing waits for a device but for a few numbers of each pass, whatever the number of tokens and blocks."""

import functools

import pytest
import torch

from benchmarks.counts import Kernels, counted, probes
from benchmarks.shapes import model_of
from benchmarks.workloads import random_prompt
from depth_lib.models.families import describe
from depth_lib.residual.stream import read_residuals

tiny = functools.cache(functools.partial(model_of, "tiny"))
WAITS = 5  # copies to the host in a pass


@pytest.mark.parametrize("name", probes(None, ""))
def test_waits_per_pass_do_not_grow_with_tokens_or_blocks(name):
    for blocks, n_tokens in ((3, 40), (6, 15)):
        llm = tiny(blocks=blocks)
        question = random_prompt(n_tokens // 3, 1)
        found = counted(llm, probes(llm, random_prompt(n_tokens, 0), question, "7")[name])
        assert 0 < found["to host"] <= WAITS * found["passes"], (blocks, n_tokens, found)
        assert found["to device"] <= 6 * found["passes"] + 6, (blocks, n_tokens, found)


def test_the_counter_counts():
    with Kernels() as kernels:
        x = torch.ones(1000)
        y = (x + 1).view(10, 100)
        assert kernels.kernels == 2 and kernels.alive == 8000
        del x
        assert kernels.alive == 4000 and kernels.peak == 8000 and y.shape == (10, 100)


def test_where_only_residuals_are_read_one_number_of_the_logits_comes_back(toy):
    shapes = []
    for reads in (False, True):
        with torch.no_grad(), toy.trace({"input_ids": torch.ones(1, 5, dtype=torch.long)}, use_cache=False):
            if reads:
                read_residuals(toy, describe(toy))
            shapes.append([*toy.output.logits.shape])
    assert shapes == [[1, 5, 257], [1, 1, 1]]
