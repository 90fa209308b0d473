"""Known answers of what is skipped in parts, removed, taken out of one input, erased for all that follows, or read off
passes that run anyway."""

import pytest
import torch

import depth_lib as dl
from depth_lib.api import tokenize
from tests.families import L, build, make_identity
from tests.tiny_tokenizers import char_tokenizer

TEXT = "The quick brown fox jumps over 13 lazy dogs"
K = 2  # blocks K, K + 1, … are the identity
MODES = [(mode, part) for mode in ("future", "all", "remove") for part in ("layer", "attention", "mlp")]


def loaded(model, folder):
    model.save_pretrained(folder)
    char_tokenizer().save_pretrained(folder)
    return dl.load_model(folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return loaded(build("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module", params=["llama", "olmo2", "gpt_neox", "bloom", "gemma2"])
def shallow(request, tmp_path_factory):
    """A model of four blocks of which only the first two do anything."""
    return loaded(make_identity(build(request.param), range(K, L)), tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("mode, part", MODES)
def test_no_part_of_an_identity_block_has_an_effect(shallow, mode, part):
    found = dl.layer_effects(shallow, [TEXT], mode=mode, part=part)
    effect, output = found[f"max_{mode}_layer"], found[f"max_{mode}_out"]
    assert output[0] > 1e-3 and effect[0, 1] > 1e-3 and not effect[K:].any() and not output[K:].any()
    assert found[f"{mode}_kl"][0] > 1e-4 and found[f"{mode}_loss"][0] != 0
    assert not found[f"{mode}_kl"][K:].any() and not found[f"{mode}_loss"][K:].any()
    assert torch.equal(found[f"{mode}_top1"][K:], torch.ones(L - K))


@pytest.mark.parametrize("mode", ["future", "all"])
def test_a_block_that_writes_nothing_has_no_local_effect(shallow, mode):
    local = dl.local_effects(shallow, [TEXT], mode=mode)[f"max_{mode}_local"]
    assert local[0, 1] > 1e-3 and not local[1:].any() and not local.tril().any()


@pytest.mark.parametrize("mode", ["future", "all", "remove"])
def test_the_attention_of_a_parallel_block_without_an_mlp_is_all_of_it(mode, tmp_path):
    model = build("gpt_neox")
    for block in model.gpt_neox.layers:
        block.mlp.dense_4h_to_h.weight.zero_()
        block.mlp.dense_4h_to_h.bias.zero_()
    llm = loaded(model, tmp_path)
    layer, attention, mlp = (
        dl.layer_effects(llm, [TEXT], mode=mode, part=part) for part in ("layer", "attention", "mlp")
    )
    for key, value in layer.items():
        torch.testing.assert_close(attention[key], value, rtol=1e-4, atol=1e-5)
    assert layer[f"max_{mode}_layer"].max() > 0.1
    assert mlp[f"max_{mode}_layer"].max() < 1e-5 and mlp[f"max_{mode}_out"].max() < 1e-5  # the rounding of a batch


def test_a_skipped_part_leaves_what_the_other_part_adds(llama):
    """In all mode the block itself counts: whole skips lose all it adds, an MLP skip only that, and without attention
    the MLP reads something else."""
    whole, attention, mlp = (
        dl.layer_effects(llama, [TEXT], mode="all", part=part)["max_all_layer"]
        for part in ("layer", "attention", "mlp")
    )
    torch.testing.assert_close(whole.diagonal(), torch.ones(L))
    for partial in (attention, mlp):
        assert (partial.diagonal() > 0.01).all() and ((partial.diagonal() - 1).abs() > 1e-3).all()
        assert not partial.tril(-1).any()


@pytest.mark.parametrize("s", range(L))
def test_a_removed_block_is_a_model_without_it(llama, s):
    found = dl.layer_effects(llama, [TEXT], mode="remove")
    ids, model, shorter = torch.tensor(tokenize(llama, [TEXT])), build("llama"), build("llama")
    del shorter.model.layers[s]
    with torch.no_grad():
        y, y_bar = (m(ids, use_cache=False).logits[0].double().log_softmax(-1) for m in (model, shorter))
    torch.testing.assert_close(found["max_remove_out"][s, 0].double(), (y.exp() - y_bar.exp()).norm(dim=-1).max())
    torch.testing.assert_close(
        found["remove_kl"][s].double(), (y.exp() * (y - y_bar)).sum(-1).mean(), rtol=1e-4, atol=0
    )
    rise = (y - y_bar)[:-1].gather(1, ids[0, 1:, None]).mean()
    torch.testing.assert_close(found["remove_loss"][s].double(), rise, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found["remove_top1"][s], (y.argmax(-1) == y_bar.argmax(-1)).float().mean())


def test_an_unknown_part_or_mode_is_named(llama):
    with pytest.raises(ValueError, match="part \"head\" is not known|part 'head' is not known"):
        dl.layer_effects(llama, [TEXT], part="head")
    with pytest.raises(ValueError, match='"future" or "all"'):
        dl.local_effects(llama, [TEXT], mode="remove")


def test_what_is_erased_before_identity_blocks_is_missed_nowhere_later(shallow):
    found = dl.future_erasure(shallow, "5 + 7 = ", "128", [TEXT])
    for key in ("future_erasure", "past_erasure"):
        assert found[key][0].any() and not found[key][K:].any()
    assert not found["future_erasure"][:, -1].any() and not found["past_erasure"][:, :2].any()


def test_the_residual_of_identity_blocks_neither_turns_nor_moves(shallow):
    found = dl.relative_contribution(shallow, [TEXT, "abc"])
    assert found["angular"][:K, K:].min() > 1e-3 and not found["angular"][K:, K:].gt(1e-6).any()
    torch.testing.assert_close(found["angular"], found["angular"].T)
    torch.testing.assert_close(found["progress"][K:], torch.ones(L + 1 - K))
    assert found["progress"][0] == 0 and found["first_change"].shape == (L, len(TEXT) + 1)
    assert not found["first_change"][K:].abs().gt(1e-6).any() and not found["max_norm_att"][K:].any()
    assert (found["max_norm_residual"] >= found["norm_residual"]).all()


def test_before_identity_blocks_the_lens_has_settled_and_is_as_sure_as_the_model(shallow):
    found = dl.logit_lens(shallow, [TEXT])
    torch.testing.assert_close(found["res_entropy"][K:], found["res_entropy"][-1:].expand(L - K))
    assert found["res_jsd"][K:].abs().max() <= 1e-6 and torch.equal(found["res_settled"][K:], torch.ones(L - K))
    assert (found["res_settled"].diff() >= 0).all() and (found["res_jsd"] <= 1 + 1e-6).all()
    for fewer, more in (("res_top1", "res_in_top3"), ("res_in_top3", "res_in_top5"), ("res_in_top5", "res_in_top10")):
        assert (found[fewer] <= found[more]).all()
