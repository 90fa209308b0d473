"""check_model accepts every family as it was found, and refuses a reading that is wrong in any of the known ways."""

import pytest
import torch
import transformers as tf
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.models import families, load
from depth_lib.models.errors import ArchitectureError
from depth_lib.models.families import describe, known
from tests.families import FAMILIES, REFUSED, D, build, save_family
from tests.marks import others_slow
from tests.models.kinds import tiny
from tests.tiny_tokenizers import char_tokenizer

SOME = ("llama", "gemma2", "granite", "opt_projected")


# float32: every test that loads a family, as loading measures the identities
@pytest.mark.parametrize("name", others_slow(FAMILIES, SOME))
def test_both_identities_hold_in_half_precision(name, tmp_path):
    found = dl.check_model(dl.load_model(str(save_family(name, tmp_path)), dtype=torch.bfloat16))
    assert found["tolerance"] == 2**-9  # of what a block adds, rounding aside
    assert found["identity_1"] <= 2**-9 and found["identity_2"] <= 2**-6


@pytest.mark.parametrize("name", REFUSED)
def test_a_block_that_normalises_the_residual_is_read_as_a_whole(name, tmp_path):
    with pytest.warns(UserWarning, match=NO_SUM):
        llm = dl.load_model(str(save_family(name, tmp_path)))
    curves = dl.relative_contribution(llm, ["abc"])
    assert curves["att_cos"].isnan().all() and curves["norm_mlp"].isnan().all()
    assert curves["layer_cos"].isfinite().all() and curves["rc_layer"].isfinite().all()
    assert dl.effective_depth_cosine(curves["att_cos"], curves["mlp_cos"], curves["layer_cos"]) is None
    for ask in (lambda: dl.layer_effects(llm, ["abc"], "all", part="mlp"), lambda: gradients(llm, at="attention")):
        with pytest.raises(ValueError, match="attention and MLP cannot be told apart in this model"):
            ask()


@torch.no_grad()
def test_attention_that_reads_the_first_token_alone_is_attention():
    """An attention sink: the first position has a direction of its own, and only keys of that direction count."""
    model, first = build("gpt2"), torch.zeros(D)
    first[::2], first[1::2] = 1.0, -1.0
    model.transformer.wpe.weight[0] = 100 * first
    for block in model.transformer.h:
        queries, keys = block.attn.c_attn.weight[:, :D], block.attn.c_attn.weight[:, D : 2 * D]
        queries.zero_()
        block.attn.c_attn.bias[:D] = 30.0
        keys.copy_(first[:, None].expand(D, D))
    model.set_attn_implementation("eager")
    weights = model(torch.tensor([[5, 6, 7, 8]]), output_attentions=True).attentions
    assert all((of_block[..., 0] == 1).all() for of_block in weights)
    dl.load_model(model, char_tokenizer())


def gradients(llm, **options):
    return dl.integrated_gradients(llm, "5 + 7 = ", "12", **options)


def each_block(change):
    """A change of every block's parts: change(a, m) returns others."""
    return lambda found: {
        "parts": tuple(dict(zip(block, change(*block.values()), strict=True)) for block in found.parts)
    }


def parts(attention=None, mlp=None):
    return each_block(lambda a, m: ([(attention, 1.0, None)] if attention else a, [(mlp, 1.0, None)] if mlp else m))


def scaled(by):
    return each_block(lambda *parts: [[(path, by * scale, None) for path, scale, _ in part] for part in parts])


MUTATIONS = {
    "olmo2": (parts(attention="self_attn"), "identity 1 fails"),
    "glm4": (parts("self_attn", "mlp"), "identity 1 fails"),
    "bloom": (parts(attention="self_attention"), "identity 1 fails"),
    "granite": (scaled(1 / 0.31), "identity 1 fails"),
    "qwen2": (lambda found: each_block(lambda a, m: (a, []))(found) | {"rescales": True}, "identity 1 fails"),
    "gemma2": (lambda found: {"logit_softcap": None}, "identity 2 fails"),
    "cohere": (lambda found: {"logit_scale": 1.0}, "identity 2 fails"),
    "opt_projected": (
        lambda found: {"tail": ("model.decoder.layers.0.final_layer_norm", *found.tail[1:])},
        "identity 2 fails",
    ),
    "gpt_neox": (lambda found: {"parallel": False}, "the MLP found in block 0 is not sequential to attention"),
    "llama": (lambda found: {"parallel": True}, "the MLP found in block 0 is not parallel to attention"),
}


