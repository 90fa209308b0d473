"""Answers known without any oracle, seen through the public API; and the oracle on a model that was really trained."""

import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import answer_span
from tests import oracles as oracle
from tests.families import L, build, make_identity
from tests.oracles.streams import first, hooks, in_float64, with_first
from tests.probes.comparing import TOLERANCE, close, ids_of, load, loaded, rounding

TEXT = "The quick brown fox jumps over 13 lazy dogs"
K = 2  # blocks K, K + 1, … are the identity
PAIR, SUM = ("5 + 7 = ", "128"), ("5 + 7 + 5 = ", "17")
OF_TOY = rounding(4, 384)  # toy-4l: 4 blocks, an MLP of 384; probabilities are at most 1


# plain, contributions inside modules, both norms and a soft-cap
@pytest.fixture(scope="module", params=["llama", "bloom", "gemma2"])
def shallow(request):
    """A model of four blocks of which only the first two do anything."""
    return loaded(make_identity(build(request.param), range(K, L)))


def test_identity_blocks_contribute_nothing_and_the_residual_neither_turns_nor_moves(shallow):
    found = dl.relative_contribution(shallow, [TEXT, "abc"])
    for key in ("rc_att", "rc_mlp", "rc_layer", "norm_att", "norm_mlp", "max_norm_att"):
        assert (found[key][:K] > 0.01).all() and not found[key][K:].any(), key
    for key in ("att_cos", "mlp_cos", "layer_cos"):
        assert found[key][:K].all() and not found[key][K:].any(), key
    torch.testing.assert_close(found["io_cos"][K:], torch.ones(L - K))
    assert found["angular"][:K, K:].min() > 1e-3 and not found["angular"][K:, K:].gt(1e-6).any()
    torch.testing.assert_close(found["angular"], found["angular"].T)
    torch.testing.assert_close(found["progress"][K:], torch.ones(L + 1 - K))
    assert found["progress"][0].abs() <= TOLERANCE and found["first_change"].shape == (L, len(TEXT) + 1)
    assert not found["first_change"][K:].abs().gt(1e-6).any()
    assert (found["max_norm_residual"] >= found["norm_residual"]).all()


def test_before_identity_blocks_the_lens_has_settled_and_is_as_sure_as_the_model(shallow):
    found = dl.logit_lens(shallow, [TEXT, "abc"])
    assert (found["res_kl_divs"][:K] > 0.01).all() and (found["res_overlaps"][:K] < 1).all()
    for key in ("res_kl_divs", "res_jsd"):
        assert found[key][K:].abs().max() <= 1e-6, key
    for key in ("res_overlaps", "res_top1", "res_mrr", "res_settled"):
        assert torch.equal(found[key][K:], torch.ones(L - K)), key
    torch.testing.assert_close(found["res_entropy"][K:], found["res_entropy"][-1:].expand(L - K))
    assert (found["res_settled"].diff() >= 0).all() and (found["res_jsd"] <= 1 + 1e-6).all()
    for fewer, more in (("res_top1", "res_in_top3"), ("res_in_top3", "res_in_top5"), ("res_in_top5", "res_in_top10")):
        assert (found[fewer] <= found[more]).all()


def test_a_residual_erased_before_identity_blocks_is_missed_only_where_it_predicts(shallow):
    erased, predicting = dl.residual_erasure(shallow, *PAIR, [TEXT])["erasure_effect"][K:], slice(-4, -1)
    assert (erased - erased[:1]).abs().max() <= TOLERANCE and (erased[:, predicting] > 1e-3).all()
    assert erased[:, : predicting.start].max() <= TOLERANCE and not erased[:, -1].any()
    later = dl.future_erasure(shallow, *PAIR, [TEXT])
    for key in ("future_erasure", "past_erasure"):
        assert later[key][0].max() > 1e-3 and later[key][K:].max() <= TOLERANCE
    assert not later["future_erasure"][:, -1].any() and not later["past_erasure"][:, :2].any()


def test_gradients_behind_the_last_working_block_are_the_same_at_every_depth(shallow):
    found = dl.integrated_gradients(shallow, *PAIR, quadrature=1.0)["igrads"]
    assert found[K - 1].any()
    torch.testing.assert_close(found[K - 1 :], found[K - 1 :][:1].expand(L - K + 1, -1))


@pytest.mark.parametrize("at", ["attention", "mlp"])
def test_a_contribution_that_is_the_same_for_all_tokens_has_no_attribution(shallow, at):
    found = dl.integrated_gradients(shallow, *PAIR, quadrature=1.0, at=at)
    largest = TOLERANCE * found["igrads"].abs().max()
    assert (found["igrads"][:K].abs().amax(1) > largest).all()
    assert not found["igrads"][K:].any() and found["f_difference"][K:].abs().max() <= largest
    assert found["error"].isfinite().all()


@pytest.mark.parametrize("mode, part", [("future", "layer"), ("all", "attention"), ("remove", "mlp")])
def test_no_part_of_an_identity_block_has_an_effect(shallow, mode, part):
    found = dl.layer_effects(shallow, [TEXT], mode=mode, part=part)
    effect, output = found[f"max_{mode}_layer"], found[f"max_{mode}_out"]
    assert output[0] > 1e-3 and effect[0, 1] > 1e-3
    assert not effect[K:].any() and not effect[:, K:].any() and output[K:].max() <= TOLERANCE
    assert found[f"{mode}_kl"][0] > 1e-4 and found[f"{mode}_kl"][K:].abs().max() <= TOLERANCE


@pytest.mark.parametrize("mode", ["future", "all"])
def test_a_block_that_writes_nothing_has_no_local_effect(shallow, mode):
    local = dl.local_effects(shallow, [TEXT], mode=mode)[f"max_{mode}_local"]
    assert local[0, 1] > 1e-3 and not local[1:].any() and not local.tril().any()


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


def test_erasure_and_gradients_of_a_trained_model_equal_the_oracle(toy, plain_toy):
    model, (ids, span) = in_float64(plain_toy), oracle.answer_span(toy.tokenizer, *SUM)
    truth = oracle.residual_erasure(model, ids, span, ids_of(toy, [TEXT, "8"]))
    close(dl.residual_erasure(toy, *SUM, [TEXT, "8"])["erasure_effect"], truth["erasure_effect"])
    layers = [1, 2, 3]  # deep enough for 128 nodes on a trained model too
    truth = oracle.integrated_gradients(model, ids, span, nodes=128, layers=layers)["igrads"]
    close(dl.integrated_gradients(toy, *SUM, quadrature=1e-5)["igrads"][layers], truth[layers])


def test_an_unknown_part_or_mode_is_named(toy):
    with pytest.raises(ValueError, match='part "head" is not known'):
        dl.layer_effects(toy, [TEXT], part="head")
    with pytest.raises(ValueError, match='"future", "all"'):
        dl.local_effects(toy, [TEXT], mode="remove")
