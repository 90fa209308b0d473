"""Models that are in memory: of a training loop, or with adapters."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertLMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import depth_lib as dl
from depth_lib.embedded import toy_path
from depth_lib.models.bare import underlying
from tests.families import SHAPE, build
from tests.tiny_tokenizers import char_tokenizer

PROMPTS = ["2 + 3 = 5, and 4 + 4 = 8"]


class Adapted(nn.Module):
    """A linear module with a low-rank update beside it, as PEFT has it."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))


class Wrapper(nn.Module):
    """Holds a model as PEFT does."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        return self.model(**inputs)

    def get_base_model(self):
        return self.model


@pytest.fixture
def model():
    return AutoModelForCausalLM.from_pretrained(toy_path("toy-4l"), dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(toy_path("toy-4l"))


def test_a_model_between_training_steps_is_measured_as_it_is_and_trained_on(toy, model, tokenizer):
    saved = dl.logit_lens(toy, PROMPTS)["res_kl_divs"].tolist()
    assert dl.logit_lens(dl.load_model(model, tokenizer), PROMPTS)["res_kl_divs"].tolist() == pytest.approx(saved)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ids = tokenizer(PROMPTS, return_tensors="pt")["input_ids"]
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    llm = dl.load_model(model, tokenizer)
    dl.integrated_gradients(llm, "2 + 3 = ", "5")
    assert not model.training and all(map(torch.equal, gradients, [weight.grad for weight in model.parameters()]))
    optimizer.step()
    assert dl.logit_lens(llm, PROMPTS)["res_kl_divs"].tolist() != pytest.approx(saved, rel=1e-3)


def test_a_model_with_adapters_is_read_with_them(model, tokenizer):
    plain = dl.relative_contribution(dl.load_model(model, tokenizer), PROMPTS)
    torch.manual_seed(0)
    attention = model.model.layers[1].self_attn
    attention.o_proj = Adapted(attention.o_proj)
    adapted = dl.relative_contribution(dl.load_model(Wrapper(model), tokenizer), PROMPTS)
    changed = (plain["rc_att"] - adapted["rc_att"]).abs() > 1e-3
    assert not changed[0] and changed[1] and adapted["rc_att"].isfinite().all()


class MoreTokens(Wrapper):
    """Learned tokens before the text, as PEFT's prompt tuning has them: the base model knows nothing of them."""

    def forward(self, input_ids, **inputs):
        embedded = self.model.get_input_embeddings()(input_ids)
        return self.model(inputs_embeds=torch.cat([torch.ones_like(embedded[:, :2]), embedded], dim=1), **inputs)


class OtherLogits(Wrapper):
    """What prefix tuning does, which gives every layer keys and values from outside."""

    def forward(self, **inputs):
        output = self.model(**inputs)
        output.logits = output.logits + torch.arange(output.logits.shape[-1])
        return output


def line(*given):
    """The one line with which load_model refuses."""
    with pytest.raises(dl.ModelError) as raised:
        dl.load_model(*given)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


@pytest.mark.parametrize("kind, how", [(MoreTokens, "they are for different tokens"), (OtherLogits, "they differ by")])
def test_what_a_wrapper_adds_outside_of_its_model_is_refused(kind, how, model, tokenizer):
    assert how in line(kind(model), tokenizer)


def test_what_is_no_model_or_no_tokenizer_is_named_with_what_to_give(model, tokenizer):
    compiled = torch.compile(model, backend="eager")
    assert "wrapped in OptimizedModule; pass the model inside: model._orig_mod" in line(compiled, tokenizer)
    assert "wrapped in DataParallel; pass the model inside: model.module" in line(nn.DataParallel(model), tokenizer)
    assert "a Linear is not a transformers model; load one with Auto" in line(nn.Linear(2, 2), tokenizer)
    assert "a SimpleNamespace is not a transformers tokenizer; pass the one inside" in line(
        model, SimpleNamespace(tokenizer=tokenizer)
    )
    assert "a str is not a transformers tokenizer; pass one from AutoTokenizer" in line(model, "toy-4l")
    bert = AutoModel.from_config(BertConfig(vocab_size=112, hidden_size=32, num_attention_heads=4))
    assert "a BertModel has no head that computes logits" in line(bert, tokenizer)
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=112, d_model=32, num_layers=1, num_heads=2))
    assert "a T5ForConditionalGeneration is an encoder-decoder; use a decoder-only" in line(t5, tokenizer)
    packed = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert "is quantised by quantize_dynamic and holds no weights" in line(packed, tokenizer)
    model.model.layers[0].compile()
    assert "was compiled in place" in line(model, tokenizer)


