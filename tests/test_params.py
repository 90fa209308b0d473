"""The params files that ship, and what is said of files that do not fit."""

import inspect
import re

import pytest

import depth_lib as dl
from depth_lib.data.datasets import with_levels
from depth_lib.data.drawn import DRAWN
from depth_lib.embedded import TOYS
from depth_lib.params import (
    FIVE_PROBES,
    PARAMS,
    Params,
    ParamsError,
    checked,
    command,
    find_dataset,
    find_model,
    load_params,
    params_files,
    words,
)
from depth_lib.results.schemas import ARTIFACTS
from depth_lib.sweep.cli import main

MODELS = {path.stem: load_params(path) for path in sorted(PARAMS.glob("models/*/*.yaml"))}
DATASETS = {path.stem: load_params(path) for path in sorted(PARAMS.glob("datasets/*.yaml"))}


def of_set(name):
    return {path.stem: MODELS[path.stem] for path in PARAMS.glob(f"models/{name}/*.yaml")}


def test_a_run_finds_every_parameter_but_where_it_writes_in_the_files_that_ship():
    own = {
        "PART",
        "CHAT",
        "GENERATE",
        "PASSES",
        "LENS",
        "CONTROL",
        "OUT",
        "REPLACE",
        "SOURCE",
        "PAIR",
        "QUESTION",
        "ANSWER",
        "SEED",
    }
    own |= {"REVISION", "QUANTIZATION", "DEVICE_MAP"}  # null: the default
    for model in MODELS.values():
        assert model["TRAINING"] in ("base", "instruct", "R1-distill")
        for dataset in DATASETS.values():
            run = dataset | model
            assert set(Params.model_fields) - set(run) <= own
            assert "SOURCE" in run or run["DATASET"] in DRAWN
    assert [*params_files("models")] == sorted(MODELS) and {*params_files("datasets")} == {*DATASETS}
    for kind, files in (("MODEL", MODELS), ("DATASET", DATASETS)):
        assert all(values[kind] == name for name, values in files.items())
    assert list(ARTIFACTS)[:5] == FIVE_PROBES


def test_the_sets_are_the_papers_twelve_ndifs_and_the_toys():
    papers, ndif, toys = map(of_set, ("paper", "ndif", "demo"))
    assert len(papers) == 12 and {*toys} == {*TOYS} - {"toy-loop"}
    for name, model in papers.items():
        owner = "deepseek-ai" if name.startswith("DeepSeek") else "Qwen"
        assert model["MODEL_ID"] == f"{owner}/{name}"
        assert (model["QUANTIZATION"], model["DTYPE"], model["REMOTE"]) == ("8bit", "bfloat16", False)
    sizes = ("8B", "70B", "405B", "70B-Instruct")
    assert {model["MODEL_ID"] for model in ndif.values()} == {f"meta-llama/Llama-3.1-{size}" for size in sizes}
    assert all(model["REMOTE"] is True for model in ndif.values())
    assert all(model["DTYPE"] == "float32" for model in toys.values())


def test_erasure_and_integrated_gradients_run_on_gsm8k_only_and_the_rest_everywhere():
    for name, dataset in DATASETS.items():
        if name in with_levels():
            expected = ["depth_by_difficulty"], 20
        else:
            expected = FIVE_PROBES if name == "gsm8k" else FIVE_PROBES[:3], 5 if name == "aime24" else 10
        assert (dataset["PROBES"], dataset["N_EXAMPLES"]) == expected


@pytest.mark.parametrize(
    "text, message",
    [
        ("MODLE: x", 'unknown parameter "MODLE"; did you mean "MODEL"?'),
        ("dtype: float32", 'unknown parameter "dtype"; did you mean "DTYPE"?'),
        ("DTYPE: bf16", "DTYPE is 'bf16': Input should be 'bfloat16', 'float16', 'float32' or 'float64' (the model's"),
        ("N_EXAMPLES: ten", "N_EXAMPLES is 'ten': Input should be a valid integer"),
        ("N_EXAMPLES: 0.5", "N_EXAMPLES is 0.5: Input should be a valid integer"),
        ("N_EXAMPLES: yes", "N_EXAMPLES must be a number, got True"),
        ("SEED: off\nBILLIONS: true", "BILLIONS must be a number, got True"),
        ("SEED: off\nGENERATE: on\nPASSES: true", "SEED must be a number, got False"),
        ("REMOTE: maybe", 'REMOTE must be True (NDIF), False, "local" (a test on this machine) or a URL with http'),
        ("TEMPLATE: of a dataset", 'unknown parameter "TEMPLATE"'),
        ("1: x", 'unknown parameter "1"'),
        ("SEED: 1\nMODEL_ID: x\nSEED: 2", "SEED appears twice; delete one"),
        ("REMOTE: server:8001", "(a test on this machine) or a URL with http:// or https://, got 'server:8001'"),
        ("just words", "expected lines KEY: VALUE, got a str"),
        ("- a\n- b", "expected lines KEY: VALUE, got a list"),
        ("MODEL: [", "cannot be read (while parsing"),
        ("MODLE: x\nN_EXAMPLES: 0", "params.yaml: N_EXAMPLES is 0: Input should be greater than or equal to 1"),
    ],
)
def test_every_value_that_does_not_fit_is_named_with_what_would(tmp_path, text, message):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ParamsError, match=re.escape(message)) as raised:
        load_params(path)
    assert all(line.startswith(f"{path}: ") for line in str(raised.value).splitlines())


