"""Models that are right and are read, whatever their dtype, config, tokenizer or the mode around the call."""

import functools
import threading

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.models.load import wrapped
from depth_lib.probes import layer_effects
from tests.families import build, save_family
from tests.models.kinds import blocks_of, stream, tiny
from tests.oracles import curves
from tests.oracles.streams import in_float64
from tests.probes.comparing import close
from tests.tiny_tokenizers import char_tokenizer

TEXT = "The quick brown fox jumps over 13 lazy"


@pytest.mark.parametrize("kind", ["mamba", "zaya"])
def test_residuals_wider_than_the_head_are_unembedded_in_its_dtype(kind):
    model = tiny(kind).to(torch.bfloat16)
    llm = wrapped(model, char_tokenizer())
    (ids,) = tokenize(llm, [TEXT])
    with torch.no_grad():
        h, logits = stream(model, ids)
        head = model.get_output_embeddings()
        norm = {"zaya": "model.final_norm"}.get(kind, "backbone.norm_f")
        norm = model.get_submodule(norm) if norm in dict(model.named_modules()) else llm.ln_final._module
        log_p = head(norm(h[:-1].float()).to(torch.bfloat16)).double().log_softmax(-1)
        log_y = logits.log_softmax(-1)
    ours, truth = dl.logit_lens(llm, [TEXT])["res_kl_divs"], (log_p.exp() * (log_p - log_y)).sum(-1).mean(-1)
    close(ours, truth.float(), 0.02)
    assert len(blocks_of(model)) == len(ours)


def test_a_tokenizer_that_knows_no_sentence_is_one_all_the_same():
    model = build("llama")
    core = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    llm = wrapped(model, PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>"))
    truth = curves.logit_lens(in_float64(model), tokenize(llm, ["a"]))
    close(dl.logit_lens(llm, ["a"])["res_kl_divs"], truth["res_kl_divs"].float(), 1e-4)


def test_two_threads_measure_one_after_the_other(tmp_path):
    llm, texts = dl.load_model(save_family("llama", tmp_path)), [TEXT, "8 apples and 5, thirteen"]
    truth = [dl.logit_lens(llm, [text])["res_kl_divs"] for text in texts]
    found = {}

    def measure(k):
        found[k] = dl.logit_lens(llm, [texts[k % 2]])["res_kl_divs"]

    threads = [threading.Thread(target=measure, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and all(torch.equal(found[k], truth[k % 2]) for k in found)


def line(call, *args, **options):
    """The one line with which `call` fails."""
    with pytest.raises(ValueError) as raised:
        call(*args, **options)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


@pytest.fixture(scope="module")
def llama():
    return wrapped(build("llama"), char_tokenizer())


def test_numbers_that_are_not_finite_are_named_by_the_prompt_that_has_them(llama, monkeypatch):
    probe = layer_effects.measure_layer_effects

    @functools.wraps(probe)
    def nan_in_the_last(llm, arch, prompts, **others):
        found = probe(llm, arch, prompts, **others)
        return {key: value * torch.nan if len(prompts[0][0]) > 50 else value for key, value in found.items()}

    monkeypatch.setattr("depth_lib.probes.layer_effects.measure_layer_effects", nan_in_the_last)
    with pytest.warns(UserWarning, match="too short"):
        assert "is not finite at prompt 2, layer 0" in line(dl.layer_effects, llama, ["abc", TEXT, TEXT + TEXT])


def test_weights_that_are_nan_are_named_not_the_architecture():
    model = build("llama")
    model.model.layers[2].mlp.up_proj.weight[0, 0] = torch.nan
    assert "its logits are not finite in float32: weights are NaN or infinite" in line(wrapped, model, char_tokenizer())
