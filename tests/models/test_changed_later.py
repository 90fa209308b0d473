"""A model is measured as it is at each call: without what earlier passes left, and verified again once changed."""

import copy

import pytest
import torch
import transformers as tf

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.models import check
from depth_lib.models.errors import ArchitectureError
from depth_lib.models.load import wrapped
from tests.families import SHAPE, build, drawn
from tests.oracles import curves
from tests.oracles.streams import in_float64
from tests.probes.comparing import close
from tests.tiny_tokenizers import char_tokenizer

SHORT = "The quick brown fox jumps over 13 lazy dogs"
LONG = 2 * SHORT
FACTORS = {"short_factor": [1.0] * 6, "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0]}
ROPES = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        **FACTORS,
    },
}


def scaled(rope):
    """A model whose rotary frequencies depend on the sequence's length beyond 32 tokens."""
    config = tf.LlamaConfig(
        **SHAPE | {"max_position_embeddings": 32 if rope == "dynamic" else 256}, rope_parameters=ROPES[rope]
    )
    return drawn(config)


PROBES = {
    "lens": lambda llm: dl.logit_lens(llm, [SHORT]),
    "lens of generated tokens": lambda llm: dl.logit_lens(llm, [SHORT], generate=3),
    "erasure": lambda llm: dl.residual_erasure(llm, SHORT[:20], SHORT[20:25], [SHORT]),
    "gradients": lambda llm: dl.integrated_gradients(llm, SHORT, " and", quadrature=1.0),
    "choices": lambda llm: dl.choice_accuracy(llm, [(SHORT, [" and", " but"], 0)]),
}


@pytest.mark.parametrize("rope", ROPES)
def test_each_prompt_is_plain_pytorchs_whatever_its_order(rope):
    llm = wrapped(scaled(rope), char_tokenizer())
    both = dl.logit_lens(llm, [LONG, SHORT])
    for p, text in enumerate((LONG, SHORT)):
        truth = curves.logit_lens(in_float64(scaled(rope)), tokenize(llm, [text]))  # a model that saw nothing before
        close(both["res_kl_divs_sums"][p] / both["n_tokens"][p], truth["res_kl_divs"].float(), 1e-4)


def plus_five(module, args, output):
    return output + 5


@pytest.fixture
def loaded():
    model = build("qwen2")
    return model, wrapped(model, char_tokenizer())


def patch(block):
    forward = block.forward
    block.forward = lambda *args, **kwargs: forward(*args, **kwargs) + 5


def patch_logits(model):
    forward = model.forward
    model.forward = lambda *args, **kwargs: type(output := forward(*args, **kwargs))(logits=output.logits + 5)


