"""A family for users and in float64 for its oracle, what it is asked, and when two results are the same."""

import functools
import sys

import torch

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from tests.families import L, build
from tests.oracles.streams import in_float64
from tests.tiny_tokenizers import char_tokenizer

SIXTY = "The quick brown fox jumps over 13 lazy dogs, and back again"  # and the <bos> token: 60
QUESTION, ANSWER = "5 + 7 + 1 = ", "13"


def rounding(n_blocks, n_sums):
    """How far float32's rounding may take a number from the true one, relative to the largest: two sublayers per block
    round what they add, each by the root of as many units as products and sums make one of its numbers."""
    return 2 * n_blocks * n_sums**0.5 * torch.finfo(torch.float32).eps


TOLERANCE = rounding(L, 256)  # of the tiny models


def close(ours, truth, tolerance=1e-5, scale=1e-9):
    """Whether every difference is small relative to the largest true value, or to `scale` where that is larger."""
    assert ours.shape == truth.shape and ours.dtype == torch.float32 and ours.device.type == "cpu"
    difference = (ours - truth.detach()).abs().max() / truth.abs().max().clamp_min(scale)
    assert difference <= tolerance, f"{difference:.1e}"


@functools.cache
def load(name):
    """(the model of a family as a user loads it, the same model in float64 for the oracle), for tests that change
    neither: once for all of them."""
    return loaded(build(name)), in_float64(build(name))


def loaded(model):
    """A model of tests.families as a user loads it."""
    return dl.load_model(model, char_tokenizer())


def ids_of(llm, texts):
    return [torch.tensor(ids) for ids in tokenize(llm, texts)]


def compare_in_batch(patch, whether=True):
    """Every probe compares an intervention with a clean row of its own batch, or none does."""
    for name, module in list(sys.modules.items()):
        if name.startswith("depth_lib.") and hasattr(module, "compares_in_batch"):
            patch.setattr(module, "compares_in_batch", lambda llm, h: whether)
