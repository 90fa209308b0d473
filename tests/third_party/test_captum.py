"""Integrated gradients against captum's, which takes a function of h_{l+1} that a hook puts into the model."""

import pytest
import torch

from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.data.tokens import answer_span
from tests.calls import gradients_of_blocks
from tests.oracles.streams import block_states, hooks, places, with_first
from tests.third_party.conftest import REAL, SOME, SUM, TOYS, assert_near

captum = pytest.importorskip("captum.attr", reason="pip install captum: make test-oracles")

STEPS = 64
TIGHT, ROUGH = 1e-6, 0.01  # of the tiny models, whose gradients are smooth, and of the trained ones: the default
KINKED = ("mixtral", "qwen3_moe", "gpt_oss", "opt", "opt_projected")  # experts are chosen, or half of MLPs is cut off


def attributions(network, ids, places_of_answer, l, steps):
    """Σ_d of captum's attribution to h_{l+1} [T]; the baseline is the mean over the sequence."""
    with torch.no_grad():
        h = block_states(network, ids)[0][l + 1]
    baseline = h.mean(0, keepdim=True).expand_as(h)

    def answers_probability(residual):  # [steps, T, d]
        block = places(network)[0][l]
        with hooks(block.register_forward_hook(lambda _, args, output: with_first(output, residual))):
            tokens = torch.tensor(ids).expand(len(residual), -1)
            y = network(input_ids=tokens, use_cache=False).logits.softmax(-1)
        return sum(y[:, i - 1, ids[i]] for i in places_of_answer)

    method = captum.IntegratedGradients(answers_probability)
    how = {"n_steps": steps, "method": "gausslegendre", "internal_batch_size": 16}
    return method.attribute(h[None], baselines=baseline[None], **how)[0].sum(-1).detach()


@pytest.mark.parametrize("model", SOME, indirect=True)
def test_attributions_are_captums(model):
    name, _, llm = model
    pair = (QUESTION, ANSWER) if name == REAL else SUM
    ids, answer, _ = answer_span(llm, *pair)
    last = len(llm.blocks) - 1
    blocks = [28] if name == REAL else [last // 2, last] if name in TOYS else [0, last]
    rough = name in (REAL, *TOYS, *KINKED)
    ours = gradients_of_blocks(llm, *pair, blocks, tolerance=ROUGH if rough else TIGHT)["igrads"]
    steps = 4 * STEPS if name in KINKED else 2 * STEPS if name in TOYS else STEPS
    for l, igrads in zip(blocks, ours, strict=True):
        truth = attributions(llm._module, ids, list(answer), l, steps)
        assert_near(igrads, truth, 2 * ROUGH if rough else 1e-3)
