"""Logits of a real model's first blocks lie hundreds apart, where exponentials are subnormal: 100 times as slow."""

from types import SimpleNamespace

import pytest
import torch

from depth_lib.probes.logit_lens import KEYS
from depth_lib.probes.logit_lens import distances as distances_of
from depth_lib.residual.distributions import damage, distribution, probability
from depth_lib.residual.unembedding import _fetched


def wide(rows, seed):
    return -300 * torch.rand(rows, 3000, generator=torch.Generator().manual_seed(seed))


def log_softmax(z):
    return z.double().log_softmax(-1)


def close(ours, truth, rtol=1e-5, atol=1e-5):
    torch.testing.assert_close(ours.double(), truth, rtol=rtol, atol=atol)


def test_no_probability_is_subnormal_and_each_is_that_of_float64():
    p = probability(wide(6, 0).log_softmax(-1))
    assert p.min() >= torch.finfo(torch.float32).tiny
    close(p, log_softmax(wide(6, 0)).exp(), 2e-5, 1e-30)


def test_the_lens_distances_are_those_of_float64():
    logits = torch.stack([wide(6, 2), wide(6, 1)], dim=1)  # of one block, and the model's own
    distances = dict(zip(KEYS, distances_of(logits.clone())[..., 0], strict=True))
    for value, key in zip(distances_of(logits, all_measures=False)[..., 0], KEYS, strict=False):
        close(value, distances[key].double(), 1e-6, 1e-6)
    y, p = log_softmax(wide(6, 1)), log_softmax(wide(6, 2))
    mean = torch.logaddexp(p, y) - torch.log(torch.tensor(2.0))
    close(distances["res_kl_divs"], (p.exp() * (p - y)).sum(-1))
    close(distances["res_entropy"], -(p.exp() * p).sum(-1))
    jsd = sum((x.exp() * (x - mean)).sum(-1) / 2 for x in (p, y))
    close(distances["res_jsd"], jsd / torch.log(torch.tensor(2.0)))


def test_a_divergence_of_hundreds_of_nats_is_not_cut_off():
    base, changed = wide(1, 3), wide(5, 4)
    true, varied = log_softmax(base), log_softmax(changed)
    for following in range(5):
        y, y_bar = distribution(base[:, None]), distribution(changed[:, None])
        distance, kl, rise, _ = damage(y, y[1].argmax(-1, keepdim=True), y_bar, torch.tensor([following]))[..., 0]
        close(kl, (true.exp() * (true - varied)).sum(-1))
        close(distance, (true.exp() - varied.exp()).norm(dim=-1))
        close(rise, true[0, following] - varied[:, following], atol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_an_unembedding_elsewhere_sends_its_weights_once_after_more_rows_than_features(bias):
    """Where it is not a plain product, they are not used, and not asked for again."""
    module, calls = torch.nn.Linear(4, 9, bias=bias), []
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=9))
    llm = SimpleNamespace(unembed=lambda x: calls.append(len(x)) or module(x), config=config)
    arch, h = SimpleNamespace(fetched={}), torch.randn(2, 4)
    assert _fetched(llm, SimpleNamespace(fetched=None), h) is None
    assert _fetched(llm, arch, h) is _fetched(llm, arch, h) is None and calls == []
    for _ in range(2):
        weights = _fetched(llm, arch, h)
        assert weights is None if bias else torch.equal(weights, module.weight)
    assert calls == [4, 2]
