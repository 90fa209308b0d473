"""What discovery finds, with and without weights: of deep models, in half precision, on GPUs, or offloaded."""

from contextlib import nullcontext

import pytest
import torch
from transformers import Gemma4TextConfig, LlamaConfig
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaModel

from depth_lib.models.discovery import RESHAPES, Mark, discover
from depth_lib.models.errors import ArchitectureError
from depth_lib.models.families import architecture, auto_class, known
from depth_lib.models.load import wrapped
from tests.families import EACH_FAMILY, SHAPE, build
from tests.marks import slow
from tests.models.kinds import tiny
from tests.models.twin import twin
from tests.probes.device_tags import PretendDevices, place
from tests.probes.test_devices import spread
from tests.tiny_tokenizers import char_tokenizer


@pytest.mark.parametrize("dtype", [torch.float32, slow(torch.bfloat16)])
def test_blocks_of_one_class_may_differ_by_their_place(dtype):
    """gemma4's attention has other widths in each sixth layer."""
    config = Gemma4TextConfig(num_hidden_layers=6)
    assert len(set(config.layer_types)) == 2
    model = twin(config, auto_class(config).from_config).to(dtype)
    found = known(wrapped(model, char_tokenizer())).found
    a = [("post_attention_layernorm", 1.0, None)]
    m = [("post_feedforward_layernorm", 1.0, None), ("post_per_layer_input_norm", 1.0, None)]
    assert found.parts == ({"attention": a, "mlp": m},) * 6 and found.rescales
    assert found.can_skip_blocks and found.can_add_rows
    assert vars(architecture(config).but(streams=found.streams, width=found.width)) == vars(found)


def test_a_model_with_weights_elsewhere_is_read_from_its_config():
    """As where accelerate holds the embedding on the disk."""
    model = build("llama")
    found = architecture(model.config, model)
    model.model.embed_tokens.to("meta")
    assert vars(architecture(model.config, model)) == vars(found)


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_a_config_alone_says_what_the_weights_say(name):
    model = build(name)
    assert vars(architecture(model.config)) == vars(architecture(model.config, model))


@pytest.mark.parametrize("name, devices", [("llama", 1), ("bloom", 1), ("llama", 2)])
def test_a_model_on_gpus_is_found_as_on_the_cpu(name, devices):
    model = build(name)
    found = discover(model, nullcontext())
    assert found.can_skip_blocks and found.can_add_rows == (name != "bloom")
    with PretendDevices():
        if devices == 2:
            spread(model, "cuda:1")
        else:
            for tensor in (*model.parameters(), *model.buffers()):
                place(tensor, "cuda:0")
        assert vars(discover(model, nullcontext())) == vars(found)


def test_what_asks_for_numbers_is_read_where_its_weights_are():
    """dbrx counts the tokens of each expert."""
    model = tiny("dbrx")
    assert architecture(model.config, model).parts
    with pytest.raises(ArchitectureError, match=r"dbrx: its code needs the values .* load it .* \(remote=False\)$"):
        architecture(model.config)


class Looped(LlamaModel):
    """Its blocks run twice."""

    def forward(self, input_ids, **options):
        h = self.embed_tokens(input_ids)
        places = self.rotary_emb(h, torch.arange(h.shape[1])[None])
        for layer in [*self.layers, *self.layers]:
            h = layer(h, position_embeddings=places)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(h))


def test_a_model_whose_blocks_run_twice_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("transformers.models.llama.modeling_llama.LlamaModel", Looped)
    with pytest.raises(ArchitectureError, match="llama: it is looped, the blocks of model.layers run 2 times; load it"):
        wrapped(build("llama"), char_tokenizer())


class Exponential(LlamaForCausalLM):
    """Its logits are not the output of a module."""

    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        output.logits = output.logits.exp()
        return output


def test_logits_that_no_module_makes_are_refused():
    with pytest.raises(ArchitectureError, match="identity 2: no chain of up to three modules"):
        discover(Exponential(build("llama").config).eval(), nullcontext())


def test_discovery_needs_no_large_vocabulary():
    small = LlamaForCausalLM(LlamaConfig(**SHAPE | {"vocab_size": 20})).eval()
    assert discover(small, nullcontext()).tail == ("model.norm", "lm_head")


def test_autograd_calls_things_what_the_walk_calls_them():
    """A release of torch that renames them leaves every block without parts."""
    x = torch.ones(2, 2, 2, dtype=torch.bfloat16, requires_grad=True)
    same = (
        x.view(4, 2), x.reshape(8), x.clone(), x.float(), x[None], x[None].squeeze(0), x[:1], x.transpose(0, 1),
        x.permute(2, 0, 1), x.expand(2, 2, 2, 2), x.flatten(),
    )  # fmt: skip
    for y in same:
        assert RESHAPES.fullmatch(y.grad_fn.name()), y.grad_fn.name()
    other = {"Add": x + x, "Mul": x * 2, "Div": x / 2, "Tanh": x.tanh(), "Roll": x.roll(1), "Flip": x.flip(0)}
    for name, y in other.items():
        assert y.grad_fn.name() == f"{name}Backward0" and not RESHAPES.fullmatch(y.grad_fn.name())
    assert (x * 0.31).grad_fn._saved_other.item() == 0.31 and (x / 0.6).grad_fn._saved_other.item() == 0.6
    y = Mark.apply(x, torch.zeros((), requires_grad=True), "path", 3, None, None)
    mark = y.grad_fn
    assert (mark.path, mark.order, mark.next_functions[0][0].variable is x) == ("path", 3, True)
    y += 1
    assert y.grad_fn is not mark, "a change in place is not seen"
