"""No pass is larger than its budget, and no number depends on it."""

import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import depth_lib as dl
from depth_lib.models.families import describe
from depth_lib.residual import budget, stream
from depth_lib.residual.budget import bytes_of_a_token, rows_of_logits, tokens_in_pass
from tests.families import HEADS, MLP, D, L, build
from tests.marks import slow
from tests.probes.comparing import SIXTY, compare_in_batch, loaded

TEXT = SIXTY[:12]  # 13 tokens, the fewest that future mode measures
PAIR = {"question": TEXT[:9], "answer": TEXT[9:]}
ERASED = PAIR | {"baseline_prompts": ["abc def"]}
PROBES = {
    "effects, future": partial(dl.layer_effects, prompts=[TEXT]),
    "effects, all": partial(dl.layer_effects, prompts=[TEXT], mode="all"),
    "effects, attention": partial(dl.layer_effects, prompts=[TEXT], part="attention"),
    "local effects": partial(dl.local_effects, prompts=[TEXT]),
    "erasure": partial(dl.residual_erasure, **ERASED),
    "future erasure": partial(dl.future_erasure, **ERASED),
    "removal": partial(dl.block_removal, prompts=[TEXT], sizes="all"),
    "increments": partial(dl.integrated_gradients, **PAIR, quadrature=1.0, method="increments", steps=1),
    "gradients": partial(dl.integrated_gradients, **PAIR, quadrature=1.0),
}


# less than a row; or one row and nearly another, where each pass has a clean row of its own, as in half precision
@pytest.fixture(params=[("llama", 1, False), slow(("llama", 25, True)), slow(("bloom", 1, False))])
def llm_and_budget(request):
    name, budget, in_batch = request.param
    with pytest.MonkeyPatch.context() as patch:
        compare_in_batch(patch, in_batch)
        yield loaded(build(name)), budget


@pytest.mark.filterwarnings("ignore:the integrated gradients")
@pytest.mark.parametrize("name", PROBES)
def test_no_pass_has_more_tokens_than_the_budget_or_one_row_and_numbers_are_the_same(llm_and_budget, name):
    (llm, smallest), largest = llm_and_budget, []
    hooks = [
        block.register_forward_pre_hook(lambda module, args: largest.append(args[0].shape[:2].numel()))
        for block in llm.blocks._module
    ]
    whole, least = PROBES[name](llm), 13 if name in ("increments", "gradients") else 26  # beside an unmodified row
    for n_tokens in (smallest, 50):
        largest.clear()
        found = PROBES[name](llm, budget=n_tokens)
        assert max(largest) <= max(n_tokens, least), n_tokens
        for key, value in found.items():
            if torch.is_tensor(value) and key not in ("n_nodes", "error"):
                torch.testing.assert_close(value, whole[key], rtol=1e-4, atol=1e-5, equal_nan=True)
    for hook in hooks:
        hook.remove()


def test_scores_of_eager_attention_and_the_activations_of_all_blocks_count():
    """Bytes of a token: 3.5 vectors of both widths, with gradients in each block; and eager, two rows of scores."""
    llm, h = loaded(build("llama")), torch.empty(2000, D, device="meta")
    plain, scores = 7 * (D + MLP) * 4 // 2, 2 * 2000 * HEADS * 4
    for attention, n_bytes in (("sdpa", plain), ("eager", plain + scores)):
        llm.config.get_text_config()._attn_implementation = attention
        assert bytes_of_a_token(llm, h, gradients=False) == n_bytes
        assert bytes_of_a_token(llm, h, gradients=True) == L * n_bytes

    for config, width, heads in (({}, 4 * D, 0), ({"n_inner": 5, "num_attention_heads": [2, 3]}, 5, 3)):
        config = SimpleNamespace(_attn_implementation="eager", **config)
        few = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda config=config: config))
        assert bytes_of_a_token(few, h, gradients=False) == 7 * (D + width) * 4 // 2 + 8 * 2000 * heads


def test_a_cpu_takes_a_constant_number_of_tokens_and_other_devices_what_half_of_their_memory_holds():
    llm, h = loaded(build("llama")), torch.empty(20, D)
    arch, elsewhere, wide = describe(llm), h.to("meta"), torch.empty(20, 2**20, device="meta")
    takes = partial(tokens_in_pass, llm, arch)
    assert (takes(h), takes(h, gradients=True), takes(h.bfloat16())) == (2048, 512, 8192)
    llm.config.quantization_config = {}
    assert takes(h) == 8192, "rounding depends on the batch, too"
    assert (takes(elsewhere), takes(wide)) == (2**17, 2**32 // bytes_of_a_token(llm, wide, gradients=False))
    weights = 4 * sum(weight.numel() for weight in llm._module.parameters())
    of_a_server = (15 * weights // 100 + 500 * 2**20) // 2
    on_server = tokens_in_pass(llm, arch.but(fetched={}), wide)
    assert on_server == of_a_server // bytes_of_a_token(llm, wide, gradients=False)
    for billions, n_bytes in ((8, 1_462_144_000), (70, 2_152_428_800)):  # on one GPU of 40 GB, on five
        module = torch.nn.Linear(10**5, billions * 10**4, bias=False, device="meta")
        assert budget._half_of_a_server(SimpleNamespace(_module=module), 2) == n_bytes


def test_logits_at_once_are_128_mib_and_on_a_cpu_28_or_256_rows():
    llm, h = loaded(build("llama")), torch.empty(20, D)
    for size, here, elsewhere in ((2**10, 7168, 2**15), (2**18, 256, 2**7), (2**26, 256, 1)):
        llm.config.vocab_size = size
        assert (rows_of_logits(llm, h), rows_of_logits(llm, h.to("meta"))) == (here, elsewhere)
    assert (budget.logits_in_cache(h), budget.logits_in_cache(h.to("meta"))) == (2**18, 2**24)


def test_gradients_ask_for_passes_of_the_whole_text(monkeypatch):
    """Whose length is that of eager attention's scores."""
    asked, probe = [], sys.modules[dl.integrated_gradients.__module__]
    count = probe.tokens_in_pass
    monkeypatch.setattr(probe, "tokens_in_pass", lambda *args, **named: asked.append(args[2]) or count(*args, **named))
    dl.integrated_gradients(loaded(build("llama")), **PAIR, quadrature=1.0)
    assert [h.shape for h in asked] == [(13, D)]


def test_of_a_batch_only_the_clean_row_is_kept_until_its_end(monkeypatch):
    kept, compare = [], stream._compare

    def watched(rows, h, l, x, after):
        kept.append(sum(x.untyped_storage().nbytes() for x in h) / sum(x.nbytes for x in h))
        return compare(rows, h, l, x, after)

    monkeypatch.setattr(stream, "_compare", watched)
    dl.layer_effects(loaded(build("llama").bfloat16()), [TEXT])
    assert kept and max(kept) == 1


def test_a_pass_of_which_no_block_runs_is_no_error_where_the_model_reshapes_to_its_input():
    """The row of what leaves the last block is alone in its pass."""
    llm = loaded(build("gpt2"))
    whole = PROBES["erasure"](llm)["erasure_effect"]
    torch.testing.assert_close(PROBES["erasure"](llm, budget=1)["erasure_effect"], whole, rtol=1e-4, atol=1e-5)
