"""check_model accepts every family as its row has it, and refuses a row that is wrong in any of the known ways."""

import pytest
import torch
import transformers as tf

import depth_lib as dl
from depth_lib.models.families import FAMILIES as ROWS
from depth_lib.models.families import ArchitectureError
from tests.families import FAMILIES, REFUSED, SHAPE, build, randomise, save_family
from tests.tiny_tokenizers import char_tokenizer


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2**-6)])
@pytest.mark.parametrize("name", FAMILIES)
def test_both_identities_hold(name, dtype, tolerance, tmp_path):
    llm = dl.load_model(str(save_family(name, tmp_path)), dtype=dtype)
    found = dl.check_model(llm)
    assert found["tolerance"] == tolerance
    assert found["identity_1"] <= tolerance and found["identity_2"] <= tolerance


@pytest.mark.parametrize("name", REFUSED)
def test_a_block_that_normalises_the_residual_is_refused(name, tmp_path):
    with pytest.raises(ArchitectureError, match="identity 1 fails: .*%|no ln_final"):
        dl.load_model(str(save_family(name, tmp_path)))


MUTATIONS = {
    "olmo2": ({"attention": "self_attn"}, "identity 1 fails"),
    "gemma3_text": ({"mlp": "mlp"}, "identity 1 fails"),
    "glm4": ({"mlp": "mlp", "attention": "self_attn"}, "identity 1 fails"),
    "bloom": ({"attention": "self_attention"}, "identity 1 fails"),
    "granite": ({"residual_scale": None}, "identity 1 fails"),
    "gemma2": ({"logit_softcap": None}, "identity 2 fails"),
    "cohere": ({"logit_scale": None}, "identity 2 fails"),
    "opt_projected": ({"ln_final": "model.decoder.layers.0.final_layer_norm"}, "identity 2 fails"),
    "gpt_neox": ({"parallel": False}, "says sequential blocks, but they are parallel"),
    "llama": ({"parallel": True}, "says parallel blocks, but they are sequential"),
    "qwen2": ({"attention": "self_attn.q_proj"}, "identity 1 fails"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_row_is_refused(name, tmp_path, monkeypatch):
    wrong, message = MUTATIONS[name]
    folder = str(save_family(name, tmp_path))
    family = build(name).config.model_type
    dl.load_model(folder)
    monkeypatch.setitem(ROWS, family, {**ROWS[family], **wrong})
    with pytest.raises(ArchitectureError, match=message):
        dl.load_model(folder)


def test_a_dropped_batch_axis_is_refused(tmp_path, monkeypatch):
    """What `layer.output[0]` does now that blocks return a tensor instead of a tuple."""
    monkeypatch.setattr("depth_lib.probes.identities.first", lambda output: output[0])
    with pytest.raises(ArchitectureError, match="identit"):
        dl.load_model(str(save_family("llama", tmp_path)))


@pytest.mark.parametrize(
    "config, like",
    [(tf.OlmoConfig(**SHAPE), "llama"), (tf.Cohere2Config(**SHAPE), "cohere"), (tf.Starcoder2Config(**SHAPE), "llama")],
)
def test_an_unknown_family_on_which_the_identities_hold_runs_with_a_notice(config, like, tmp_path):
    model = tf.AutoModelForCausalLM.from_config(config)
    randomise(model)
    model.save_pretrained(tmp_path)
    char_tokenizer().save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=f"read like '{like}'"):
        llm = dl.load_model(str(tmp_path))
    assert dl.check_model(llm)["identity_1"] <= 1e-5
    assert dl.relative_contribution(llm, ["abc"])["rc_att"].shape == (config.num_hidden_layers,)


def test_an_unknown_family_that_fits_no_row_is_refused_with_how_to_add_one(tmp_path):
    config = tf.MambaConfig(vocab_size=112, hidden_size=32, num_hidden_layers=2)
    tf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    char_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ArchitectureError, match="'mamba' is not known.*write one row in FAMILIES"):
        dl.load_model(str(tmp_path))


def test_the_check_runs_once_a_load(tmp_path, monkeypatch):
    llm = dl.load_model(str(save_family("llama", tmp_path)))
    monkeypatch.setattr("depth_lib.session.run", None)
    assert dl.check_model(llm)["identity_2"] <= 1e-5
