"""Answers known without any oracle, seen through the public API; and the oracle on a model that was really trained."""

import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import answer_span
from depth_lib.probes.relative_contribution import _compared
from tests import oracles as oracle
from tests.calls import EVERY
from tests.families import L, build, make_identity
from tests.marks import slow
from tests.oracles.streams import first, hooks, in_float64, with_first
from tests.probes.comparing import TOLERANCE, close, ids_of, load, loaded, rounding

TEXT = "The quick brown fox jumps over 13 lazy dogs"
K = 2  # blocks K, K + 1, … are the identity
SUM = "5 + 7 + 5 = ", "17"
OF_TOY = rounding(4, 384)  # toy-4l: 4 blocks, an MLP of 384; probabilities are at most 1


def test_skipping_a_block_for_all_tokens_takes_away_all_it_contributes_and_nothing_before_it(toy):
    for llm in (load("llama")[0], toy):
        everywhere = dl.layer_effects(llm, [TEXT, "a few words"], mode="all")["max_all_layer"]
        torch.testing.assert_close(everywhere.diagonal(), torch.ones(len(everywhere)))
        assert not everywhere.tril(-1).any()
        later = dl.layer_effects(llm, [TEXT])["max_future_layer"]
        assert not later.tril().any()  # at the tokens that are not skipped the block itself reads what it always did
        assert (later[:-1].amax(1) > 0).all()


@torch.no_grad()
def answer_probability(model, ids, places, module, blur):
    """F of a plain forward pass; with `blur`, every token of what a module returns is their mean."""

    def blurred(_, args, output):
        h = first(output)
        return with_first(output, h.mean(1, keepdim=True).expand_as(h)) if blur else output

    with hooks(module.register_forward_hook(blurred)):
        y = model(torch.tensor([ids])).logits[0].softmax(-1)
    return sum(y[place - 1, ids[place]].item() for place in places)


@pytest.mark.parametrize("at", ["block", "attention", "mlp"])
def test_gradients_sum_to_what_the_answer_loses_when_a_block_or_part_is_blurred(toy, plain_toy, at):
    """Baseline and original the wrong way round would turn the sign; a wrong normalisation would miss the sum."""
    ids, places, _ = answer_span(toy, *SUM)
    found = dl.integrated_gradients(toy, *SUM, at=at)
    for l, block in enumerate(plain_toy.model.layers):
        part = {"block": block, "attention": block.self_attn, "mlp": block.mlp}[at]
        read, blurred = (answer_probability(plain_toy, ids, places, part, blur) for blur in (False, True))
        assert abs(found["igrads"][l].sum() - (read - blurred)) <= 0.01 * found["igrads"][l].abs().max() + OF_TOY
        assert abs(found["f_difference"][l] - (read - blurred)) <= OF_TOY


@pytest.mark.slow
def test_erasure_and_gradients_of_a_trained_model_equal_the_oracle(toy, plain_toy):
    model, (ids, span) = in_float64(plain_toy), oracle.answer_span(toy.tokenizer, *SUM)
    truth = oracle.residual_erasure(model, ids, span, ids_of(toy, [TEXT, "8"]))
    close(dl.residual_erasure(toy, *SUM, [TEXT, "8"])["erasure_effect"], truth["erasure_effect"])
    layers = [1, 2, 3]  # deep enough for 128 nodes on a trained model too
    truth = oracle.integrated_gradients(model, ids, span, nodes=128, layers=layers)["igrads"]
    close(dl.integrated_gradients(toy, *SUM, quadrature=1e-5)["igrads"][layers], truth[layers])


IDENTITY = {  # what blocks that do nothing have
    "relative_contribution": {"rc_att": 0, "rc_mlp": 0, "rc_layer": 0, "layer_cos": 0, "io_cos": 1, "first_change": 0},
    "logit_lens": {"res_kl_divs": 0, "res_jsd": 0, "res_overlaps": 1, "res_top1": 1, "res_mrr": 1},
    "layer_effects, future, layer": {"max_future_layer": 0, "max_future_out": 0, "future_kl": 0},
    "layer_effects, all, attention": {"max_all_layer": 0, "max_all_out": 0},
    "layer_effects, remove, mlp": {"max_remove_layer": 0, "max_remove_out": 0},
    "local_effects, future": {"max_future_local": 0},
    "local_effects, all": {"max_all_local": 0},
    "future_erasure": {"future_erasure": 0, "past_erasure": 0},
    "gradients, attention": {"igrads": 0, "f_difference": 0},
    "gradients, mlp": {"igrads": 0, "f_difference": 0},
}


def test_small_residuals_have_the_contribution_and_cosine_of_large_ones():
    x, y = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    ratio, cosine = _compared(x / 1e4, y / 1e4)
    torch.testing.assert_close(ratio, x.norm(dim=-1) / y.norm(dim=-1))
    torch.testing.assert_close(cosine, torch.cosine_similarity(x, y))


# plain, contributions inside modules, both norms and a soft-cap
@pytest.mark.parametrize("family", ["llama", "bloom", slow("gemma2")])
def test_blocks_that_do_nothing_have_no_contribution_effect_or_attribution_and_the_lens_has_settled(family):
    llm = loaded(make_identity(build(family), range(K, L)))
    for call, keys in IDENTITY.items():
        found = EVERY[call](llm)
        for key, value in keys.items():
            assert (found[key][:K] - value).abs().max() > 1e-4, (call, key)
            assert (found[key][K:L] - value).abs().max() <= TOLERANCE, (call, key)
