"""The oracles hold the axioms that define the probes: only then are they worth comparing with.

What an oracle reads from a model (streams.py) is held for every family. Gradients are held in test_known_answers.py,
against what a plain forward pass loses. The probes themselves are compared with the oracles on every family
(test_probes.py).
"""

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from tests import oracles
from tests.families import EACH_FAMILY, REFUSED, L, build
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


def test_erasing_the_last_residual_puts_the_lens_of_the_mean_in_place_of_the_prediction():
    model, input_ids, baseline = build("llama"), prompt(9), [prompt(5, 1), prompt(7, 2)]
    effect = oracles.residual_erasure(model, input_ids, (6, 9), baseline)["erasure_effect"]
    total = sum(oracles.residuals(model, ids)[0][L].sum(dim=0) for ids in baseline)
    y_erased = oracles.lens(model, total / 12).softmax(-1)
    y = model(torch.tensor([input_ids])).logits[0].softmax(-1)
    torch.testing.assert_close(effect[L, 5:8], (y[5:8] - y_erased).norm(dim=-1))


def test_the_lens_divergence_is_from_the_lens_to_the_output():
    model, prompts = build("gemma2"), [prompt(3), prompt(9, seed=1)]
    divergences, ranks = [], []
    for input_ids in prompts:
        h, _, _, logits = oracles.residuals(model, input_ids)
        p, y = Categorical(logits=oracles.lens(model, h[1])), Categorical(logits=logits)
        divergences.append(kl_divergence(p, y))
        ranks += [
            order.tolist().index(top) + 1
            for order, top in zip(p.logits.argsort(descending=True), logits.argmax(-1), strict=True)
        ]
    found = oracles.logit_lens(model, prompts)
    torch.testing.assert_close(found["res_kl_divs"][1], torch.cat(divergences).mean())
    torch.testing.assert_close(found["res_mrr"][1], torch.tensor([1 / rank for rank in ranks]).mean())
    torch.testing.assert_close(found["res_top1"][1], torch.tensor([float(rank == 1) for rank in ranks]).mean())
