"""Every weight of a checkpoint is measured, or a line says which is not: another head, biases, adapters, layers."""

import json
import re
import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import depth_lib as dl
from tests.families import SHAPE, save_family
from tests.tiny_tokenizers import char_tokenizer

HEADS = ["SequenceClassification", "TokenClassification"]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", ["Llama", "Qwen3", "GPTNeoX"])
def test_a_classifier_with_tied_embeddings_is_refused(family, head, tmp_path):
    kind = getattr(transformers, f"{family}For{head}")
    kind(kind.config_class(**SHAPE | {"tie_word_embeddings": True}, num_labels=2)).save_pretrained(tmp_path)
    char_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(
        dl.ModelError, match=r"has the head of a classifier \((score|classifier)\.(weight|bias)( and 1 more)?\)"
    ):
        dl.load_model(tmp_path)


def rewritten(folder, **settings):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


def test_weights_that_the_config_denies_are_named(tmp_path):
    folder = rewritten(save_family("llama", tmp_path), attention_bias=False)
    with pytest.warns(UserWarning, match=r"the weights model.layers.0.self_attn.k_proj.bias and 15 more are not used"):
        dl.load_model(folder)


def test_code_of_a_checkpoint_is_not_run_and_named_if_transformers_has_another(tmp_path):
    folder = save_family("llama", tmp_path)
    for own, said in (
        ("LlamaForCausalLM", []),
        ("MyForCausalLM", ["modeling_my"]),
        ("LlamaForCausalLM", ["modeling_my"]),
    ):
        rewritten(folder, auto_map={"AutoModelForCausalLM": f"somebody/mine--modeling_my.{own}"})
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            dl.load_model(folder)
        line = "{}: its {}.py is not run; transformers' own LlamaForCausalLM is used instead"
        assert [str(one.message) for one in warned if "not run" in str(one.message)] == [
            line.format(folder, f) for f in said
        ]
        (folder / "modeling_my.py").write_text("raise SystemExit")  # a copy here may differ from transformers'


@pytest.mark.filterwarnings("error:.*are not used")
def test_what_predicts_further_tokens_and_a_whole_checkpoint_are_loaded_in_silence(tmp_path):
    dl.load_model(save_family("llama_tied", tmp_path / "tied"))
    folder = rewritten(save_family("llama", tmp_path / "more"), num_nextn_predict_layers=1)
    weights = load_file(folder / "model.safetensors")
    of_last = {name: x for name, x in weights.items() if ".layers.3." in name}
    further = {name.replace(".3.", ".4."): x.clone() for name, x in of_last.items()}
    save_file(weights | further | {"model.mtp.weight": torch.ones(1)}, folder / "model.safetensors", {"format": "pt"})
    assert len(dl.load_model(folder).blocks) == 4


@pytest.fixture
def adapter(tmp_path):
    """A base model, and the folder of an adapter for it that changes much."""
    peft = pytest.importorskip("peft")
    base = save_family("llama", tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["v_proj"], init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    char_tokenizer().save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        truth = adapted(input_ids=torch.arange(4, 20)[None], use_cache=False).logits
    return base, tmp_path / "adapter", truth


@pytest.mark.slow
def test_an_adapter_in_a_models_folder_is_read_with_it_or_else_refused(adapter, monkeypatch):
    base, folder, truth = adapter
    for file in folder.glob("adapter_*"):
        (base / file.name).write_bytes(file.read_bytes())
    llm = dl.load_model(base)
    torch.testing.assert_close(llm._module(input_ids=torch.arange(4, 20)[None], use_cache=False).logits, truth)
    for module in ("utils.import_utils", "utils.peft_utils", "integrations.peft", "models.auto.auto_factory"):
        monkeypatch.setattr(f"transformers.{module}.is_peft_available", lambda: False, raising=False)
    monkeypatch.setattr("transformers.modeling_utils.is_peft_available", lambda: False, raising=False)
    with pytest.raises(dl.ModelError, match="base has an adapter, which needs the package peft; pip install peft, or"):
        dl.load_model(base)


@pytest.mark.slow
def test_an_adapters_own_folder_is_refused_with_the_call_that_loads_it(adapter):
    base, folder, truth = adapter
    give = re.escape(f"dl.load_model(PeftModel.from_pretrained(base, {str(folder)!r}), tokenizer)")
    with pytest.raises(dl.ModelError, match=f"adapter is an adapter without its base model; load both: {give}$"):
        dl.load_model(folder)
    import peft

    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder)
    llm = dl.load_model(model, char_tokenizer())
    with warnings.catch_warnings(), torch.no_grad():
        torch.testing.assert_close(llm._module(input_ids=torch.arange(4, 20)[None], use_cache=False).logits, truth)