@pytest.fixture
def misread(monkeypatch):
    """Has load_model find something else: misread(lambda found: {field: another value})."""
    architecture = load.architecture

    def use(change):
        def read(*model):
            found = architecture(*model)
            return found.but(**change(found))

        monkeypatch.setattr(load, "architecture", read)

    return use


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_reading_is_refused(name, misread):
    change, message = MUTATIONS[name]
    misread(change)
    with pytest.raises(ArchitectureError, match=message):
        load.wrapped(build(name), char_tokenizer())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name, change, message",
    [
        ("granite", scaled(1.01), r"the contribution of block \d differs from a \+ m"),
        ("llama", scaled(0.99), r"the contribution of block \d differs from a \+ m"),
        ("cohere", lambda found: {"logit_scale": 1.01 * found.logit_scale}, "identity 2 fails: .* off|differs"),
        ("llama", each_block(lambda a, m: ([], a + m)), "the MLP found in block 0 depends on earlier tokens"),
        (
            "gpt_neox",
            each_block(lambda a, m: (a + m, [])),
            "the attention found in block 0 does not depend on earlier tokens",
        ),
        ("llama", each_block(lambda a, m: (m, a)), "the identities could not be computed"),
    ],
)
def test_a_scale_that_is_off_by_one_percent_and_a_part_taken_for_the_other_are_refused(
    name, change, message, dtype, misread
):
    misread(change)
    with pytest.raises(ArchitectureError, match=message):
        load.wrapped(build(name, dtype), char_tokenizer())


class ReadsTheFirst(LlamaDecoderLayer):
    """The last block also reads what the first one returned, which no graph shows."""

    def forward(self, hidden_states, **options):
        if self.self_attn.layer_idx == 3:
            hidden_states = hidden_states + self.mlp(ReadsTheFirst.output)
        output = super().forward(hidden_states, **options)
        if self.self_attn.layer_idx == 0:
            ReadsTheFirst.output = output.detach()
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shortcut_that_does_not_work_is_not_taken(dtype, misread, monkeypatch):
    monkeypatch.setattr("transformers.models.llama.modeling_llama.LlamaDecoderLayer", ReadsTheFirst)
    misread(lambda found: {"can_skip_blocks": True, "can_add_rows": True, "parts": None})
    with pytest.warns(UserWarning, match="its blocks read more of earlier ones than the residual"):
        llm = load.wrapped(build("llama", dtype), char_tokenizer())
    arch = describe(llm)
    assert not arch.can_skip_blocks and not arch.can_add_rows


def test_a_dropped_batch_axis_is_refused(monkeypatch):
    """What `layer.output[0]` does now that blocks return a tensor instead of a tuple."""
    monkeypatch.setattr("depth_lib.residual.residual_stream.hidden_states", lambda output: output[0])
    with pytest.raises(ArchitectureError, match="identit"):
        load.wrapped(build("llama"), char_tokenizer())


def test_an_encoder_is_refused():
    model = tf.BertLMHeadModel(tf.BertConfig(vocab_size=112, hidden_size=32, num_attention_heads=4))
    with pytest.raises(
        ArchitectureError, match=r"\(bert, .*\): the tokens of block \d see later ones: it is an encoder"
    ):
        load.wrapped(model, char_tokenizer())