CHANGES = {
    "a hook of a block": lambda model: model.model.layers[1].register_forward_hook(plus_five),
    "a hook of the last block": lambda model: model.model.layers[3].register_forward_hook(plus_five),
    **{
        f"a hook before {where} block": lambda model, l=l: model.model.layers[l].register_forward_pre_hook(
            lambda module, args, kwargs: ((args[0] * 2, *args[1:]), kwargs), with_kwargs=True
        )
        for where, l in {"the first": 0, "a": 2}.items()
    },
    "a hook of an MLP": lambda model: model.model.layers[1].mlp.register_forward_hook(plus_five),
    "a hook of all blocks": lambda model: model.model.register_forward_hook(
        lambda module, args, output: type(output)(last_hidden_state=output.last_hidden_state * 1.1)
    ),
    "a hook of the model": lambda model: model.register_forward_hook(
        lambda module, args, output: output.update(logits=output.logits * 1.1)
    ),
    "another forward of the model": lambda model: patch_logits(model),
    "another forward": lambda model: patch(model.model.layers[1]),
    "another block": lambda model: model.model.layers.__setitem__(1, copy.deepcopy(model.model.layers[2])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_hook_or_a_patch_changes_after_loading_is_refused_in_one_line(change, loaded):
    model, llm = loaded
    PROBES["lens"](llm)
    CHANGES[change](model)
    for probe in ("lens", "gradients"):
        with pytest.raises(ArchitectureError) as raised:
            PROBES[probe](llm)
        assert len(str(raised.value).splitlines()) == 1


def test_a_hook_that_reads_only_changes_nothing_and_one_that_was_removed_neither(loaded):
    model, llm = loaded
    truth = dl.logit_lens(llm, [SHORT])["res_kl_divs"]
    model.model.layers[1].register_forward_hook(lambda module, args, output: None)
    model.model.layers[1].register_forward_hook(plus_five).remove()
    assert torch.equal(dl.logit_lens(llm, [SHORT])["res_kl_divs"], truth)


HARMLESS = {
    "reads": lambda part: part.register_forward_hook(lambda module, args, output: None),
    "reads before": lambda part: part.register_forward_pre_hook(lambda module, args: None),
    "passes on": lambda part: part.register_forward_hook(lambda module, args, output: output),
    "of gradients": lambda part: part.register_full_backward_hook(lambda module, before, after: None),
    "before gradients": lambda part: part.register_full_backward_pre_hook(lambda module, after: None),
}
PLACES = [
    "model.layers.0",
    "model.layers.1",
    "model.layers.3",
    "model.layers.1.self_attn",
    "model.layers.1.mlp",
    "model.norm",
    "lm_head",
]


@pytest.mark.parametrize("kind", HARMLESS)
def test_hooks_that_change_nothing_are_harmless_before_and_after_loading(kind, loaded):
    model, llm = loaded
    probes = dl.relative_contribution(llm, [SHORT])["rc_att"], dl.logit_lens(llm, [SHORT])["res_kl_divs"]
    hooked = build("qwen2")
    for part in (model, hooked):
        for path in PLACES:
            HARMLESS[kind](part.get_submodule(path))
    for each in (llm, wrapped(hooked, char_tokenizer())):
        close(dl.relative_contribution(each, [SHORT])["rc_att"], probes[0], 1e-5)
        close(dl.logit_lens(each, [SHORT])["res_kl_divs"], probes[1], 1e-5)


@pytest.mark.parametrize("path", ["model.layers.0", "model.layers.3", "model.norm", "lm_head"])
def test_a_hook_that_adds_a_vector_is_refused_before_and_after_loading_with_what_to_do(path, loaded):
    model, llm = loaded
    hooked = build("qwen2")
    for part in (model, hooked):
        part.get_submodule(path).register_forward_hook(plus_five)
    for call in (lambda: wrapped(hooked, char_tokenizer()), lambda: dl.logit_lens(llm, [SHORT])):
        with pytest.raises(ArchitectureError) as raised:
            call()
        assert f"the change by the hook of {path} is not read: change a module instead, such as " in str(raised.value)
        assert "report the model" not in str(raised.value)


class AddVector(torch.nn.Module):
    def forward(self, h):
        return h + 5


def test_the_module_that_is_advised_in_place_of_a_hook_is_read(loaded):
    model, _ = loaded
    model.model.layers[1].mlp = torch.nn.Sequential(model.model.layers[1].mlp, AddVector())
    found = dl.logit_lens(wrapped(model, char_tokenizer()), [SHORT])
    truth = curves.logit_lens(in_float64(model), tokenize(wrapped(model, char_tokenizer()), [SHORT]))
    close(found["res_kl_divs"], truth["res_kl_divs"].float(), 1e-4)
    assert dl.relative_contribution(wrapped(model, char_tokenizer()), [SHORT])["rc_mlp"].isfinite().all()


@pytest.mark.parametrize("mode", ["train", "eval"])  # a new Sequential trains
def test_a_module_that_was_replaced_after_loading_is_read_once_the_model_is_loaded_again(mode, loaded):
    model, llm = loaded
    model.model.layers[1].mlp = torch.nn.Sequential(model.model.layers[1].mlp, AddVector())
    getattr(model.model.layers[1].mlp, mode)()
    with pytest.raises(
        ArchitectureError, match=r"changed since .*: load it again, dl.load_model\(llm._module, llm.tok"
    ):
        dl.logit_lens(llm, [SHORT])
    assert dl.logit_lens(dl.load_model(llm._module, llm.tokenizer), [SHORT])["res_kl_divs"].isfinite().all()


@pytest.mark.parametrize("path", ["", "model.layers", "model.layers.2.mlp"])
def test_any_module_in_training_mode_is_refused_by_name(path, loaded):
    model, llm = loaded
    model.get_submodule(path).train()
    with pytest.raises(ArchitectureError, match=f"{path or 'the model'} is in training mode.* call eval"):
        dl.logit_lens(llm, [SHORT])
    model.eval()
    assert dl.logit_lens(llm, [SHORT])["res_kl_divs"].isfinite().all()


def test_a_changed_model_is_verified_once_and_an_unchanged_one_never(loaded, monkeypatch):
    model, llm = loaded
    verified, check_here = [], check.check_here
    monkeypatch.setattr(check, "check_here", lambda llm: verified.append(check_here(llm)))
    for probe in PROBES.values():
        probe(llm)
    model.lm_head.weight.mul_(1.5)  # as an optimizer does
    assert dl.logit_lens(llm, [SHORT]) and not verified
    model.to(torch.bfloat16)
    half = [dl.logit_lens(llm, [SHORT])["res_kl_divs"] for _ in range(2)]
    assert len(verified) == 1 and torch.equal(*half)


@pytest.mark.parametrize(
    "change", [lambda m: m.model.layers.pop(-1), lambda m: m.resize_token_embeddings(265), lambda m: m.to("meta")]
)
def test_a_model_that_lost_weights_or_got_new_ones_is_to_be_loaded_again(change, loaded):
    model, llm = loaded
    change(model)
    model.eval()  # the new parts train
    with pytest.raises(
        ArchitectureError, match=r"has changed since it was loaded: load it again, dl.load_model\(llm._module, llm.to"
    ):
        dl.logit_lens(llm, [SHORT])


def test_a_copy_of_what_load_model_returned_is_refused_with_the_call_that_loads_it(loaded):
    again = copy.deepcopy(loaded[1])
    with pytest.raises(ArchitectureError, match=r"is a copy, .*; use dl.load_model\(llm._module, llm.tokenizer\)"):
        dl.logit_lens(again, [SHORT])
    with torch.no_grad():
        again._module.lm_head.weight.mul_(2)
    llm = dl.load_model(again._module, again.tokenizer)
    truth = curves.logit_lens(in_float64(again._module), tokenize(llm, [SHORT]))
    close(dl.logit_lens(llm, [SHORT])["res_kl_divs"], truth["res_kl_divs"].float(), 1e-4)
