"""Integrated gradients against captum's, which takes a function of h_{l+1} that a hook puts into the model."""

import pytest
import torch

import depth_lib as dl
from depth_lib.api import answer_span
from depth_lib.data.prompts import ANSWER, QUESTION
from tests.oracles.streams import block_states, places, with_first
from tests.third_party.conftest import REAL, SUM, TOYS, assert_near

captum = pytest.importorskip("captum.attr", reason="pip install captum: make test-oracles")

STEPS = 64
TIGHT, ROUGH = 1e-6, 0.01  # of the tiny models, whose gradients are smooth, and of the trained ones: the default
KINKED = ("mixtral", "qwen3_moe", "gpt_oss", "opt", "opt_projected")  # experts are chosen, or half of MLPs is cut off


def attributions(network, ids, places_of_answer, l, steps=STEPS, over=0):
    """Σ_d of captum's attribution to h_{l+1} [T]; the baseline is the mean over the sequence, or another axis."""
    with torch.no_grad():
        h = block_states(network, ids)[0][l + 1]
    baseline = h.mean(over, keepdim=True).expand_as(h)

    def answers_probability(residual):  # [steps, T, d]
        block = places(network)[0][l]
        hook = block.register_forward_hook(lambda _, args, output: with_first(output, residual))
        try:
            tokens = torch.tensor(ids).expand(len(residual), -1)
            y = network(input_ids=tokens, use_cache=False).logits.softmax(-1)
        finally:
            hook.remove()
        return sum(y[:, i - 1, ids[i]] for i in places_of_answer)

    method = captum.IntegratedGradients(answers_probability)
    how = {"n_steps": steps, "method": "gausslegendre", "internal_batch_size": 16}
    return method.attribute(h[None], baselines=baseline[None], **how)[0].sum(-1).detach()


def asked_of(name, llm):
    """(question, answer, ids, places of the answer's tokens, blocks) that captum is asked about."""
    pair = (QUESTION, ANSWER) if name == REAL else SUM
    ids, answer, _ = answer_span(llm, *pair)
    last = len(places(llm._module)[0]) - 1
    return pair, ids, list(answer), [25, 28] if name == REAL else [last // 2, last] if name in TOYS else [0, last]


def test_attributions_are_captums(model):
    name, _, llm = model
    pair, ids, answer, blocks = asked_of(name, llm)
    rough = name in (REAL, *TOYS, *KINKED)
    if name == REAL:
        ours = _some_blocks(llm, ids, answer, blocks)
    else:
        found = dl.integrated_gradients(llm, *pair, quadrature=ROUGH if rough else TIGHT)
        ours = {l: found["igrads"][l] for l in blocks}
    for l in blocks:
        truth = attributions(
            llm._module, ids, answer, l, steps=4 * STEPS if name in KINKED else 2 * STEPS if rough else STEPS
        )
        assert_near(ours[l], truth, 2 * ROUGH if rough else 1e-3)


def _some_blocks(llm, ids, answer, blocks):
    """The probe on a few blocks of a real model: all would take minutes."""
    from depth_lib.models.families import describe
    from depth_lib.probes.integrated_gradients import integrated_gradients
    from depth_lib.session import run

    found = run(integrated_gradients, llm, describe(llm), ids, answer, blocks, "block", None, 0.01, None)
    return dict(zip(blocks, found["igrads"], strict=True))
