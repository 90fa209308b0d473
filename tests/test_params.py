"""The params files that ship, and what is said of files that do not fit."""

import re
import shutil

import pytest

from depth_lib import params
from depth_lib.data.datasets import with_levels
from depth_lib.data.prompts import DRAWN
from depth_lib.embedded import TOYS
from depth_lib.params import (
    FIVE_PROBES,
    Params,
    ParamsError,
    dataset_names,
    find_dataset,
    find_model,
    from_text,
    load_params,
    registry_names,
)
from depth_lib.results.schemas import ARTIFACTS, PROBES

SHIPPED = sorted(params.PARAMS.glob("*/**/*.yaml"))


@pytest.fixture
def write(tmp_path):
    def one(text, name="params.yaml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return one


def test_every_shipped_file_fits_and_a_run_knows_all_but_where_it_writes():
    assert len(SHIPPED) >= 12 + 4 + 3 + 3
    own = {"OUT", "SOURCE", "PAIR", "QUESTION", "ANSWER", "TENSOR_PARALLEL"}
    for model in params.PARAMS.glob("models/*/*.yaml"):
        assert find_model(model.stem)["TRAINING"] in ("base", "instruct", "R1-distill")
        for dataset in params.PARAMS.glob("datasets/*.yaml"):
            run = load_params(dataset) | load_params(model)
            assert set(Params.model_fields) - set(run) <= own
            assert "SOURCE" in run or run["DATASET"] in DRAWN


def test_the_papers_twelve_models_are_known_with_eight_bit_weights_and_bfloat16_compute():
    files = sorted(params.PARAMS.glob("models/paper/*.yaml"))
    assert len(files) == 12
    for path in files:
        model = load_params(path)
        owner = "deepseek-ai" if path.stem.startswith("DeepSeek") else "Qwen"
        assert model["MODEL_ID"] == f"{owner}/{path.stem}"
        assert (model["QUANTIZATION"], model["DTYPE"], model["REMOTE"]) == ("8bit", "bfloat16", False)


def test_ndif_models_run_remotely_and_toys_here_on_embedded_prompts():
    ndif = [load_params(path) for path in params.PARAMS.glob("models/ndif/*.yaml")]
    assert {model["MODEL_ID"] for model in ndif} == {
        f"meta-llama/Llama-3.1-{size}" for size in ("8B", "70B", "405B", "70B-Instruct")
    }
    assert all(model["REMOTE"] is True for model in ndif)
    toys = {name: load_params(params.PARAMS / f"models/demo/{name}.yaml") for name in TOYS}
    for name, model in toys.items():
        assert model["MODEL_ID"] == name
        assert (model["DTYPE"], model["REMOTE"], model["SOURCE"]) == ("float32", False, "embedded")


def test_erasure_and_integrated_gradients_run_on_gsm8k_only_and_the_rest_everywhere():
    for path in params.PARAMS.glob("datasets/*.yaml"):
        if path.stem in with_levels():
            asked = load_params(path)
            assert asked["PROBES"] == ["depth_by_difficulty"] and (asked["N_EXAMPLES"], asked["SEED"]) == (20, 42)
            continue
        everywhere = ["relative_contribution", "layer_effects", "logit_lens"]
        once = ["residual_erasure", "integrated_gradients"] if path.stem == "gsm8k" else []
        assert load_params(path)["PROBES"] == everywhere + once
        assert load_params(path)["N_EXAMPLES"] == (5 if path.stem == "aime24" else 10)


def test_the_allowed_names_are_those_the_package_knows():
    assert params.not_among(ARTIFACTS, "PROBES", *ARTIFACTS) is None
    assert params.not_among(ARTIFACTS, "PROBES", "logit_lens", "logitlens").startswith(
        'PROBES "logitlens" is not known; did you mean logit_lens?'
    )
    assert {*dataset_names()} == {"gsm8k", "hellaswag", "aime24", "mquake", "math", *DRAWN}
    assert list(PROBES) == FIVE_PROBES


@pytest.mark.parametrize(
    "text, message",
    [
        ("MODLE: x", 'key "MODLE" is not known; did you mean MODEL? use "MODEL", "MODEL_ID", '),
        ("dtype: float32", 'key "dtype" is not known; did you mean DTYPE?'),
        (
            "DTYPE: bf16",
            "DTYPE is \"bf16\"; it should be 'bfloat16', 'float16', 'float32' or 'float64': what the model",
        ),
        ("QUANTIZATION: 8", "QUANTIZATION is 8; it should be '8bit', '4bit' or null: "),
        ("N_EXAMPLES: ten", 'N_EXAMPLES is "ten"; it should be a valid integer: number of prompts, at least 1'),
        ("N_EXAMPLES: true", "N_EXAMPLES is true; it should be a valid integer"),
        ("N_EXAMPLES: 0", "N_EXAMPLES is 0; it should be greater than or equal to 1: number of prompts"),
        ("REVISION: 1234567", "REVISION is 1234567; it should be a valid string: branch, tag or commit"),
        ("REMOTE: 1", "REMOTE is 1; it should be a valid boolean: run on NDIF; or "),
        ("REMOTE: 'yes'", 'REMOTE is "yes"; use true, false, "local" or a host such as'),
        ("PROBES: logit_lens", 'PROBES is "logit_lens"; it should be a valid list: to run'),
        ("BILLIONS: big", 'BILLIONS is "big"; it should be a valid number: the model\'s number of parameters'),
        ("DATASET: gsm", 'DATASET "gsm" is not known; did you mean gsm8k?'),
        ("MODEL: other", 'MODEL is "other"; name the file other.yaml'),
        ('MODEL_ID: ""', 'MODEL_ID is ""; it should have at least 1 character: Hub id, local folder, GGUF file'),
        ("just words", 'is "just words"; write one KEY: value per line'),
        ("MODEL: [", "cannot be read as YAML"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_what_would(write, text, message):
    with pytest.raises(ParamsError, match=re.escape(message)) as raised:
        load_params(write(text))
    assert str(raised.value).startswith(str(write(text)))
    assert all(".yaml: " in line for line in str(raised.value).splitlines())


def test_all_problems_of_a_file_are_listed_at_once(write):
    path = write("MODLE: x\nN_EXAMPLES: 0")
    with pytest.raises(ParamsError) as raised:
        load_params(path)
    assert [line.split(":")[0] for line in str(raised.value).splitlines()] == [str(path)] * 2


def test_a_registry_name_is_found_in_whatever_set_it_is():
    assert find_model("Qwen2.5-Math-7B")["MODEL_ID"] == "Qwen/Qwen2.5-Math-7B"
    assert find_model("Llama-3.1-70B")["REMOTE"] is True
    assert find_model("Qwen/Qwen2.5-Math-7B") is None
    assert find_model("../datasets/gsm8k") is None
    assert registry_names() == sorted(path.stem for path in SHIPPED if "models" in path.parts)


def test_params_of_the_working_directory_are_found_beside_the_packages_and_replace_those_of_the_same_name(
    tmp_path, monkeypatch
):
    own = tmp_path / "params"
    (own / "models/mine").mkdir(parents=True)
    (own / "datasets").mkdir()
    (own / "models/mine/my-model.yaml").write_text("MODEL_ID: owner/model\nTRAINING: base\n")
    (own / "datasets/gsm8k.yaml").write_text("N_EXAMPLES: 3\n")
    monkeypatch.chdir(tmp_path)
    assert {"my-model", "toy-4l"} <= {*registry_names()}
    assert find_model("my-model") == {"MODEL": "my-model", "MODEL_ID": "owner/model", "TRAINING": "base"}
    assert find_dataset("gsm8k") == {"DATASET": "gsm8k", "N_EXAMPLES": 3}
    (own / "models/other").mkdir()
    shutil.copy(own / "models/mine/my-model.yaml", own / "models/other")
    with pytest.raises(ParamsError, match="my-model.yaml, .*results are filed under the name; give each its own"):
        find_model("toy-4l")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("N_EXAMPLES", "20", 20),
        ("REMOTE", "1", True),
        ("REMOTE", "true", True),
        ("REMOTE", "False", False),
        ("REMOTE", "local", "local"),
        ("REMOTE", "http://there:1", "http://there:1"),
        ("QUANTIZATION", "null", None),
        ("REVISION", "1234567", "1234567"),
        ("PROBES", "logit_lens,layer_effects", ["logit_lens", "layer_effects"]),
        ("ANSWER", " 12", " 12"),
    ],
)
def test_a_parameter_given_as_text_is_what_it_says(key, text, value):
    assert from_text(key, text) == value


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("N_EXAMPLES", "twenty", 'N_EXAMPLES is "twenty"; it should be a valid integer'),
        ("N_EXAMPLES", "0", "N_EXAMPLES is 0; it should be greater than or equal to 1"),
        ("N_EXAMPLE", "3", 'key "N_EXAMPLE" is not known; did you mean N_EXAMPLES?'),
        ("REMOTE", "ndif", 'REMOTE is "ndif"; use true, false, "local" or a host'),
        ("QUANTIZATION", "9bit", "QUANTIZATION is \"9bit\"; it should be '8bit', '4bit' or null"),
    ],
)
def test_a_parameter_given_as_text_that_does_not_fit_is_refused(key, text, said):
    with pytest.raises(ParamsError, match=re.escape(said)):
        from_text(key, text)
