"""No pass is larger than its budget, and no number depends on it."""

import pytest
import torch

import depth_lib as dl
from benchmarks.counts import Kernels
from depth_lib.models.check import verified_arch
from tests.families import L, build
from tests.probes.comparing import SIXTY, compare_in_batch, loaded

QUESTION, ANSWER = SIXTY[:50], SIXTY[50:]
PROBES = {
    "effects, future": lambda llm, budget: dl.layer_effects(llm, [SIXTY], budget=budget),
    "effects, all": lambda llm, budget: dl.layer_effects(llm, [SIXTY], mode="all", budget=budget),
    "effects, attention": lambda llm, budget: dl.layer_effects(llm, [SIXTY], part="attention", budget=budget),
    "local effects": lambda llm, budget: dl.local_effects(llm, [SIXTY], budget=budget),
    "erasure": lambda llm, budget: dl.residual_erasure(llm, QUESTION, ANSWER, ["abc def"], budget=budget),
    "future erasure": lambda llm, budget: dl.future_erasure(llm, QUESTION, ANSWER, ["abc def"], budget=budget),
    "removal": lambda llm, budget: dl.block_removal(llm, [SIXTY], sizes="all", budget=budget),
    "increments": lambda llm, budget: dl.integrated_gradients(
        llm, QUESTION[:9], "5", quadrature=1.0, budget=budget, method="increments", steps=1
    ),
    "gradients": lambda llm, budget: dl.integrated_gradients(llm, QUESTION, ANSWER, 1.0, budget=budget),
}


@pytest.fixture(scope="module", params=[("llama", False), ("llama", True), ("bloom", False), ("gemma2", False)])
def llm(request, tmp_path_factory):
    """A model, whose interventions are compared with a row of their own batch (as in half precision) or not."""
    name, in_batch = request.param
    with pytest.MonkeyPatch.context() as patch:
        compare_in_batch(patch, in_batch)
        yield loaded(build(name), tmp_path_factory.mktemp(name))


@pytest.mark.filterwarnings("ignore:the integrated gradients")
@pytest.mark.parametrize("name", PROBES)
def test_no_pass_has_more_tokens_than_the_budget_or_one_row_and_numbers_are_the_same(llm, name):
    largest = []
    hooks = [
        block.register_forward_pre_hook(lambda module, args: largest.append(args[0].shape[:2].numel()))
        for block in llm.blocks._module
    ]
    n_tokens = len(llm.tokenizer(SIXTY)["input_ids"])
    whole = PROBES[name](llm, None)
    for budget in (1, 2 * n_tokens - 1, 170):
        largest.clear()
        found = PROBES[name](llm, budget)
        assert max(largest) <= max(budget, n_tokens), budget
        for key, value in found.items():
            if torch.is_tensor(value) and key not in ("n_nodes", "error"):
                torch.testing.assert_close(value, whole[key], rtol=1e-4, atol=1e-5, equal_nan=True)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_scores_of_eager_attention_are_within_the_default_budget(attention, tmp_path):
    """200 tokens: 15 rows would have scores of 40 MB, where the budget is one of 9."""
    llm = loaded(build("llama"), tmp_path)
    llm.config.get_text_config()._attn_implementation = attention
    rows = []
    llm._module.model.layers[-1].register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    verified_arch(llm)  # anew, as there is a hook
    rows.clear()
    text, d = (SIXTY * 4)[:199], llm.config.hidden_size
    with Kernels() as kernels:
        dl.layer_effects(llm, [text], mode="all", part="attention")
    assert max(rows) == (3 if attention == "eager" else L)
    assert kernels.peak <= 2 * 3072 * 16 * d * 4


def test_a_pass_of_which_no_block_runs_is_no_error_where_the_model_reshapes_to_its_input(tmp_path):
    """The row of what leaves the last block is alone in its pass."""
    llm = loaded(build("gpt2"), tmp_path)
    whole = PROBES["erasure"](llm, None)["erasure_effect"]
    torch.testing.assert_close(PROBES["erasure"](llm, 1)["erasure_effect"], whole, rtol=1e-4, atol=1e-5)
