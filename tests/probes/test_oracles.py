"""The oracles hold the axioms that define the probes: only then are they worth comparing with.

What an oracle reads from a model (streams.py) is held for every family. Gradients are held in test_known_answers.py,
against what a plain forward pass loses. The probes themselves are compared with the oracles on every family
(test_probes.py).
"""

import pytest
import torch

from tests import oracles
from tests.families import EACH_FAMILY, REFUSED, build
from tests.tiny_tokenizers import VOCABULARY_SIZE


def prompt(T, seed=0):
    return torch.randint(4, VOCABULARY_SIZE, (T,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def identity_errors(model, input_ids):
    """Identity 1, relative, worst block and token; identity 2, relative to the largest logit."""
    h, a, m, logits = oracles.residuals(model, input_ids)
    added = (h[:-1] + a + m - h[1:]).norm(dim=-1) / h[1:].norm(dim=-1)
    unembedded = (oracles.lens(model, h[-1]) - logits).abs().max() / logits.abs().max()
    return added.max().item(), unembedded.item()


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_contributions_add_up_and_the_lens_of_the_last_residual_is_the_models_output(name):
    model = build(name)
    for T in (1, 2, 13, 60):
        assert all(error < 1e-5 for error in identity_errors(model, prompt(T)))
    assert all(error < 1e-12 for error in identity_errors(oracles.in_float64(model), prompt(13)))


@pytest.mark.parametrize("name", REFUSED)
def test_a_normalised_residual_stream_breaks_the_first_identity(name):
    assert identity_errors(build(name), prompt(13))[0] > 0.1
