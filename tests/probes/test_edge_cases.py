"""Inputs on which a number could be wrong without anything failing: each was wrong once, or nearly."""

import pytest
import torch
import transformers as tf
from tokenizers import processors

import depth_lib as dl
from depth_lib.data.tokens import answer_span, tokenize
from depth_lib.models import load as models
from depth_lib.models.families import describe
from depth_lib.residual.stream import Stream
from tests import oracles as oracle
from tests.families import SHAPE, build, drawn, save_family
from tests.oracles.streams import in_float64
from tests.probes.comparing import TOLERANCE, ids_of, load, loaded
from tests.tiny_tokenizers import char_tokenizer

QUESTION, ANSWER = "5 + 7 = ", "28"


@pytest.fixture(scope="module")
def llama():
    return loaded(build("llama"))


def without_bos(config):
    """A random model with a tokenizer that adds no token, and in float64."""
    model = drawn(config)
    return dl.load_model(model, char_tokenizer(bos=False)), in_float64(model)


def test_a_rope_that_changes_with_length_sees_the_whole_sequence():
    n_tokens = len(QUESTION + ANSWER)
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 6,
        "long_factor": [4.0] * 6,
        "original_max_position_embeddings": n_tokens - 1,
    }
    shape = {**SHAPE, "original_max_position_embeddings": n_tokens - 1}
    llm, model = without_bos(tf.Phi3Config(**shape, rope_parameters=rope))
    x, span = oracle.answer_span(llm.tokenizer, QUESTION, ANSWER)
    ours = dl.residual_erasure(llm, QUESTION, ANSWER, ["abc def", "xyz"])["erasure_effect"]
    baseline = ids_of(llm, ["abc def", "xyz"])
    truth = oracle.residual_erasure(model, torch.tensor(x), span, baseline)["erasure_effect"]
    assert (ours - truth).abs().max() <= TOLERANCE * truth.max()
    gradients = dl.integrated_gradients(llm, QUESTION, ANSWER, quadrature=1e-6)["igrads"][1]
    truth = oracle.integrated_gradients(model, x, span, nodes=64, layers=[1])["igrads"][1].detach()
    assert (gradients - truth).abs().max() <= 1e-4 * truth.abs().max()


def test_an_answers_space_counts_where_the_tokenizer_trims_its_offsets(tmp_path):
    tokenizer = char_tokenizer(bos=False)
    tokenizer._tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    llm = dl.load_model(str(save_family("llama", tmp_path, tokenizer)))
    llm.tokenizer._tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    assert answer_span(llm, "abc=", "2 8")[1] == [4, 5, 6]


def test_integrated_gradients_of_an_improbable_answer_converge_too():
    model = build("qwen2")
    model.lm_head.weight *= 6
    result = dl.integrated_gradients(loaded(model), QUESTION, ANSWER)
    assert (result["f_difference"].abs() < 1e-6).any()
    allowed = 0.01 * result["igrads"].abs().amax(1) + 1e-5 * result["igrads"].abs().sum(1)
    assert (result["completeness"].abs() <= allowed).all()


def test_at_most_257_nodes_are_spent_and_a_warning_names_the_blocks_where_they_do_not_do():
    llm, _ = load("opt")
    with pytest.warns(UserWarning, match=r"integrated gradients of blocks \[0, 1, 2, .*have estimated errors of up to"):
        found = dl.integrated_gradients(llm, QUESTION, ANSWER, quadrature=0)
    assert found["n_nodes"].max() <= 257


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda llm: dl.relative_contribution(llm, [QUESTION]), "rc_att_sums is not finite at prompt 0, layer 3; "),
        (lambda llm: dl.logit_lens(llm, [QUESTION]), "lens: res_kl_divs_sums is not finite at prompt 0, layer 0; "),
        (lambda llm: dl.layer_effects(llm, [QUESTION], "all"), "effects: .* is not finite at prompt 0, layer 0"),
        # the short prompt is left out, and the others keep their numbers
        (lambda llm: dl.layer_effects(llm, ["5", 2 * QUESTION]), "effects: .* is not finite at prompt 1, layer 0"),
        (lambda llm: dl.local_effects(llm, ["5", 2 * QUESTION]), "effects: .* is not finite at prompt 1[;,]"),
        # four orders of four blocks: what is broken is not a layer
        (lambda llm: dl.block_orders(llm, [QUESTION], 4 * [[2, 3]]), "orders: loss is not finite at prompt 0; "),
        (lambda llm: dl.residual_erasure(llm, QUESTION, ANSWER, [QUESTION]), "erasure: .* is not finite at layer 0; "),
        (lambda llm: dl.integrated_gradients(llm, QUESTION, ANSWER), "gradients: .* is not finite at layer 0; "),
        (lambda llm: dl.integrated_gradients(llm, QUESTION, ANSWER, "riemann"), "igrads is not finite at layer 0; "),
    ],
)
def test_numbers_that_are_not_finite_are_refused_with_their_place_and_what_to_do(llama, call, says):
    bias = llama.blocks[2]._module.mlp.down_proj.bias.data
    bias[0] = float("inf")
    with pytest.raises(ValueError, match=f"{says}.*weights are damaged$"):  # no dtype has larger numbers than float32
        call(llama)
    bias[0] = 0


def test_a_stream_of_blocks_that_read_more_than_it_is_refused(llama):
    with pytest.raises(ValueError, match="read more of earlier"):
        Stream(llama, describe(llama).but(can_skip_blocks=False), [1, 2])


@pytest.mark.parametrize("bias", [torch.finfo(torch.float32).min, -1e14])
def test_a_token_that_a_bias_takes_out_of_the_vocabulary_adds_nothing_to_what_the_lens_measures(bias):
    model, prompts = build("phi"), ["Hello there world 12", "ab cd efg hijk lmnop"]
    model.lm_head.bias.data[-5:] = bias
    llm = loaded(model)
    model.lm_head.bias.data[-5:] = -600  # the least whose exponential float64 knows is as little
    ours, truth = dl.logit_lens(llm, prompts), oracle.logit_lens(in_float64(model), tokenize(llm, prompts))
    for key in ("res_kl_divs", "res_entropy", "res_jsd", "res_settled", "res_overlaps"):
        torch.testing.assert_close(ours[key].double(), truth[key], rtol=1e-5, atol=1e-5)


def test_a_scaled_rope_reaches_beyond_the_length_it_was_trained_on():
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    config = tf.LlamaConfig(**{**SHAPE, "max_position_embeddings": 16}, rope_parameters=rope)
    llm, _ = without_bos(config)
    assert len(tokenize(llm, ["x" * 64])[0]) == 64
    with pytest.raises(ValueError, match="64 positions"):
        tokenize(llm, ["x" * 65])


def test_models_are_loaded_in_evaluation_mode(tmp_path, monkeypatch):
    load = models._load_weights
    # as a loader may leave it
    monkeypatch.setattr(models, "_load_weights", lambda *arguments: load(*arguments).train())
    llm = dl.load_model(str(save_family("gpt2", tmp_path)))  # which has dropout
    assert not any(module.training for module in llm._module.modules())
