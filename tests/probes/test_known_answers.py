"""Answers known without any oracle, seen through the public API; and the oracle on a model that was really trained."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import depth_lib as dl
from depth_lib.data.tokens import answer_span, tokenize
from depth_lib.embedded import toy_path
from tests import oracles as oracle
from tests.families import L, build, make_identity, save_family
from tests.oracles.streams import in_float64
from tests.probes.comparing import TOLERANCE, close, loaded, rounding

TEXT = "The quick brown fox jumps over 13 lazy dogs"
K = 2  # blocks K, K + 1, … are the identity
PARTS = ("layer", "attention", "mlp")
MODES = [*zip(("future", "all", "remove"), PARTS, strict=True)]
MODES += [
    pytest.param(mode, part, marks=pytest.mark.slow)
    for mode in ("future", "all", "remove")
    for part in PARTS
    if (mode, part) not in MODES
]
QUESTION, ANSWER = "5 + 7 = ", "128"
SUM = ("5 + 7 + 5 + 3 + 1 + 7 = ", "28")
OF_TOY = rounding(8, 384)  # toy-8l: 8 blocks, an MLP of 384; probabilities are at most 1
CURVES = {"top1_agreement": "res_top1", "reciprocal_rank": "res_mrr"}  # the oracle's names


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return dl.load_model(save_family("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def toy():
    return dl.load_model("toy-8l")


# plain, post-norm, parallel, contributions inside modules, both norms and a soft-cap
@pytest.fixture(scope="module", params=["llama", "olmo2", "gpt_neox", "bloom", "gemma2"])
def shallow(request, tmp_path_factory):
    """A model of four blocks of which only the first two do anything."""
    return loaded(make_identity(build(request.param), range(K, L)), tmp_path_factory.mktemp(request.param))


def test_identity_blocks_contribute_nothing(shallow):
    found = dl.relative_contribution(shallow, [TEXT, "abc"])
    for key in ("rc_att", "rc_mlp", "rc_layer", "norm_att", "norm_mlp"):
        assert (found[key][:K] > 0.01).all() and not found[key][K:].any(), key
    for key in ("att_cos", "mlp_cos", "layer_cos"):
        assert found[key][:K].all() and not found[key][K:].any(), key
    torch.testing.assert_close(found["io_cos"][K:], torch.ones(L - K))


def test_a_residual_erased_before_identity_blocks_is_missed_only_where_it_predicts(shallow):
    found = dl.residual_erasure(shallow, QUESTION, ANSWER, [TEXT])
    erased, predicting = found["erasure_effect"][K:], slice(-len(ANSWER) - 1, -1)
    assert (erased - erased[:1]).abs().max() <= TOLERANCE and (erased[:, predicting] > 1e-3).all()
    assert erased[:, : predicting.start].max() <= TOLERANCE and not erased[:, -1].any()


def test_gradients_behind_the_last_working_block_are_the_same_at_every_depth(shallow):
    found = dl.integrated_gradients(shallow, QUESTION, ANSWER, quadrature=1.0)["igrads"]
    assert found[K - 1].any()
    torch.testing.assert_close(found[K - 1 :], found[K - 1 :][:1].expand(L - K + 1, -1))


@pytest.mark.parametrize("at", ["attention", "mlp"])
def test_a_contribution_that_is_the_same_for_all_tokens_has_no_attribution(shallow, at):
    found = dl.integrated_gradients(shallow, QUESTION, ANSWER, quadrature=1.0, at=at)
    largest = TOLERANCE * found["igrads"].abs().max()
    assert (found["igrads"][:K].abs().amax(1) > largest).all()
    assert not found["igrads"][K:].any() and found["f_difference"][K:].abs().max() <= largest
    assert found["error"].isfinite().all()


@pytest.mark.parametrize("at", ["block", pytest.param("attention", marks=pytest.mark.slow), "mlp"])
def test_gradients_sum_to_what_the_answer_loses_when_a_block_or_part_is_blurred(toy, at):
    """Baseline and original the wrong way round would turn the sign; a wrong normalisation would miss the sum."""
    ids, places, _ = answer_span(toy, *SUM)
    found, model = dl.integrated_gradients(toy, *SUM, at=at), plain_toy()
    for l, block in enumerate(model.model.layers):
        part = {"block": block, "attention": block.self_attn, "mlp": block.mlp}[at]
        read, blurred = (answer_probability(model, ids, places, part, blur) for blur in (False, True))
        assert abs(found["igrads"][l].sum() - (read - blurred)) <= 0.01 * found["igrads"][l].abs().max() + OF_TOY
        assert abs(found["f_difference"][l] - (read - blurred)) <= OF_TOY


def test_skipping_a_block_for_all_tokens_takes_away_all_it_contributes_and_nothing_before_it(llama, toy):
    for llm in (llama, toy):
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
        h = output[0] if isinstance(output, tuple) else output
        h = h.mean(1, keepdim=True).expand_as(h) if blur else h
        return (h, *output[1:]) if isinstance(output, tuple) else h

    hook = module.register_forward_hook(blurred)
    y = model(torch.tensor([ids])).logits[0].softmax(-1)
    hook.remove()
    return sum(y[place - 1, ids[place]].item() for place in places)


def plain_toy():
    return AutoModelForCausalLM.from_pretrained(toy_path("toy-8l"), dtype=torch.float32).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def trained(toy):
    """(a model that was really trained, as a user loads it; the same in float64 for the oracle)."""
    return toy, in_float64(plain_toy())


PROMPTS = ["8", "5 + 7 + 1 = 13", "A farmer has 12 hens.\n" + TEXT, "Give the answer directly: 31 + 17 = 48"]


def test_curves_over_prompts_of_several_lengths_equal_the_oracle(trained):
    llm, model = trained
    ids = tokenize(llm, PROMPTS)
    for key, curve in oracle.relative_contribution(model, ids).items():
        close(dl.relative_contribution(llm, PROMPTS)[key], curve)
    lens = dl.logit_lens(llm, PROMPTS)
    for key, curve in oracle.logit_lens(model, ids).items():
        close(lens[CURVES.get(key, key)], curve)


@pytest.mark.filterwarnings("ignore:too short")
@pytest.mark.parametrize("mode", ["future", "all"])
def test_effects_over_prompts_of_several_lengths_equal_the_oracle(trained, mode):
    llm, model = trained
    ours = dl.layer_effects(llm, PROMPTS, mode=mode)
    for key, matrix in oracle.layer_effects(model, tokenize(llm, PROMPTS), mode).items():
        close(ours[key], matrix)


def test_erasure_and_gradients_of_the_papers_sum_equal_the_oracle(trained):
    llm, model = trained
    ids, span = oracle.answer_span(llm.tokenizer, *SUM)
    ours = dl.residual_erasure(llm, *SUM, PROMPTS)["erasure_effect"]
    close(ours, oracle.residual_erasure(model, torch.tensor(ids), span, tokenize(llm, PROMPTS))["erasure_effect"])
    layers = [len(llm.blocks) - 2]  # deep enough for 64 nodes on a trained model too
    truth = oracle.integrated_gradients(model, ids, span, nodes=64, layers=layers)["igrads"]
    close(dl.integrated_gradients(llm, *SUM, quadrature=1e-5)["igrads"][layers], truth[layers])


@pytest.mark.parametrize("mode, part", MODES)
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


def test_an_unknown_part_or_mode_is_named(llama):
    with pytest.raises(ValueError, match="part \"head\" is not known|part 'head' is not known"):
        dl.layer_effects(llama, [TEXT], part="head")
    with pytest.raises(ValueError, match='"future", "all"'):
        dl.local_effects(llama, [TEXT], mode="remove")


def test_what_is_erased_before_identity_blocks_is_missed_nowhere_later(shallow):
    found = dl.future_erasure(shallow, "5 + 7 = ", "128", [TEXT])
    for key in ("future_erasure", "past_erasure"):
        assert found[key][0].max() > 1e-3 and found[key][K:].max() <= TOLERANCE
    assert not found["future_erasure"][:, -1].any() and not found["past_erasure"][:, :2].any()


def test_the_residual_of_identity_blocks_neither_turns_nor_moves(shallow):
    found = dl.relative_contribution(shallow, [TEXT, "abc"])
    assert found["angular"][:K, K:].min() > 1e-3 and not found["angular"][K:, K:].gt(1e-6).any()
    torch.testing.assert_close(found["angular"], found["angular"].T)
    torch.testing.assert_close(found["progress"][K:], torch.ones(L + 1 - K))
    assert found["progress"][0].abs() <= TOLERANCE and found["first_change"].shape == (L, len(TEXT) + 1)
    assert not found["first_change"][K:].abs().gt(1e-6).any() and not found["max_norm_att"][K:].any()
    assert (found["max_norm_residual"] >= found["norm_residual"]).all()


def test_before_identity_blocks_the_lens_has_settled_and_is_as_sure_as_the_model(shallow):
    found = dl.logit_lens(shallow, [TEXT, "abc"])
    assert (found["res_kl_divs"][:K] > 0.01).all() and (found["res_overlaps"][:K] < 1).all()
    assert found["res_kl_divs"][K:].abs().max() <= 1e-6
    for key in ("res_overlaps", "res_top1", "res_mrr"):
        assert torch.equal(found[key][K:], torch.ones(L - K)), key
    torch.testing.assert_close(found["res_entropy"][K:], found["res_entropy"][-1:].expand(L - K))
    assert found["res_jsd"][K:].abs().max() <= 1e-6 and torch.equal(found["res_settled"][K:], torch.ones(L - K))
    assert (found["res_settled"].diff() >= 0).all() and (found["res_jsd"] <= 1 + 1e-6).all()
    for fewer, more in (("res_top1", "res_in_top3"), ("res_in_top3", "res_in_top5"), ("res_in_top5", "res_in_top10")):
        assert (found[fewer] <= found[more]).all()
