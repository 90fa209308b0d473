"""Nothing waits for a device but for a few numbers of each pass, whatever the number of tokens and blocks."""

import pytest
import torch

from benchmarks.counts import Kernels, counted
from benchmarks.shapes import model_of
from depth_lib.models.families import describe
from depth_lib.residual.stream import read_residuals
from tests.calls import EVERY, FIRST
from tests.marks import others_slow

BLOCKS, WAITS = 6, 5  # of the model; copies to the host in a pass
ONE_BY_ONE = {"answer_lens": BLOCKS + 1}  # the logits of h_0..h_L, which may not fit on a GPU together
QUICK = ("relative_contribution", "logit_lens", "layer_effects", "residual_erasure", "block_removal")


@pytest.mark.parametrize("name", others_slow(FIRST, QUICK))
def test_waits_per_pass_do_not_grow_with_tokens_or_blocks(name, monkeypatch):
    for module in ("probes.logit_lens", "residual.distributions"):
        monkeypatch.setattr(f"depth_lib.{module}.rows_of_logits", lambda llm, h: 40)  # a prompt's logits in parts
    llm = model_of("tiny", blocks=BLOCKS)
    found = counted(llm, lambda: EVERY[FIRST[name]](llm))
    waits = WAITS * found["passes"] + ONE_BY_ONE.get(name, 0)
    assert 0 < found["to host"] <= waits and found["to device"] <= 6 * found["passes"] + 6, found


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
