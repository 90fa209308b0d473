"""load_model says in one line why it cannot load what it is asked for, and before it fetches anything."""

import importlib.util
import json
import shutil
import time

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3Config

import depth_lib as dl
from depth_lib.embedded import toy_path
from depth_lib.hub import _is_reachable
from depth_lib.models.errors import ArchitectureError, ModelError
from depth_lib.models.families import read_config
from tests.families import save_family
from tests.tiny_tokenizers import char_tokenizer

HUB_ID = "somebody/tiny-llama"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_family("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def broken(checkpoint, tmp_path):
    """A copy of a checkpoint with one file replaced (None: removed)."""

    def copy(file, content):
        folder = shutil.copytree(checkpoint, tmp_path / "broken")
        (folder / file).unlink()
        if content is not None:
            (folder / file).write_text(content)
        return folder

    return copy


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Online, with an empty cache and a Hub that answers every request in the way that is set."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between retries
    _is_reachable.cache_clear()  # of a test before, whose Hub did not answer

    def answers(status, code=None):
        def answer(request):
            if status is None:
                raise httpx2.ConnectError("no route to host")
            return httpx2.Response(status, headers={"X-Error-Code": code} if code else {}, request=request)

        huggingface_hub.set_client_factory(lambda: httpx2.Client(transport=httpx2.MockTransport(answer)))

    yield answers
    huggingface_hub.set_client_factory(huggingface_hub.utils._http.default_client_factory)


def refusal(*args, **options):
    """The one line with which load_model refuses."""
    with pytest.raises(ModelError) as raised:
        dl.load_model(*args, **options)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


def test_a_registry_name_stands_for_its_hub_id_even_beside_a_results_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "Qwen2.5-Math-7B").mkdir()
    monkeypatch.chdir(tmp_path)
    line = refusal("Qwen2.5-Math-7B", quantization=None)
    assert "'Qwen2.5-Math-7B' (Qwen/Qwen2.5-Math-7B) is neither a folder here nor in the cache" in line


def test_a_registry_name_brings_its_entrys_settings_unless_others_are_given(monkeypatch):
    quantized, mapped = [], []
    monkeypatch.setattr("depth_lib.models.load.check_quantization", quantized.append)
    monkeypatch.setattr("depth_lib.models.load.check_devices", mapped.append)
    refusal("Qwen2.5-7B-Instruct")
    refusal("Qwen2.5-7B-Instruct", quantization="4bit", device_map=None)
    refusal("Qwen2.5-7B-Instruct", remote=True)
    assert quantized == ["8bit", "4bit", None] and mapped == ["auto", None, None]


@pytest.mark.parametrize(
    "name, message",
    [
        ("toy-9l", "unknown model 'toy-9l'; did you mean toy-8l, "),
        ("Qwen2.5-7B-Instuct", "did you mean Qwen2.5-7B-Instruct, "),
        ("", "unknown model ''"),
        ("./nowhere", "'./nowhere' does not exist; check the path"),
        ("~nouser/x", "'~nouser/x' cannot be opened: Could not determine home directory; check the path"),
        (300 * "a", f"{40 * 'a'!r} cannot be opened: "),
        ("gpt2-large", "'gpt2-large' has no owner; use dl.load_model('openai-community/gpt2-large')"),
        ("https://huggingface.co/Qwen/Qwen3-8B", "is a URL; use the Hub id: dl.load_model('Qwen/Qwen3-8B')"),
        ("hf.co/Qwen/Qwen3-8B/tree/v1", "use the Hub id: dl.load_model('Qwen/Qwen3-8B', revision='v1')"),
        ("https://huggingface.co/a/b/resolve/main/c/d.gguf", "use the Hub id: dl.load_model('a/b/c/d.gguf')"),
        ("Qwen/Qwen3-8B@v1", "use dl.load_model('Qwen/Qwen3-8B', revision='v1')"),
        ("none.gguf", "'none.gguf' does not exist; check the path"),
        (__file__, "is a file; use a checkpoint folder"),
        (
            HUB_ID,
            f"{HUB_ID!r} is neither a folder here nor in the cache, and HF_HUB_OFFLINE forbids the network; unset",
        ),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused(name, message):
    assert message in refusal(name)


def test_a_folder_without_a_config_is_refused(tmp_path):
    assert f"{tmp_path} has no config.json; use a checkpoint folder (from save_pretrained or" in refusal(tmp_path)


@pytest.mark.parametrize(
    "answer, message",
    [
        ((403, "GatedRepo"), f"is gated; accept its licence on https://huggingface.co/{HUB_ID} and log in with"),
        ((401, "RepoNotFound"), f"{HUB_ID!r} is not on the Hub, or private; check the name, or log in"),
        ((404, "RevisionNotFound"), f"{HUB_ID!r} has no revision 'v3' on the Hub; choose one of"),
        ((None, None), "the Hub cannot be reached; check the network, or use a checkpoint's folder or a toy model"),
    ],
)
def test_what_the_hub_answers_decides_the_next_step(hub, answer, message):
    hub(*answer)
    assert message in refusal(HUB_ID, revision="v3")


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("model.safetensors", None, "no file named model.safetensors"),
        ("model.safetensors", "not weights", "could not be loaded: "),
        ("config.json", "{", "is not a valid JSON file"),
        ("config.json", '{"model_type": "zork"}', "has model type `zork`"),
        (
            "config.json",
            '{"model_type": "qwen2", "num_hidden_layers": 4, "layer_types": ["full_attention"]}',
            "loaded: `num_hidden_layers` (4) must be equal to the number of `layer_types` (1);",
        ),
        ("config.json", '{"auto_map": {"AutoConfig": "own.Config"}}', "contains custom code"),
        ("tokenizer.json", None, "tokenizer"),
        ("tokenizer.json", "{}", "could not be loaded: "),
    ],
)
def test_a_broken_checkpoint_is_refused_with_the_reason(broken, file, content, message):
    folder = broken(file, content)
    line = refusal(folder)
    assert message in line and str(folder) in line and line.endswith("that this transformers supports")
    assert len(line) < 600


