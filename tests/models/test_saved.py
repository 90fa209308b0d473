"""A saved model computes what it computed in memory, or is refused in one line."""

import json

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

import depth_lib as dl
from depth_lib.effective_depth.intervals import Estimate
from depth_lib.effective_depth.removal import Removable
from depth_lib.pruning import Pruned
from depth_lib.sweep.cli import main
from tests.families import SHAPE, save_family
from tests.marks import slow
from tests.tiny_tokenizers import char_tokenizer

IDS = torch.arange(4, 30)[None]


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture
def untied(tmp_path):
    """A function that makes a checkpoint with a head of its own, whose config claims this of it."""

    def made(claims):
        folder = save_family("llama", tmp_path / "llama")
        config = json.loads((folder / "config.json").read_text())
        assert not config["tie_word_embeddings"]
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": claims}))
        return folder

    return made


@pytest.mark.parametrize("claims", [True, False])
def test_a_head_of_its_own_is_kept_whatever_the_config_claims(untied, claims, tmp_path):
    folder = untied(claims)
    llm = dl.load_model(folder)
    assert torch.equal(logits(llm._module), logits(loaded(folder)))
    shorter = dl.remove_blocks(llm, 1)
    for n, saved in enumerate((llm, shorter)):
        dl.save_model(saved, tmp_path / str(n))
        torch.testing.assert_close(logits(loaded(tmp_path / str(n))), logits(saved._module))


def test_a_head_that_is_the_embedding_stays_it(tmp_path):
    folder = save_family("llama_tied", tmp_path / "llama")
    shorter = dl.remove_blocks(dl.load_model(folder), 0, 2)
    dl.save_model(shorter, tmp_path / "saved")
    again = loaded(tmp_path / "saved")
    assert again.lm_head.weight is again.model.embed_tokens.weight
    torch.testing.assert_close(logits(again), logits(shorter._module))


@pytest.mark.parametrize("step", [1, slow(2)])
def test_a_list_of_all_layers_by_their_numbers_stays_one(step, tmp_path):
    """Llama 4's moe_layers: with experts in every layer it is as long as the model."""
    config = transformers.Llama4TextConfig(
        **SHAPE,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=1,
        intermediate_size_mlp=64,
        attention_chunk_size=64,
        interleave_moe_layer_step=step,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    llm = dl.load_model(model, char_tokenizer())
    for n, changed in enumerate((dl.remove_blocks(llm, 1), dl.reorder_blocks(llm, [2, 1, 0, 3, 3]))):
        dl.save_model(changed, tmp_path / str(n))
        torch.testing.assert_close(logits(loaded(tmp_path / str(n))), logits(changed._module))
    assert model.config.moe_layers == [*range(step - 1, 4, step)], "that of the model itself changed"


def test_the_path_of_a_file_is_refused(toy, tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(dl.ModelError, match=r"file is a file; use the path of a folder$"):
        dl.save_model(toy, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "here"


def test_a_folder_that_is_not_empty_stays_as_it_is(toy, tmp_path, capsys):
    (tmp_path / "README.md").write_text("mine")
    pruned = Pruned(
        Removable(1, 0, 4, Estimate(0.1, 0.1, 0.1), 1.0), dl.remove_blocks(toy, 0), "", "toy-4l", "2 prompts"
    )
    for save in (pruned.save, lambda folder: dl.save_model(toy, folder)):
        with pytest.raises(dl.ModelError, match="is not empty, and saving could replace its files; use a new"):
            save(tmp_path)
    with pytest.raises(SystemExit, match="is not empty"):
        main(["prune", "toy-4l", "--source", "embedded", "--save", str(tmp_path)])
    assert "loading" not in capsys.readouterr().out
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_adapters_that_are_not_merged_are_refused_with_the_call_that_merges_them(tmp_path):
    peft = pytest.importorskip("peft")
    model = loaded(save_family("llama", tmp_path / "llama"))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    llm = dl.load_model(adapted, char_tokenizer())
    with pytest.warns(UserWarning, match="it cannot be saved: adapters or .* merge them first"):
        shorter = dl.remove_blocks(llm, 1)
    for what in (llm, shorter):
        with pytest.raises(dl.ModelError, match=r"merge them first: dl.load_model\(model.merge_and_unload\(\), token"):
            dl.save_model(what, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    merged = dl.load_model(adapted.merge_and_unload(), char_tokenizer())
    dl.save_model(merged, tmp_path / "saved")
    torch.testing.assert_close(logits(loaded(tmp_path / "saved")), logits(merged._module))


def test_a_head_that_is_the_embedding_against_the_config_is_saved_whole(tmp_path):
    """Tied by hand, after loading: the file would lack the head, which loading would draw at random."""
    model = loaded(save_family("llama", tmp_path / "llama"))
    model.lm_head.weight = model.model.embed_tokens.weight
    llm = dl.load_model(model, char_tokenizer())
    for n, saved in enumerate((llm, dl.remove_blocks(llm, 1))):
        dl.save_model(saved, tmp_path / str(n))
        torch.testing.assert_close(logits(dl.load_model(tmp_path / str(n))._module), logits(saved._module))
