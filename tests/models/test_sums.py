"""A part may be the sum of several modules' outputs: every probe then gives what it gives where one module makes it."""

import copy

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import depth_lib as dl
from depth_lib.models.families import known
from depth_lib.models.load import wrapped
from tests.calls import EVERY
from tests.families import build
from tests.models import kinds
from tests.probes.comparing import TOLERANCE
from tests.tiny_tokenizers import char_tokenizer

SCALE = 0.37
WRITERS = {"self_attn": "o_proj", "mlp": "down_proj"}


class TwoAttentions(LlamaDecoderLayer):
    """Half of the heads' outputs are written by another module, scaled."""

    def __init__(self, *config):
        super().__init__(*config)
        self.other = copy.deepcopy(self.self_attn)

    def forward(self, hidden_states, **options):
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attn(normed, **options)[0] + SCALE * self.other(normed, **options)[0]
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class TwoMlps(LlamaDecoderLayer):
    """Half of the neurons' outputs are written by another module, scaled."""

    def __init__(self, *config):
        super().__init__(*config)
        self.other = copy.deepcopy(self.mlp)

    def forward(self, hidden_states, **options):
        hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), **options)[0]
        normed = self.post_attention_layernorm(hidden_states)
        return hidden_states + (self.mlp(normed) + SCALE * self.other(normed))


@torch.no_grad()
def split(layer_class, name, monkeypatch):
    """The tiny llama with the module `name` of each block in two halves."""
    whole = build("llama")
    monkeypatch.setattr("transformers.models.llama.modeling_llama.LlamaDecoderLayer", layer_class)
    halves = type(whole)(whole.config).eval().requires_grad_(False)
    for block, parent in zip(halves.model.layers, whole.model.layers, strict=True):
        parent.other = copy.deepcopy(parent.get_submodule(name))
        block.load_state_dict(parent.state_dict())
        del parent.other
        first, second = (block.get_submodule(path).get_submodule(WRITERS[name]) for path in (name, "other"))
        n = first.weight.shape[1] // 2
        first.weight[:, n:] = 0
        second.weight[:, :n] = 0
        second.weight /= SCALE
        second.bias.zero_()
    rest = {path: weight for path, weight in whole.state_dict().items() if ".layers." not in path}
    halves.load_state_dict(rest, strict=False)
    return whole, halves


PARTS = {
    (TwoAttentions, "self_attn"): ({"self_attn": 1.0, "other": SCALE}, {"mlp": 1.0}),
    (TwoMlps, "mlp"): ({"self_attn": 1.0}, {"mlp": 1.0, "other": SCALE}),
}


@pytest.mark.parametrize("layer_class, name", PARTS)
def test_two_modules_that_make_a_part_are_probed_as_one(layer_class, name, monkeypatch):
    whole, halves = (wrapped(model, char_tokenizer()) for model in split(layer_class, name, monkeypatch))
    assert len(known(halves).found.parts) == 4
    for found, expected in zip(known(halves).found.parts[0].values(), PARTS[layer_class, name], strict=True):
        assert {path: scale for path, scale, _ in found} == pytest.approx(expected)
    rehearsed = ("layer_effects, all, mlp", "gradients")
    for name in ("relative_contribution", "layer_effects, future, attention", "gradients, attention", *rehearsed):
        ours, truth = EVERY[name](halves, remote="local" if name in rehearsed else False), EVERY[name](whole)
        for key, value in truth.items():
            if isinstance(value, torch.Tensor):  # the estimate of an error is of two numbers' small difference
                rtol = 0.2 if key == "error" else 2e-4
                torch.testing.assert_close(ours[key], value, rtol=rtol, atol=2e-5, msg=key)


@pytest.mark.parametrize("at", ["attention", "mlp"])
def test_what_a_block_with_one_mixer_lacks_is_zero(at):
    """nemotron_h: its blocks hold either a token mixer or a channel mixer."""
    llm = wrapped(kinds.tiny("nemotron_h"), char_tokenizer())
    lacking = [l for l, parts in enumerate(known(llm).found.parts) if not parts[at]]
    assert 0 < len(lacking) < 4
    assert (dl.relative_contribution(llm, ["abc"])[f"norm_{at[:3]}"][lacking] == 0).all()
    effects = dl.layer_effects(llm, ["The quick brown fox"], "all", part=at)
    assert all(effects[key][lacking].max() <= TOLERANCE for key in ("max_all_layer", "max_all_out"))
    gradients = dl.integrated_gradients(llm, "5 + 7 = ", "12", quadrature=1.0, at=at)
    assert (gradients["igrads"][lacking] == 0).all()
