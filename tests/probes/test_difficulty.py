"""Depth by difficulty against the plain version, its positions, and answers that are known beforehand."""

import pytest
import torch

import depth_lib as dl
from depth_lib.data.examples import Example
from depth_lib.effective_depth.difficulty import importance
from depth_lib.effective_depth.intervals import depth_score
from tests import oracles as oracle
from tests.families import L, build, make_identity
from tests.probes.comparing import TOLERANCE, close, load, loaded

LONG = " so it is 7 and then 19 is the sum"
EXAMPLES = [
    Example(2, "5 + 7 = ", "12"),
    Example(3, "5 + 7 + 1 = ", "13"),
    Example(3, "Find the sum:", LONG, True),
    Example(2, "9 + 9 = ", "18", True),  # four tokens and fewer have no place to draw from
]


@pytest.fixture(scope="module")
def pair():
    return load("llama")


def test_both_effects_of_every_example_equal_the_oracle(pair):
    llm, model = pair
    ours, (D, o) = dl.depth_by_difficulty(llm, EXAMPLES), oracle.depth_by_difficulty(model, llm.tokenizer, EXAMPLES)
    assert (D.amax((1, 2)) > 1e-3).all() and (o.amax(1) > 1e-5).all()
    close(ours["layer_effect"], D, TOLERANCE)
    close(ours["output_effect"], o, TOLERANCE, 0.1)
    assert ours["level"].tolist() == [2, 3, 3, 2] and ours["levels"].tolist() == [2, 3]
    for name, truth in (("layer_effect", D), ("output_effect", o)):
        levels = [truth[[0, 3]], truth[[1, 2]]]
        close(ours[f"mean_{name}"], torch.stack([level.mean(0) for level in levels]), TOLERANCE, 0.1)
        close(ours[f"max_{name}"], torch.stack([level.amax(0) for level in levels]), TOLERANCE, 0.1)


@pytest.mark.parametrize("s", range(L - 1))
def test_a_block_that_writes_only_at_layer_s_has_depth_score_s(s):
    """The last block reads what block s wrote; nobody reads what the last one wrote at earlier tokens."""
    model = make_identity(build("llama"), set(range(L)) - {s, L - 1})
    found = dl.depth_by_difficulty(loaded(model), EXAMPLES)
    for effect in ("layer", "output"):
        for e in importance(found, effect):
            assert depth_score(e) == pytest.approx(s, abs=1e-5)  # what is clean is clean to float32's rounding
