"""No pass is larger than its budget, and no number depends on it."""

import pytest
import torch

import depth_lib as dl
from depth_lib.probes.budget import tokens_in_pass
from tests.families import HEADS, MLP, D, L, build
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


def test_scores_of_eager_attention_and_the_activations_of_all_blocks_count(tmp_path):
    """Bytes of a token: 3.5 vectors of both widths, with gradients in each block; and eager, two rows of scores."""
    llm, h = loaded(build("llama"), tmp_path), torch.empty(2000, D, device="meta")
    plain, scores = 7 * (D + MLP) * 4 // 2, 2 * 2000 * HEADS * 4
    for attention, n_bytes in (("sdpa", plain), ("eager", plain + scores)):
        llm.config.get_text_config()._attn_implementation = attention
        assert tokens_in_pass(llm, h, 2**26) == 2**26 // n_bytes
        assert tokens_in_pass(llm, h, 2**26, gradients=True) == 2**26 // (L * n_bytes)


def test_a_pass_of_which_no_block_runs_is_no_error_where_the_model_reshapes_to_its_input(tmp_path):
    """The row of what leaves the last block is alone in its pass."""
    llm = loaded(build("gpt2"), tmp_path)
    whole = PROBES["erasure"](llm, None)["erasure_effect"]
    torch.testing.assert_close(PROBES["erasure"](llm, 1)["erasure_effect"], whole, rtol=1e-4, atol=1e-5)
