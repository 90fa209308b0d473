"""load_model finds what is meant and loads all of it as asked, in quantised weights too."""

import importlib.util
import shutil

import pytest
import torch
from huggingface_hub import constants
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

import depth_lib as dl
from depth_lib.data.tokens import end_tokens
from tests.calls import EVERY, FIVE
from tests.families import SHAPE, build, save_family
from tests.tiny_tokenizers import char_tokenizer

TEXT = "The quick brown fox jumps"
HUB_ID, FIRST, SECOND = "somebody/tiny-llama", "1" * 40, "2" * 40
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes, which the pins leave out"
)


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
    half = dl.load_model(checkpoint, dtype="bfloat16")
    assert {weight.dtype for weight in half._module.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}])
def test_a_device_map_changes_no_number_on_one_device(checkpoint, device_map):
    plain, mapped = (dl.logit_lens(dl.load_model(checkpoint, **o), [TEXT]) for o in ({}, {"device_map": device_map}))
    assert all(torch.equal(mapped[key], plain[key]) for key in plain)


def test_a_hub_model_is_read_from_the_cache_at_the_revision_that_is_asked_for(cache):
    for revision, dtype, n_tokens in ((None, torch.float32, 3), ("v2", torch.bfloat16, 2), (SECOND, torch.bfloat16, 2)):
        llm = dl.load_model(HUB_ID, revision=revision)
        assert llm.dtype == dtype and llm.revision == revision and llm.repo_id == HUB_ID
        assert len(llm.tokenizer("ab")["input_ids"]) == n_tokens


def test_a_remote_model_needs_no_weights_and_holds_none(cache):
    for commit in (FIRST, SECOND):
        (cache / commit / "model.safetensors").unlink()
    llm = dl.load_model(HUB_ID, remote=True, revision="v2", dtype="float16")
    assert all(weight.is_meta for weight in [*llm._module.parameters(), *llm._module.buffers()])
    assert not llm.dispatched and llm.revision == "v2" and llm.repo_id == HUB_ID
    assert len(llm.blocks) == 4 and len(llm.tokenizer("ab")["input_ids"]) == 2
    assert llm.unembed._module is llm._module.lm_head


@pytest.mark.parametrize("remote", [False, "local"])
def test_a_model_that_was_loaded_for_a_server_is_refused_where_a_probe_would_run_here(remote):
    llm = dl.load_model("toy-4l", remote=True)
    with pytest.raises(ValueError, match="toy-4l was loaded for a server, without its weights; give remote=True to"):
        dl.logit_lens(llm, ["abc"], remote=remote)
    assert not llm.dispatched


def test_texts_end_on_a_server_where_the_checkpoints_generation_config_says(tmp_path):
    folder = save_family("llama", tmp_path)
    GenerationConfig(eos_token_id=[2, 5]).save_pretrained(folder)
    assert [end_tokens(dl.load_model(folder, remote=remote)) for remote in (False, True)] == [[2, 5], [2, 5]]


@needs_bitsandbytes
def test_quantised_weights_give_the_numbers_of_the_same_weights_written_out(tmp_path):
    """Estimated errors, and small differences of large numbers, are more sensitive than any result."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE, initializer_range=0.1)).save_pretrained(tmp_path / "plain")
    char_tokenizer().save_pretrained(tmp_path / "plain")
    eight = dl.load_model(tmp_path / "plain", quantization="8bit", dtype="float32")
    assert any(type(module).__name__ == "Linear8bitLt" for module in eight._module.modules())
    llm = dl.load_model(tmp_path / "plain", quantization="4bit", dtype="float32")
    ours = [EVERY[name](llm) for name in FIVE]
    llm._module.dequantize().to(torch.float32).save_pretrained(tmp_path / "written")
    llm.tokenizer.save_pretrained(tmp_path / "written")
    written = dl.load_model(tmp_path / "written", dtype="float32")
    for name, result in zip(FIVE, ours, strict=True):
        for key, value in EVERY[name](written).items():
            if isinstance(value, torch.Tensor) and key not in ("completeness", "error", "n_nodes"):
                assert (result[key] - value).norm() <= 1e-4 * value.norm(), key