def test_parametrized_weights_are_measured_as_the_weights_that_they_give(tokenizer, tmp_path):
    models = [build("qwen2").eval() for _ in range(2)]
    parametrized, plain = (model.model.layers[1].mlp.down_proj for model in models)
    nn.utils.parametrizations.spectral_norm(parametrized).eval()
    plain.weight.data = parametrized.weight.detach()
    llm, truth = (dl.load_model(model, tokenizer) for model in models)
    assert torch.equal(*(dl.logit_lens(one, ["5 + 7 = 12"])["res_kl_divs"] for one in (llm, truth)))
    with pytest.raises(dl.ModelError, match="names that nothing loads; .*remove_parametrizations"):
        dl.save_model(llm, tmp_path)


def test_a_number_of_layers_that_was_changed_after_loading_is_named(tokenizer):
    llm = dl.load_model(build("qwen2"), tokenizer)
    llm.config.num_hidden_layers = 2
    with pytest.raises(dl.ModelError, match="its config says 2 layers, and it has 4: correct config.num_hidden_layers"):
        dl.logit_lens(llm, ["5 + 7 = 12"])
    repeated = build("qwen2")
    repeated.model.layers.extend([copy.deepcopy(repeated.model.layers[l]) for l in (1, 2)])
    repeated.config.num_hidden_layers = 6
    with pytest.raises(dl.ModelError, match="says 6 layers, and layer_types has 4: correct config.layer_types"):
        dl.load_model(repeated, tokenizer)
    pruned = build("qwen2")
    del pruned.model.layers[1]
    with pytest.raises(dl.ModelError, match="this config has 4 layers, but this one has 3: correct config.num_hidden_"):
        dl.effective_depths(dl.load_model(pruned, tokenizer), ["5 + 7 = 12"], control=True)


@pytest.mark.slow  # torch's compiler is imported
def test_an_attention_that_is_not_read_is_named_with_the_one_to_load(tokenizer):
    flex = AutoModelForCausalLM.from_pretrained(toy_path("toy-4l"), attn_implementation="flex_attention")
    assert line(flex, tokenizer).endswith('; load it with attn_implementation="sdpa"')


def test_a_model_in_memory_needs_its_tokenizer_and_runs_here(model, tokenizer):
    for given in ((model,), (model, tokenizer, True)):
        with pytest.raises(dl.ModelError, match="needs its tokenizer and runs locally"):
            dl.load_model(*given)


def test_a_block_at_several_places_is_as_many_layers():
    """Looped toys of experiments/training, against the same model with weights of its own in every block."""
    from experiments.training.shared import BLOCKS, new_toy, unrolled
    from experiments.training.toys import byte_tokenizer

    looped = new_toy(shared=True)
    apart = dl.load_model(unrolled(looped), byte_tokenizer())
    llm = dl.load_model(looped, byte_tokenizer())
    assert len(llm.blocks) == BLOCKS and len({*looped.parameters()}) < len({*apart._module.parameters()})
    for probe in (dl.relative_contribution, dl.block_removal):
        ours, theirs = (probe(model, ["5 + 7 = 12, and more text than that"]) for model in (llm, apart))
        for key in (key for key in ours if torch.is_tensor(ours[key])):
            torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=0, equal_nan=True)
    ids = torch.tensor([byte_tokenizer()("5 + 7 = ")["input_ids"]])
    generated = (model._module.generate(ids, max_new_tokens=5, do_sample=False) for model in (llm, apart))
    assert torch.equal(*generated), "each layer has its own place in the cache"


