"""load_model finds what is meant and loads all of it as asked, in quantised weights too."""

import shutil

import pytest
import torch
import transformers
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, GenerationConfig

import depth_lib as dl
from depth_lib.data.tokens import end_tokens
from tests.families import build, save_family
from tests.tiny_tokenizers import char_tokenizer

TEXT = "The quick brown fox jumps"
HUB_ID, FIRST, SECOND = "somebody/tiny-llama", "1" * 40, "2" * 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_family("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def cache(checkpoint, tmp_path, monkeypatch):
    """A Hub cache with two revisions of one model: "main", the first commit, and "v2", bfloat16 and without BOS."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / f"models--{HUB_ID.replace('/', '--')}"
    shutil.copytree(checkpoint, repo / "snapshots" / FIRST)
    save_family("llama", repo / "snapshots" / SECOND, char_tokenizer(bos=False), torch.bfloat16)
    (repo / "refs").mkdir()
    for name, commit in (("main", FIRST), ("v2", SECOND)):
        (repo / "refs" / name).write_text(commit)
    return repo / "snapshots"


def test_a_folder_is_loaded_ready_to_be_probed(checkpoint):
    llm = dl.load_model(checkpoint)
    assert not llm._module.training and not any(weight.requires_grad for weight in llm._module.parameters())
    assert len(llm.blocks) == 4 and llm.unembed._module is llm._module.lm_head
    for path, weight in build("llama").named_parameters():
        assert torch.equal(llm._module.get_parameter(path), weight), path


def test_weights_have_the_dtype_that_is_asked_for_or_else_the_checkpoints(checkpoint, tmp_path):
    half = save_family("llama", tmp_path, dtype=torch.bfloat16)
    for llm in (dl.load_model(half), dl.load_model(checkpoint, dtype="bfloat16")):
        assert {weight.dtype for weight in llm._module.parameters()} == {torch.bfloat16}


def test_a_device_map_changes_no_number_on_one_device(checkpoint):
    plain, mapped = (dl.logit_lens(dl.load_model(checkpoint, **o), [TEXT]) for o in ({}, {"device_map": "auto"}))
    mapped, plain = ({key: value for key, value in one.items() if key != "meta"} for one in (mapped, plain))
    torch.testing.assert_close(mapped, plain, rtol=0, atol=0)


def test_a_hub_model_is_read_from_the_cache_at_the_revision_that_is_asked_for(cache):
    for revision, dtype, n_tokens in ((None, torch.float32, 3), ("v2", torch.bfloat16, 2), (SECOND, torch.bfloat16, 2)):
        llm = dl.load_model(HUB_ID, revision=revision)
        assert llm.dtype == dtype and llm.revision == revision and llm.repo_id == HUB_ID
        assert len(llm.tokenizer("ab")["input_ids"]) == n_tokens


def test_a_remote_model_needs_no_weights_and_holds_none(cache):
    for commit in (FIRST, SECOND):
        (cache / commit / "model.safetensors").unlink()
    llm = dl.load_model(HUB_ID, remote=True, revision="v2")
    assert all(weight.is_meta for weight in [*llm._module.parameters(), *llm._module.buffers()])
    assert not llm.dispatched and llm.revision == "v2" and llm.repo_id == HUB_ID
    assert len(llm.blocks) == 4 and len(llm.tokenizer("ab")["input_ids"]) == 2
    assert llm.unembed._module is llm._module.lm_head


@pytest.mark.parametrize("remote", [False, "local"])
def test_a_model_that_was_loaded_for_a_server_is_refused_where_a_probe_would_run_here(remote):
    llm = dl.load_model("toy-4l", remote=True)
    with pytest.raises(ValueError, match="toy-4l was loaded for a server, without its weights; pass remote=True to"):
        dl.logit_lens(llm, ["abc"], remote=remote)
    assert not llm.dispatched


@pytest.mark.slow
def test_the_file_of_a_model_says_how_often_its_blocks_run_and_on_which_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params/models/mine").mkdir(parents=True)
    for name, line in (("loop", "PASSES: 2"), ("far", "REMOTE: http://127.0.0.1:9")):
        (tmp_path / f"params/models/mine/{name}.yaml").write_text(f"MODEL_ID: toy-4l\n{line}\n")
    (tmp_path / "params/models/mine/toy-4l.yaml").write_text("MODEL_ID: toy-8l\n")  # another model of a packaged name
    assert len(dl.load_model("toy-4l").blocks) == len(dl.Run({"MODEL": "toy-4l", "OUT": "out"}).llm.blocks) == 8
    assert [len(dl.load_model("loop", passes=passes).blocks) for passes in (None, 1)] == [8, 4]
    assert len(dl.Run({"MODEL": "loop", "OUT": "out"}).llm.blocks) == 8
    assert dl.load_model("far", remote=False).dispatched
    with pytest.raises(ValueError, match="toy-4l was loaded .* pass remote='http://127.0.0.1:9' to the probe too"):
        dl.logit_lens(dl.load_model("far"), ["abc"])


def test_texts_end_on_a_server_where_the_checkpoints_generation_config_says(tmp_path):
    folder = save_family("llama", tmp_path)
    GenerationConfig(eos_token_id=[2, 5]).save_pretrained(folder)
    assert [end_tokens(dl.load_model(folder, remote=remote)) for remote in (False, True)] == [[2, 5], [2, 5]]


@pytest.mark.parametrize("kind", ["Gemma3n", "Gemma4"])
def test_layers_that_share_keys_and_values_are_right_without_a_cache(kind):
    """Token by token with a cache, and all at once without one, as the probes run it."""
    config = getattr(transformers, f"{kind}TextConfig")(
        vocab_size=112,
        vocab_size_per_layer_input=112,
        hidden_size=32,
        hidden_size_per_layer_input=8,
        intermediate_size=64,
        num_hidden_layers=6,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 3,
        sliding_window=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        **({"global_head_dim": 8} if kind == "Gemma4" else {}),
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    ids, cache, steps = torch.arange(3, 27)[None], None, []
    with torch.no_grad():
        at_once = model(input_ids=ids, use_cache=False).logits
        for token in ids.T:
            one = model(input_ids=token[None], past_key_values=cache, use_cache=True)
            cache, steps = one.past_key_values, [*steps, one.logits]
    torch.testing.assert_close(at_once, torch.cat(steps, 1), rtol=1e-4, atol=1e-4 * float(at_once.abs().max()))