@pytest.mark.parametrize("config", [None, "{}"])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path, config):
    folder = shutil.copytree(toy_path("toy-4l"), tmp_path / "toy")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    if config:
        (folder / "tokenizer_config.json").write_text(config)
    says = f"{folder} has no tokenizer; save it there: tokenizer.save_pretrained("
    assert says in refusal(folder)
    if not config:
        assert says in refusal(folder, char_tokenizer())


def test_a_revision_of_what_is_not_on_the_hub_is_refused(checkpoint):
    assert f"'{checkpoint}' is not on the Hub, so revision='v1' does not apply; leave" in refusal(
        checkpoint, revision="v1"
    )


@pytest.mark.parametrize(
    "setting, value, message",
    [
        ("num_hidden_layers", 6, "has no weights that fit model.layers."),
        ("intermediate_size", 32, "has no weights that fit model.layers."),
        ("num_hidden_layers", 3, "has weights of 4 layers, but its config says 3; correct"),
    ],
)
def test_weights_that_are_not_those_of_the_config_are_refused(checkpoint, broken, setting, value, message):
    config = json.loads((checkpoint / "config.json").read_text()) | {setting: value}
    folder = broken("config.json", json.dumps(config))
    assert refusal(folder).startswith(f"{folder} {message}")


@pytest.mark.parametrize("remote", [False, "http://127.0.0.1:1"])
@pytest.mark.parametrize(
    "setting, value",
    [
        ("attn_implementation", "kernels-community/flash-attn2"),
        ("attn_implementation", {"": "somebody/attention:forward"}),
        ("_attn_implementation", "somebody/attention@v1"),
        ("attn_implementation", "flash_attention_3"),  # which comes from there where its own package is missing
        ("attn_implementation", 5),
        ("experts_implementation", "sonicmoe"),
    ],
)
def test_code_that_a_config_names_is_neither_fetched_nor_advised(
    broken, checkpoint, setting, value, remote, monkeypatch
):
    """Such code would run, if the package kernels is there."""
    for module in ("modeling_utils", "utils.import_utils", "integrations.hub_kernels"):
        monkeypatch.setattr(f"transformers.{module}.is_kernels_available", lambda *_: True)
    fetched = lambda *_, **__: pytest.fail("code was fetched")  # noqa: E731
    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", fetched)
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", fetched)
    folder = broken("config.json", json.dumps(json.loads((checkpoint / "config.json").read_text()) | {setting: value}))
    line = refusal(folder, remote=remote)
    assert "which is not part of transformers and is not run; set " in line and "pip install" not in line


def test_code_that_the_config_of_a_models_part_names_is_refused(monkeypatch):
    config = Gemma3Config()
    config.text_config._attn_implementation = "kernels-community/flash-attn2"
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: config)
    with pytest.raises(ModelError, match='x asks for attn_implementation "kernels-community/flash-attn2"'):
        read_config("x")


def test_memory_that_a_cpu_does_not_have_is_said_as_such(checkpoint, monkeypatch):
    def allocates(*_, **__):
        torch.empty(2**60)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", allocates)
    assert 'does not fit in memory; use device_map="auto", ' in refusal(checkpoint)


def test_the_dtype_auto_is_the_checkpoints_own(tmp_path):
    folder = save_family("llama", tmp_path, dtype=torch.bfloat16)
    assert dl.load_model(folder, dtype="auto").dtype == torch.bfloat16