@pytest.mark.parametrize("part", ["mlp", "self_attn", "mlp.down_proj"])
def test_a_part_in_several_blocks_is_read_in_each(part, tokenizer):
    shared, apart = build("qwen2"), build("qwen2")
    owner, _, name = part.rpartition(".")
    for model, given in ((shared, lambda module: module), (apart, copy.deepcopy)):
        setattr(model.model.layers[2].get_submodule(owner), name, given(model.model.layers[1].get_submodule(part)))
        model.model.layers[2].self_attn.layer_idx = 2 if model is apart else model.model.layers[2].self_attn.layer_idx
    for probe in (dl.relative_contribution, dl.logit_lens):
        ours, theirs = (probe(dl.load_model(model, tokenizer), PROMPTS) for model in (shared, apart))
        for key in (key for key in ours if torch.is_tensor(ours[key])):
            torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=0, equal_nan=True)
    ids = torch.tensor([tokenizer("5 + 7 = ")["input_ids"]])
    assert torch.equal(*(model.generate(ids, max_new_tokens=5, do_sample=False) for model in (shared, apart)))


@torch.no_grad()
def test_tokens_that_have_the_same_embedding_are_not_compared(tokenizer):
    model = build("qwen2")
    model.model.embed_tokens.weight[20:] = model.model.embed_tokens.weight[:20].mean(0)
    assert dl.check_model(dl.load_model(model, tokenizer))["identity_1"] <= 1e-5


def test_a_model_whose_head_gives_no_logits_is_refused(model, tokenizer):
    model = copy.deepcopy(model)
    model.lm_head = torch.nn.Identity()
    with pytest.raises(dl.ModelError, match="its head returns .* numbers, not logits over its vocabulary of .* tokens"):
        dl.load_model(model, tokenizer)


def all_zero(model):
    for weight in model.parameters():
        weight.data.zero_()


def noisy(model):
    model.model.layers[1].mlp.register_forward_hook(lambda _, __, y: nn.functional.dropout(y, training=True))


def without_block_2(model):
    del model.model.layers[2]
    model.config.num_hidden_layers = 3


def made_in_inference_mode(model):
    with torch.inference_mode():
        model.model.norm.weight = nn.Parameter(model.model.norm.weight.clone())


ODD = {
    "the weight model.embed_tokens.weight is on the meta device": lambda model: model.to("meta"),
    "no list .*its config says 1 layers, and it has 4: correct": lambda model: setattr(
        model.config, "num_hidden_layers", 1
    ),
    "return_dict is False; set it to True": lambda model: setattr(model.config, "return_dict", False),
    "convert all weights to one dtype": lambda model: model.lm_head.half(),
    "give different logits .*one of its modules adds noise, such as a dropout that ignores eval": noisy,
    r"numbers .layer_idx. up to 3, but its config says 3 layers or fewer, .* dl.reorder_blocks\(": without_block_2,
    "its weights were made in torch.inference_mode..; build and load the model outside it": made_in_inference_mode,
    "its logits are all 0": all_zero,
}


@pytest.mark.parametrize("said", ODD)
def test_a_model_that_was_changed_before_loading_is_refused_with_what_to_undo(said, tokenizer):
    model = build("qwen2")
    ODD[said](model)
    with pytest.raises(dl.ModelError, match=said) as refused:
        dl.load_model(model, tokenizer)
    assert "report" not in str(refused.value)


def test_an_encoder_with_a_head_of_a_language_model_is_called_one(tokenizer):
    config = BertConfig(
        vocab_size=257, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    with pytest.raises(dl.ModelError, match=r"it is an encoder, and the probes read decoders \(.*\); use a decoder$"):
        dl.load_model(BertLMHeadModel(config).eval(), tokenizer)


def test_a_tokenizer_with_less_than_a_tenth_of_the_models_tokens_is_warned_about():
    tokenizer = char_tokenizer()
    for size in (10 * len(tokenizer), 11 * len(tokenizer)):
        model = LlamaForCausalLM(LlamaConfig(**SHAPE | {"vocab_size": size}))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert underlying(model, tokenizer) is model
        said = [str(warning.message) for warning in warned if "tokenizer" in str(warning.message)]
        expected = f"the tokenizer has {len(tokenizer)} tokens and the model {size}; if it belongs to"
        assert len(said) == (size > 10 * len(tokenizer)) and all(one.startswith(expected) for one in said)