class Centred(torch.nn.Module):
    """Subtracts a mean over tokens, of all rows of a batch or of one of them."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, x):
        return x - x[self.rows].mean((0, 1))


@pytest.mark.parametrize("rows", [slice(None), slice(1), slice(-1, None)])
def test_a_module_that_sees_later_tokens_of_other_rows_is_refused(rows):
    model = build("qwen2")
    model.model.layers[1].mlp = torch.nn.Sequential(model.model.layers[1].mlp, Centred(rows))
    with pytest.raises(ArchitectureError, match="the tokens of block 1 see later ones"):
        load.wrapped(model, char_tokenizer())
    model.config.quantization_config = {}  # of 8 bits, where what a column rounds to depends on the whole batch
    assert not describe(load.wrapped(model, char_tokenizer())).can_add_rows


def test_what_is_known_of_a_model_is_a_line_for_each_fact():
    lines = str(known(load.wrapped(build("granite"), char_tokenizer()))).splitlines()
    assert {"blocks: model.layers", "n_layers: 4", "parallel: False"} <= {*lines}
    part = next(line for line in lines if line.startswith("parts: "))
    assert "'self_attn', 0.31, None" in part and part.endswith("(blocks: 4)")
    assert {line.split(":")[0] for line in lines} >= {"identity_1", "identity_2", "tolerance"}
    assert max(map(len, lines)) < 150


class Gated(LlamaDecoderLayer):
    """Attention passes a gate before it is added."""

    def forward(self, hidden_states, **options):
        attended = self.self_attn(self.input_layernorm(hidden_states), **options)[0]
        hidden_states = hidden_states + torch.tanh(hidden_states.mean(-1, keepdim=True)) * attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class MlpFirst(LlamaDecoderLayer):
    """The MLP runs before attention, which reads what the MLP added."""

    def forward(self, hidden_states, **options):
        hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states + self.self_attn(self.input_layernorm(hidden_states), **options)[0]


class MlpFirstBeside(LlamaDecoderLayer):
    """The MLP runs before attention, which reads what the MLP read."""

    def forward(self, hidden_states, **options):
        added = self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states + added + self.self_attn(self.input_layernorm(hidden_states), **options)[0]


NO_SUM = "the contribution of block 0 is not the sum of up to three modules' outputs"
NOT_FIRST = "modules that mix tokens in block 0 do not run before the others"


@pytest.mark.parametrize("layer, says", [(Gated, NO_SUM), (MlpFirst, NOT_FIRST), (MlpFirstBeside, NOT_FIRST)])
def test_a_gate_around_a_part_and_an_mlp_that_runs_first_are_never_taken_for_a_part(layer, says, monkeypatch):
    monkeypatch.setattr("transformers.models.llama.modeling_llama.LlamaDecoderLayer", layer)
    with pytest.warns(UserWarning, match=says):
        llm = load.wrapped(build("llama"), char_tokenizer())
    found = dl.relative_contribution(llm, ["abc"])
    of_parts = {key for key in found if "att" in key or "mlp" in key}
    assert len(of_parts) > 8 and all(found[key].isnan().all() for key in of_parts)
    assert all(value.isfinite().all() for key, value in found.items() if key not in of_parts | {"meta"})


def test_the_check_runs_once_a_load(tmp_path, monkeypatch):
    llm = dl.load_model(str(save_family("llama", tmp_path)))
    monkeypatch.setattr("depth_lib.session.run", None)
    assert dl.check_model(llm)["identity_2"] <= 1e-5


def test_a_model_that_reads_images_too_is_as_long_as_its_language_model():
    llm = load.wrapped(tiny("mistral3"), char_tokenizer())
    limit = llm.config.text_config.max_position_embeddings = 16
    assert len(tokenize(llm, ["x" * (limit - 1)])[0]) == limit
    with pytest.raises(ValueError, match=f"{limit + 1} tokens, but the model has {limit} positions"):
        tokenize(llm, ["x" * limit])


def test_what_a_remote_model_cannot_be_asked_is_said_when_it_is_loaded(tmp_path):
    tiny("openai-gpt").save_pretrained(tmp_path)
    char_tokenizer().save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="Attention and MLP cannot be told apart; their values are NaN"):
        dl.load_model(tmp_path, remote=True)


def test_an_error_without_a_text_is_named_by_its_kind(monkeypatch):
    def raises(*model):
        raise NotImplementedError

    monkeypatch.setattr(families, "discover", raises)
    with pytest.raises(ArchitectureError, match=r"llama: it does not run \(NotImplementedError\); call the model"):
        load.wrapped(build("llama"), char_tokenizer())
    model = build("llama")
    model.config.quantization_config = {"load_in_8bit": True}
    with pytest.raises(ArchitectureError, match="if its weights are not quantised, delete quantization_config from"):
        load.wrapped(model, char_tokenizer())