def test_a_load_that_fails_is_not_repeated_in_another_dtype(checkpoint, monkeypatch):
    asked = []

    def out_of_memory(*args, **options):
        asked.append(options["dtype"])
        raise torch.OutOfMemoryError("Tried to allocate 130.00 GiB.\nOf the allocated memory …")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", out_of_memory)
    assert 'does not fit in memory; use device_map="auto", ' in refusal(checkpoint, dtype="bfloat16")
    assert asked == [torch.bfloat16]


@pytest.fixture
def nothing_fetched(monkeypatch):
    """Fails a test that asks for as much as a config."""
    monkeypatch.setattr("depth_lib.models.load.config_and_tokenizer", lambda *args: pytest.fail("a config was fetched"))


@pytest.mark.usefixtures("nothing_fetched")
@pytest.mark.parametrize(
    "options, message",
    [
        ({"dtype": "float33"}, "dtype 'float33' is not supported; use float32, bfloat16 or float16"),
        ({"dtype": torch.int8}, "dtype torch.int8 is not supported; use"),
        ({"quantization": "3bit"}, 'unknown quantization "3bit"; did you mean "8bit"?'),
        ({"remote": "lokal"}, "remote='lokal' is not valid; use True, False, \"local\" or a URL"),
        ({"quantization": "8bit", "remote": True}, "the server sets dtype, quantization and device_map itself; leave"),
        ({"dtype": "float32", "remote": True}, "the server sets dtype, quantization and device_map itself; leave"),
        ({"device_map": "auto", "remote": True}, "the server sets dtype, quantization and device_map itself; leave"),
        ({"device_map": "cuda:99"}, "device_map names 'cuda:99', which cannot be used ("),
        ({"device_map": "meta"}, "device_map names 'meta', which cannot be used (weights on that device cannot be"),
        ({"device_map": {"": "disk"}}, "device_map names 'disk', which cannot be used (weights on that device"),
        ({"dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn' is not supported; use float32,"),
        ({"torch_dtype": "bfloat16"}, 'load_model has no argument torch_dtype; use dtype="bfloat16"'),
        ({"load_in_8bit": True}, 'load_model has no argument load_in_8bit; use quantization="8bit"'),
        ({"attn_implementation": "eager"}, "load_model has no argument attn_implementation; use a loaded model: "),
        ({"device_map": {"model": "cpu", "lm_head": 99}}, "device_map names 99, which cannot be used ("),
    ],
)
def test_what_this_machine_cannot_do_is_refused_before_any_download(options, message):
    assert message in refusal(HUB_ID, **options)


@pytest.mark.usefixtures("nothing_fetched")
@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_without_bitsandbytes_quantised_weights_are_refused_before_any_download(quantization, monkeypatch):
    monkeypatch.setattr("depth_lib.models.memory.is_bitsandbytes_available", lambda: False)
    assert refusal(HUB_ID, quantization=quantization) == (
        f"{quantization} weights need bitsandbytes, which is missing or too old; "
        "pip install -U bitsandbytes, or quantization=None (QUANTIZATION: null)"
    )


@pytest.mark.parametrize("method, package", [("awq", "gptqmodel"), ("gptq", "optimum")])
def test_a_quantised_checkpoint_without_its_library_is_refused_with_the_command(tmp_path, method, package):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    shutil.copytree(toy_path("toy-4l"), tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    quantized = {"quant_method": method, "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": quantized}))
    with pytest.raises(ModelError, match=f"lacks a package or version: .* requires {package}.*; pip install {package}"):
        dl.load_model(tmp_path / "m")


def test_an_assertion_of_a_quantised_layer_is_said_with_the_model(monkeypatch):
    """As bitsandbytes makes them of widths that it cannot divide."""

    def fails(llm):
        llm.config.quantization_config = {"quant_method": "bitsandbytes"}
        raise AssertionError("N must be divisible by block_n")

    monkeypatch.setattr("depth_lib.models.check.check_call", lambda llm: (fails, {}))
    with pytest.raises(
        ArchitectureError, match=r"toy-4l.*N must be divisible by block_n\); load it with quantization=None"
    ):
        dl.load_model("toy-4l")


def test_a_default_device_refuses_no_model():
    torch.set_default_device("meta")  # of those that are everywhere the one that differs most from the CPU
    try:
        assert len(dl.load_model("toy-4l", remote="http://127.0.0.1:1").blocks) == 4
    finally:
        torch.set_default_device(None)


def test_a_folder_here_is_proposed_for_a_name_that_nearly_spells_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "mymodel/config.json").write_text("{}")
    with pytest.raises(dl.ModelError, match="unknown model 'mymodell'; did you mean the folder ./mymodel?"):
        dl.load_model("mymodell")