def test_params_of_the_working_directory_are_found_beside_the_packages_and_replace_those_of_the_same_name(
    tmp_path, monkeypatch
):
    own = tmp_path / "params"
    (own / "models/mine").mkdir(parents=True)
    (own / "datasets").mkdir()
    (own / "models/mine/my-model.yaml").write_text("MODEL_ID: owner/model\nTRAINING: base\n")
    (own / "datasets/gsm8k.yaml").write_text("N_EXAMPLES: 3\n")
    (own / "datasets/mine.yaml").write_text("DATASET: gsm8k\n")
    (own / "datasets/short.yml").write_text("N_EXAMPLES: 2\n")
    monkeypatch.chdir(tmp_path)
    assert find_model("toy-4l")["MODEL_ID"] == "toy-4l" and find_model("../datasets/gsm8k") is None
    assert find_model("my-model") == {"MODEL": "my-model", "MODEL_ID": "owner/model", "TRAINING": "base"}
    assert find_dataset("gsm8k") == {"DATASET": "gsm8k", "N_EXAMPLES": 3}
    assert find_dataset("short") == {"DATASET": "short", "N_EXAMPLES": 2}
    with pytest.raises(
        ParamsError,
        match="mine.yaml: DATASET is gsm8k, which must be the name of the file; rename the file, or delete DATASET",
    ):
        find_dataset("mine")
    (own / "models/others").mkdir()
    (own / "models/others/my-model.yaml").write_text("MODEL_ID: another/model\n")
    with pytest.raises(ParamsError, match="^params/models/mine/my-model.yaml and params/models/others/my-model.yaml h"):
        find_model("my-model")
    (own / "models/others/my-model.yaml").unlink()
    for typed in (["sweep", "--list"], ["status"]):
        with pytest.raises(SystemExit, match='unknown data set "foo"; use "addition"'):
            main([*typed, "--models", "toy-4l", "--datasets", "foo"])


def test_a_parameter_given_as_text_is_what_it_says_or_refused():
    given = {"N_EXAMPLES": "20", "REMOTE": "1", "REVISION": "1234567", "ANSWER": " 12", "QUANTIZATION": None}
    expected = {"N_EXAMPLES": 20, "REMOTE": True, "REVISION": "1234567", "ANSWER": " 12"}
    assert checked(given) == expected
    for text, value in (("local", "local"), ("False", False), ("0", False), ("true", True)):
        assert checked({"REMOTE": text}) == {"REMOTE": value}
    assert checked({"PROBES": "logit_lens, layer_effects"}) == {"PROBES": ["logit_lens", "layer_effects"]}
    for key, text in (("N_EXAMPLES", "0"), ("N_EXAMPLES", "ten"), ("REMOTE", "ndif"), ("QUANTIZATION", "9bit")):
        with pytest.raises(ParamsError, match=f"^{key} (is {text!r}: [^\n]*|must be [^\n]*, got {text!r})$"):
            checked({key: text})


def test_a_command_in_a_message_works_as_pasted():
    said = command(
        "run", "my toy", "gsm8k", N_EXAMPLES=3, PROBES=["a", "b"], QUESTION="1 + $x", CONTROL=True, LENS=None
    )
    assert said == "depth-lib run 'my toy' gsm8k --n-examples 3 --probes 'a b' --question '1 + $x' --control"


def test_paths_with_spaces_stand_between_commas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my model").mkdir()
    assert words("./my model,toy-4l") == ["./my model", "toy-4l"] == words(" ./my model, toy-4l")
    assert words("my model") == ["my model"] and words("a b,c") == words("a, b c") == ["a", "b", "c"]


def test_a_warning_names_the_line_that_called_the_package(toy, tmp_path):
    dl.logit_lens(toy, ["5 + 7 = 12"]).save(tmp_path / "gsm8k" / "toy-4l")
    (tmp_path / "gsm8k" / "toy-8l").mkdir()
    (tmp_path / "gsm8k" / "toy-8l" / "logitlens_1exps.pt").write_text("damaged")
    for call in (
        lambda: dl.layer_effects(toy, ["5 + 7 = 12 and 3 + 4 = 7", "5"]),  # deep inside, and behind a decorator
        lambda: dl.load_examples("sums", 101),
        lambda: dl.load_results(tmp_path),
    ):
        with pytest.warns(UserWarning) as warned:
            call()
        assert {warning.filename for warning in warned} == {__file__}


DEFAULTS = {
    "deep_thinking_ratio": {"g": 0.5, "rho": 0.85},
    "early_exit": {"most": 8},
    "effective_depth_kl": {"threshold": 0.5},
    "effective_depth_overlap": {"threshold": 0.3},
    "integrated_gradients": {"quadrature": 0.01, "max_nodes": 257, "steps": 16},
    "load_choices": {"n_examples": 100},
    "load_examples": {"n_per_level": 20, "seed": 42},
    "load_model": {"tensor_parallel": 1},
    "logit_lens": {"generate": 0, "all_measures": True, "per_token": False},
    "prune": {"at_most": 0.05},
    "removable": {"at_most": 0.05},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_numbers_of_a_call_that_names_none_are_those_of_its_docstring(name):
    parameters = inspect.signature(getattr(dl, name)).parameters
    assert {argument: parameters[argument].default for argument in DEFAULTS[name]} == DEFAULTS[name]
