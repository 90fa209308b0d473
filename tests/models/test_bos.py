"""Whether texts begin with BOS is what the checkpoint says, in every version of transformers: GGUF files made here, and
folders whose two files disagree."""

import json
import warnings

import pytest
import torch
from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map
from transformers import AutoTokenizer, LlamaConfig, Qwen2Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

import depth_lib as dl
from depth_lib.models import load
from depth_lib.models.bos import begins_with_bos, follow
from depth_lib.models.errors import ModelError
from depth_lib.models.gguf import dequantised
from tests.tiny_tokenizers import char_tokenizer

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
PIECES = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcd", "▁a", "ab"]  # as SentencePiece has them
BYTES = [*SPECIAL, "Ġ", *"abcd", "Ġa", "ab"]  # as byte-level BPE has them
SIZES = {  # by the names of transformers and of GGUF
    ("hidden_size", "embedding_length"): 32,
    ("intermediate_size", "feed_forward_length"): 64,
    ("num_hidden_layers", "block_count"): 2,
    ("num_attention_heads", "head_count"): 2,
    ("num_key_value_heads", "head_count_kv"): 1,
    ("head_dim", "key_length"): 16,
    ("max_position_embeddings", "context_length"): 64,
}
SHAPE, GGUF_SHAPE = ({names[k]: size for names, size in SIZES.items()} for k in (0, 1))
GGUF_SHAPE |= {"value_length": 16, "layer_norm_rms_eps": 1e-6, "rope_freq_base": 10_000.0}
KINDS = {"llama": (LlamaConfig, PIECES), "qwen2": (Qwen2Config, BYTES)}


def written(kind, path, adds_bos):
    """A GGUF file of random weights, whose word on BOS is this; None: it says nothing."""
    kind_of_config, tokens = KINDS[kind]
    config = kind_of_config(vocab_size=len(tokens), pad_token_id=0, eos_token_id=1, bos_token_id=2, **SHAPE)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    writer = GGUFWriter(path, kind)
    for field, value in (GGUF_SHAPE | {"vocab_size": len(tokens)}).items():
        getattr(writer, f"add_{field}")(value)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 4 + [6 if token.startswith("<0x") else 1 for token in tokens[4:]])
    if tokens is BYTES:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_merges(["Ġ a", "a b"])
    else:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([0.0] * (len(tokens) - 2) + [-1.0, -2.0])
    for k, token in enumerate(("pad", "eos", "bos", "unk")):
        getattr(writer, f"add_{token}_token_id")(k)
    if adds_bos is not None:
        writer.add_add_bos_token(adds_bos)
    names = get_tensor_name_map(next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == kind), 2)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            writer.add_tensor(names.get_name(name, (".weight", ".bias")), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("says", [True, False, None])
@pytest.mark.filterwarnings("ignore:.*contrary to the checkpoint")
def test_a_gguf_files_own_word_on_bos_is_followed_or_else_what_llama_cpp_does(kind, says, tmp_path):
    file = written(kind, tmp_path / f"{kind}.gguf", says)
    first = dl.load_model(file).tokenizer
    for tokenizer in (first, AutoTokenizer.from_pretrained(dequantised(file, torch.float32))):
        ids = tokenizer("ab ab")["input_ids"]
        assert begins_with_bos(tokenizer) == (says if says is not None else KINDS[kind][1] is PIECES)
        assert ids.count(2) == begins_with_bos(tokenizer)
        assert tokenizer.decode(ids, skip_special_tokens=True).strip() == "ab ab"


@pytest.mark.parametrize("says, does", [(True, False), (False, True), (True, True), (False, False), (None, True)])
def test_of_a_folder_whose_files_disagree_the_config_is_followed_and_that_is_said(says, does, tmp_path):
    char_tokenizer(bos=does).save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text()) | {"bos_token": "<bos>"} | ({} if says is None else {"add_bos_token": says})
    file.write_text(json.dumps(config))
    LlamaConfig(vocab_size=112, bos_token_id=1, **SHAPE).save_pretrained(tmp_path)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _, tokenizer = load.config_and_tokenizer(str(tmp_path), None)
    follows = does if says is None else says
    assert tokenizer("ab")["input_ids"] == [1] * follows + tokenizer("ab", add_special_tokens=False)["input_ids"]
    said = [str(warning.message) for warning in warned if "add_bos_token" in str(warning.message)]
    assert len(said) == (follows != does) and all("the checkpoint is followed" in words for words in said)


def test_a_tokenizer_that_does_not_obey_is_named():
    tokenizer = char_tokenizer(bos=True)
    tokenizer.__class__ = type("Fixed", (type(tokenizer),), {"update_post_processor": lambda self: None})
    with pytest.warns(
        UserWarning, match=r"x: .* added the BOS token, .*; this tokenizer cannot be changed: correct its"
    ):
        follow(tokenizer, False, "x")
    assert begins_with_bos(tokenizer)


def test_code_beside_a_gguf_file_is_not_run_whatever_is_answered(tmp_path, monkeypatch):
    file = written("llama", tmp_path / "llama.gguf", True)
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Theirs: pass\n")
    auto_map = {"auto_map": {"AutoTokenizer": ["theirs.Theirs", None]}, "tokenizer_class": "Theirs"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(auto_map))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(ModelError, match="contains custom code, which is not run"):
        dl.load_model(file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:.*contrary to the checkpoint")
def test_a_gguf_file_is_dequantised_once_wherever_it_lies_and_again_when_it_changes(tmp_path, capfd):
    folders = [dequantised(written("llama", tmp_path / "a.gguf", says), torch.float32) for says in (True, False)]
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "a.gguf").replace(tmp_path / "elsewhere" / "a.gguf")
    assert dequantised(moved, torch.float32) == folders[1] != folders[0]
    assert capfd.readouterr().err.count("dequantising a.gguf") == 2
    assert [begins_with_bos(AutoTokenizer.from_pretrained(folder)) for folder in folders] == [True, False]
    assert "quantization_config" not in json.loads((folders[0] / "config.json").read_text())
    written("llama", moved, True)  # of the same size, with the dates of the one before
    assert dequantised(moved, torch.float32) == folders[0]
