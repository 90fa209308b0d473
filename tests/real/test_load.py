"""A GGUF file's weights are those that it holds, however it is named and however often it is loaded."""

import pytest
import torch
from gguf import GGUFReader, dequantize

import depth_lib as dl

pytestmark = pytest.mark.slow  # loading and measuring a real model takes half a minute

PLACES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.fixture(scope="module")
def reader(gguf):
    return GGUFReader(gguf)


def place(name):
    """The parameter that a tensor of the file is."""
    parts = name.removesuffix(".weight").split(".")
    block = f"model.layers.{parts[1]}." if parts[0] == "blk" else ""
    return f"{block}{PLACES[parts[-1]]}.weight"


def in_our_order(weights, n_heads):
    """llama.cpp turns neighbouring dimensions of queries and keys, transformers those half a head apart."""
    rows, columns = weights.shape
    return weights.reshape(n_heads, rows // n_heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def test_every_weight_is_what_the_file_holds_dequantised(reader, llm):
    ours = dict(llm._module.named_parameters())
    heads = {"attn_q": llm.config.num_attention_heads, "attn_k": llm.config.num_key_value_heads}
    for tensor in reader.tensors:
        kind = tensor.name.split(".")[-2]
        truth = torch.tensor(dequantize(tensor.data, tensor.tensor_type)).float()
        if kind in heads:
            truth = in_our_order(truth, heads[kind])
        assert torch.equal(ours.pop(place(tensor.name)), truth), tensor.name
    assert not ours and llm._module.lm_head.weight is llm._module.model.embed_tokens.weight


def test_the_tokenizer_is_the_files_own(reader, llm):
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    for text in [*dl.load_prompts("gsm8k", source="sample"), "5 + 7 + 5 + 3 + 1 + 7 = 28", "naïve  Σ\n\n\t1234"]:
        ids = llm.tokenizer(text)["input_ids"]
        assert llm.tokenizer.decode(ids) == text
        assert llm.tokenizer.convert_ids_to_tokens(ids) == [tokens[i] for i in ids]
    assert llm.tokenizer.tokenize("12 = 3") == ["1", "2", "Ġ=", "Ġ", "3"]  # digit by digit, as it was trained
