"""A run computes what is missing or stale, reads what matches, and refuses wrong parameters; on the smallest toy."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch

import depth_lib as dl
from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.embedded import toy_path
from depth_lib.models.families import known
from depth_lib.params import PARAMS, Params, ParamsError, load_params
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.asked import RunSpec
from depth_lib.results.defaults import in_project
from depth_lib.results.provenance import Superseded, differing, judge, made_from
from depth_lib.results.schemas import ArtifactError
from depth_lib.results.study import Study
from depth_lib.sweep import run as runs
from depth_lib.sweep.launch import _stored
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.run import Run
from tests.sweep.cells import ANY_DATASET, parameters
from tests.synthetic import result_of

OF_PAIR = [
    "residual_erasure",
    "integrated_gradients",
    "attention_gradients",
    "mlp_gradients",
    "future_erasure",
    "answer_lens",
]
OWN = {"QUESTION": "2 + 9 = ", "ANSWER": "11"}


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A parameters cell whose results are all there, for the papers' question and for another."""
    cell = parameters(tmp_path_factory.mktemp("results"))
    for changed, probes in (({}, ANY_DATASET), (OWN, OF_PAIR[:2])):
        run = Run(cell | changed)
        for probe in probes:
            run.result(probe)
    return cell


@pytest.fixture
def own_cell(cell, tmp_path):
    """The same with a copy of the results, for tests that damage them."""
    shutil.copytree(cell["OUT"], tmp_path / "results")
    return cell | {"OUT": str(tmp_path / "results")}


@pytest.fixture
def no_loading(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(runs, "load_model", refuse)


def contents(cell):
    return {path: path.read_bytes() for path in Path(cell["OUT"]).glob("*/*/*.pt*") if path.is_file()}


def test_results_that_match_are_read_without_the_model_and_are_what_the_probes_return(cell, toy, no_loading, capsys):
    run, own, before = Run(cell), Run(cell | OWN), contents(cell)
    stored = {probe: run.result(probe) for probe in ANY_DATASET}
    assert contents(cell) == before and capsys.readouterr().out.count("nothing to compute") == len(ANY_DATASET)
    prompts, baseline = dl.load_prompts("addition", 2, seed=1), dl.load_prompts("gsm8k", 2, source="embedded")
    fresh = {
        "relative_contribution": dl.relative_contribution(toy, prompts),
        "logit_lens": dl.logit_lens(toy, prompts),
        "layer_effects": dl.layer_effects(toy, prompts, "future") | dl.layer_effects(toy, prompts, "all"),
        "residual_erasure": dl.residual_erasure(toy, QUESTION, ANSWER, baseline),
        "integrated_gradients": dl.integrated_gradients(toy, QUESTION, ANSWER),
        "of the other question": dl.integrated_gradients(toy, *OWN.values()),
    }
    stored["of the other question"] = own.result("integrated_gradients")
    assert all(own.path(probe) != run.path(probe) for probe in OF_PAIR) and own.result("residual_erasure")
    assert own.path("logit_lens") == run.path("logit_lens")
    meta = stored["residual_erasure"]["meta"]
    expected = {"model": "toy-4l", "model_id": "toy-4l", "revision": None, "dtype": "float32", "quantization": None}
    expected |= {"dataset": "addition", "source": "drawn", "n_prompts": 2, "seed": 1, "where": "local cpu"}
    assert {key: meta[key] for key in expected} == expected
    assert meta["settings"]["question"] == QUESTION and meta["settings"]["answer"] == ANSWER
    assert len(meta["prompts_hash"]) == len(meta["weights"]) == 16 and meta["seconds"] > 0
    assert meta["check"]["identity_1"] <= meta["check"]["tolerance"]
    assert set(meta["versions"]) >= {"torch", "transformers", "nnsight"}
    study = Study(cell["OUT"])
    assert study.pairs == [own.pair.label]
    answers = {
        name: study["addition", "toy-4l", name]["meta"]["settings"]["answer"] for _, _, name in study if "era" in name
    }
    assert answers == {"residual_erasure": "28", f"residual_erasure:{own.pair.label}": "11"} | {"future_erasure": "28"}
    for probe, result in fresh.items():
        assert set(stored[probe]) == {*result, "meta"}
        for key, value in result.items():
            if key == "tokens":
                assert stored[probe][key] == value
            else:
                torch.testing.assert_close(stored[probe][key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"DTYPE": "float64"}, "dtype: stored float32, asked float64"),
        ({"SEED": 2}, "prompts_hash: stored"),
        ({"N_EXAMPLES": 3}, "n_prompts: stored 2, asked 3"),
        ({"QUANTIZATION": "8bit"}, "quantization: stored None, asked 8bit"),
    ],
)
def test_a_result_of_other_settings_is_refused(cell, change, reason, no_loading):
    with pytest.raises(Superseded, match=rf"{reason}.*; give another OUT, or .* set REPLACE = True"):
        Run(cell | change).result("relative_contribution")


def test_with_replace_results_of_other_settings_are_moved_aside_with_their_tokens_and_no_others(own_cell, capsys):
    run, before = Run(own_cell | {"N_EXAMPLES": 1, "REPLACE": True}), contents(own_cell)
    path, _ = old = [Run(own_cell).path("residual_erasure"), Run(own_cell).folder / "logit_erasure_tokens_2exps.txt"]
    assert run.result("residual_erasure")["meta"]["n_prompts"] == 1
    assert "baseline: stored" in capsys.readouterr().out
    assert not any(file.exists() for file in old)
    after = contents(own_cell)
    assert after.pop(path.with_name(f"{path.name}.superseded-1")) == before.pop(path)
    assert old[1].with_name(f"{old[1].name}.superseded-1").exists()
    assert after.pop(run.path("residual_erasure")) and after == before
    run.result("residual_erasure")
    assert "nothing to compute" in capsys.readouterr().out


def test_what_a_result_does_not_depend_on_does_not_make_it_stale(cell, no_loading):
    for change in ({"N_EXAMPLES": 3}, {"SEED": 7}, {"REVISION": "main"}):
        run = Run(cell | change)
        assert all(run.state(probe).word == "done" for probe in OF_PAIR if "gradients" in probe)
    embedded, seed, hub = (Run(cell | {"DATASET": "gsm8k"} | change) for change in ({}, {"SEED": 7}, {"SOURCE": "hub"}))
    assert embedded.provenance("logit_lens") == seed.provenance("logit_lens")
    for probe in OF_PAIR[1:4]:  # gradients, which read no prompts
        assert embedded.provenance(probe) == hub.provenance(probe)


def test_a_checkpoint_folder_that_was_trained_on_makes_its_results_stale(cell, tmp_path, monkeypatch, no_loading):
    folder = shutil.copytree(toy_path("toy-4l"), tmp_path / "checkpoint")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    asked = cell | {"MODEL": "mine", "MODEL_ID": "~/checkpoint", "OUT": str(tmp_path)}
    before = RunSpec(asked).provenance("logit_lens")
    (folder / "trainer_state.json").write_text("{}")
    for same in ("./checkpoint", str(folder)):
        assert RunSpec(asked | {"MODEL_ID": same}).provenance("logit_lens") == before
    for name, content in (("merges.txt", b"a b"), ("tokenizer.model", b"a")):
        (folder / name).write_bytes(content)
        changed = RunSpec(asked).provenance("logit_lens")
        assert [line.split(":")[0] for line in differing(before, changed)] == ["weights"]
        (folder / name).unlink()
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-2] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert RunSpec(asked).provenance("logit_lens")["weights"] != before["weights"]


def test_a_commit_of_the_hub_is_compared_whatever_it_is_called(cell, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    asked, commit = cell | {"MODEL": "m", "MODEL_ID": "owner/m"}, "0123456789" * 4
    assert RunSpec(asked | {"REVISION": "v1"}).provenance("logit_lens")["revision"] == "v1", "it is not known here"
    refs = tmp_path / "models--owner--m" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(commit)
    by_name, by_commit = (RunSpec(asked | {"REVISION": name}).provenance("logit_lens") for name in (None, commit))
    assert by_name == by_commit
    (refs / "main").write_text("9" * 40)
    (reason,) = differing(by_name, RunSpec(asked).provenance("logit_lens"))
    assert reason == f"commit: stored {commit}, asked {'9' * 40}"


def test_of_a_server_what_ran_is_kept_and_compared_with_a_run_here(cell, tmp_path, monkeypatch):
    on_server = cell | {"REMOTE": True, "DTYPE": "float32", "QUANTIZATION": "8bit", "OUT": str(tmp_path)}
    llm = dl.load_model("toy-4l")
    known(llm).running = {"dtype": "bfloat16", "quantized": False}
    monkeypatch.setattr(Run, "llm", property(lambda run: llm))
    result = result_of("logit_lens", 4)
    meta = Run(on_server).result("logit_lens", lambda llm: result)["meta"]
    assert (meta["dtype"], meta["quantization"], meta["remote"]) == ("bfloat16", None, True)
    assert Run(on_server).result("logit_lens", lambda llm: None), "the server's dtype is not ours to ask for"
    here = cell | {"OUT": str(tmp_path)}
    assert Run(here).state("logit_lens").reasons == ["dtype: stored bfloat16, asked float32"]
    assert Run(here | {"DTYPE": "bfloat16"}).state("logit_lens").word == "done"
    (reason,) = judge(Run(cell).path("logit_lens"), Run(on_server).provenance("logit_lens")).reasons
    assert reason == "remote: stored False, asked True"


def test_depth_by_difficulty_is_run_on_as_many_examples_of_each_level_as_asked_for(cell, tmp_path):
    asked = cell | {"DATASET": "sums", "N_EXAMPLES": 3, "PROBES": ["depth_by_difficulty"], "OUT": str(tmp_path)}
    run = Run(asked)
    found = run.result("depth_by_difficulty")
    fresh = dl.depth_by_difficulty(run.llm, dl.load_examples("sums", 3, seed=1))
    assert all(torch.equal(found[key], value) for key, value in fresh.items())
    assert found["meta"]["n_prompts"] == 15 and found["meta"]["source"] == "drawn"
    assert Run(asked).state("depth_by_difficulty").word == "done"


def test_a_list_of_ones_own_is_a_dataset_of_its_own(own_cell, toy, capsys):
    own, cell, before = ["a prompt of my own", "and another"], own_cell | {"DATASET": "gsm8k"}, contents(own_cell)

    def call(llm):
        return dl.logit_lens(llm, own)

    run, one = Run(cell, prompts=own), Run(cell, prompts=own[:1])
    first = run.result("logit_lens", call)
    assert torch.equal(first["res_kl_divs"], dl.logit_lens(toy, own)["res_kl_divs"])
    meta = {key: first["meta"][key] for key in ("dataset", "source", "rows_of", "n_prompts")}
    assert meta == {"dataset": run.dataset, "source": "list", "rows_of": "gsm8k", "n_prompts": 2}
    assert run.dataset.startswith("own-") and one.dataset != run.dataset and "_1exps" in one.path("logit_lens").name
    assert Run(cell | {"DATASET": "my-name"}, prompts=own).dataset == "my-name"
    of_hellaswag = Run(cell | {"DATASET": "hellaswag", "SOURCE": "embedded"}, prompts=own[:1])
    assert len(of_hellaswag.baseline) == cell["N_EXAMPLES"], "it is not the list's"
    with pytest.raises(ParamsError, match="prompts is empty"):
        Run(cell, prompts=[])
    again = Run(cell, prompts=own)
    capsys.readouterr()
    again.result("logit_lens", call)
    assert capsys.readouterr().out.endswith("nothing to compute\n")
    again.result("logit_lens", lambda llm: dl.logit_lens(llm, own[::-1]))
    assert "a call that was written differently" in capsys.readouterr().out.splitlines()[-1]
    assert {path: content for path, content in contents(own_cell).items() if path in before} == before


def test_a_call_that_was_changed_by_name_is_kept_beside_the_probes_own(own_cell, capsys):
    run, before = Run(own_cell), contents(own_cell)

    def call(llm):
        return dl.layer_effects(llm, run.prompts, part="mlp") | dl.layer_effects(llm, run.prompts, "all", part="mlp")

    changed = run.result("layer_effects", call, part="mlp")
    fresh = dl.layer_effects(run.llm, run.prompts, part="mlp")
    assert torch.allclose(changed["max_future_layer"], fresh["max_future_layer"], atol=1e-6)
    own = run.result("layer_effects")
    assert not torch.allclose(own["max_future_layer"], changed["max_future_layer"], atol=1e-3)
    assert {path: content for path, content in contents(own_cell).items() if path in before} == before
    state = run.state("layer_effects", part="mlp")
    assert state.word == "done" and state.path.name == "layer_effects_2exps@part=mlp.pt"
    assert run.state("layer_effects", part="attention").word == "missing"
    study = Study(own_cell["OUT"])
    assert study["addition", "toy-4l", "layer_effects@part=mlp"]["meta"]["settings"]["part"] == "mlp"
    assert "part" not in study["addition", "toy-4l", "layer_effects"]["meta"]["settings"]
    capsys.readouterr()
    Run(own_cell).result("layer_effects", part="mlp")
    assert "nothing to compute" in capsys.readouterr().out, "the probe's own function takes the change too"


def test_all_that_is_kept_of_a_run_is_shown_whatever_it_is_asked_for(own_cell, capsys, no_loading):
    spouse, other = Run(own_cell | OWN), Run(own_cell)
    asked = Run(own_cell | {"PROBES": ["logit_lens"]})
    assert asked.result("layer_effects")["max_future_layer"].shape == (4, 4), "it is there"
    assert asked.result("logit_lens")
    shown = dict.fromkeys(probe for probe, _ in asked.others())
    kept = {*ANY_DATASET} - {"layer_effects", "logit_lens"}
    assert {*shown} == kept, "and those of the other question"
    said = capsys.readouterr().out
    assert f"residual_erasure:{spouse.pair.label}: read from {spouse.path('residual_erasure')}" in said
    assert f"residual_erasure: read from {other.path('residual_erasure')}" in said
    assert [*asked.others()] == []
    others = Run(own_cell | {"N_EXAMPLES": 3, "PROBES": ["integrated_gradients"]})
    assert others.result("logit_lens")["meta"]["n_examples"] == 2
    assert "logitlens_2exps.pt, stale: n_prompts: stored 2, asked 3" in capsys.readouterr().out
    assert Run(own_cell | {"PROBES": ["logit_lens"], "OUT": own_cell["OUT"] + "-none"}).result("layer_effects") is None
    assert "layer_effects: left out (PROBES = logit_lens)" in capsys.readouterr().out


def test_the_depths_of_a_run_are_of_its_own_settings_and_a_mixture_is_refused_in_words(own_cell):
    both = Run(own_cell).depths()
    assert [line.startswith("toy-4l @ addition") for line in both] == [False, True]
    mixed = Run(own_cell | {"N_EXAMPLES": 1, "REPLACE": True, "SEED": 1})
    mixed.result("logit_lens")
    first, _, line = mixed.depths()
    assert first.startswith("no depth by relative_contribution: ") and "n_prompts: stored 2, asked 1" in first
    by_cosine, *others = line.partition(":")[2].split()
    assert by_cosine == "–" and "–" not in others
    assert Run(own_cell | {"OUT": own_cell["OUT"] + "-none"}).depths() == ["no result is there yet"]


def test_a_model_in_memory_is_measured_in_place_of_one_that_is_loaded(own_cell, no_loading):
    llm = dl.load_model("toy-4l")
    run = Run(own_cell | {"PROBES": ["logit_lens"]}, model=llm)
    name = run.params["MODEL"]
    assert name.startswith("own-") and run.folder.name == name, "toy-4l is the name of another model"
    found = run.result("logit_lens")
    assert torch.equal(found["res_kl_divs"], dl.logit_lens(llm, run.prompts)["res_kl_divs"])
    assert Run(own_cell, model=llm).state("logit_lens").word == "done"
    assert Run(own_cell | {"MODEL": "mine"}, model=llm).folder.name == "mine"
    with torch.no_grad():
        llm._module.model.layers[0].mlp.down_proj.weight[0, 0] += 1
    trained = Run(own_cell, model=llm)
    assert trained.params["MODEL"] != name and trained.state("logit_lens").word == "missing"


def test_what_another_process_wrote_before_it_released_the_lock_is_read(own_cell, monkeypatch, capsys):
    run = Run(own_cell | {"SEED": 2, "OUT": own_cell["OUT"] + "-other"})

    @contextlib.contextmanager
    def after_another(lock):
        save_artifact(run.path("logit_lens"), result_of("logit_lens", 4), run.provenance("logit_lens"))
        yield

    monkeypatch.setattr(runs, "hold", after_another)
    assert torch.equal(run.result("logit_lens")["res_kl_divs"], result_of("logit_lens", 4)["res_kl_divs"])
    assert capsys.readouterr().out.endswith("nothing to compute\n")


def test_a_folder_that_cannot_be_made_is_named_before_the_model_is_loaded(tmp_path):
    (tmp_path / "file").touch()
    run = Run(parameters(tmp_path / "file" / "out"))
    with pytest.raises(ParamsError, match=r"file/out/addition/toy-4l cannot be written; choose another OUT$"):
        run.result("logit_lens")
    assert "llm" not in vars(run)


def test_a_model_in_memory_is_one_of_load_model(toy, tmp_path):
    with pytest.raises(ParamsError, match=r"model= is one of dl.load_model\(model, tokenizer\)"):
        Run(parameters(tmp_path), model=toy._module)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"MODEL": "toy-4l", "MODEL_ID": "toy-8l"}, ParamsError, "MODEL is toy-4l and MODEL_ID is toy-8l, which is an"),
        ({"N_EXAMPLES": 0}, ParamsError, "N_EXAMPLES is 0; give 1 or more"),
        ({"MODEL": "a/b", "MODEL_ID": "toy-4l"}, ArtifactError, "use a short name such as Qwen2.5-7B"),
    ],
)
def test_a_wrong_parameter_is_one_line_that_names_it(cell, change, error, message):
    with pytest.raises(error, match=message) as raised:
        Run(cell | change)
    assert "\n" not in str(raised.value)


def test_a_models_params_file_applies_though_other_weights_are_given_under_its_name():
    """An option for one thing leaves the params file's other values as they are."""
    name = "Qwen2.5-Coder-1.5B-Instruct"
    said = load_params(PARAMS / f"models/real/{name}.yaml")
    for given in ({}, {"MODEL_ID": "some/file.gguf"}, {"REVISION": "v1"}, {"DTYPE": "float32"}, {"SEED": 7}):
        asked = Plan(MODELS=[name], DATASETS=["gsm8k"], **given).runs()[0].params
        expected = {key: value for key, value in said.items() if key in asked} | given
        assert {key: asked[key] for key in expected} == expected and asked["SOURCE"] == "sample"


def test_what_a_cell_leaves_open_is_as_a_sweep_has_it_and_what_it_sets_wins(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    left = dict.fromkeys(Params.model_fields) | {"MODEL": "Qwen2.5-32B", "DATASET": "aime24", "OUT": str(tmp_path)}
    (swept,) = Plan(MODELS=["Qwen2.5-32B"], DATASETS=["aime24"], OUT=str(tmp_path)).runs()
    asked = Run(left | {"In": [], "MY_NUMBER": 3}).params
    assert asked == swept.params and (asked["QUANTIZATION"], asked["N_EXAMPLES"]) == ("8bit", 5)
    said = capsys.readouterr().out.splitlines()
    places = [next(line for line in said if text in line).split(":")[0] for text in ("8bit", "N_EXAM", "PAIR")]
    assert places == ["model Qwen2.5-32B", "dataset aime24", "by default"]
    given = left | {"QUANTIZATION": "null", "N_EXAMPLES": 2, "MODEL": "owner/own", "DTYPE": "float16"}
    asked = Run(given).params
    assert (asked["QUANTIZATION"], asked["N_EXAMPLES"], asked["DTYPE"]) == (None, 2, "float16")
    assert (asked["MODEL"], asked["MODEL_ID"]) == ("own", "owner/own")
    said = capsys.readouterr().out
    assert "N_EXAMPLES" not in said and "DTYPE" not in said
    (tmp_path / "params/datasets").mkdir(parents=True)
    (tmp_path / "params/datasets/rows.yaml").write_text("REPOSITORY: owner/rows\n")
    asked = {name: RunSpec({"MODEL": "toy-4l", "DATASET": name}).params["SOURCE"] for name in ("gsm8k", "rows")}
    assert asked == {"gsm8k": "embedded", "rows": "hub"}, "a toy's samples are of the datasets that ship"


def test_a_relative_folder_is_seen_from_the_clone_root_and_elsewhere_from_where_one_is(tmp_path, monkeypatch):
    root = Path(runs.__file__).resolve().parents[2]
    monkeypatch.chdir(root / "notebooks")
    assert in_project("outputs") == root / "outputs" == in_project("../outputs").resolve()
    assert in_project("probe.ipynb").resolve() == root / "notebooks" / "probe.ipynb", "there only as seen from here"
    assert in_project(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert in_project("outputs").resolve() == tmp_path / "outputs"


def test_the_options_that_go_on_are_those_that_differ(cell):
    """Of operands that are drawn no SOURCE is one."""
    asked = RunSpec(cell | {"N_EXAMPLES": 3, "DTYPE": "float64"})
    assert _stored(asked, "logit_lens", asked.state("logit_lens")) == {"DTYPE": "float32", "N_EXAMPLES": 2}


def test_a_damaged_result_is_kept_aside_and_computed_again(own_cell, capsys):
    run = Run(own_cell)
    path = run.path("logit_lens")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=f"is kept as {path.name}.foreign-1"):
        assert run.result("logit_lens")["res_kl_divs"].shape == (4,)
    assert "it is truncated or damaged" in capsys.readouterr().out
    assert path.with_name(f"{path.name}.foreign-1").stat().st_size == 1000


@pytest.mark.parametrize("change", [{"level": "Level 5"}, {"problem": "Find it:\nAnswer: it is", "solution": "2"}])
def test_an_example_of_another_level_or_cut_elsewhere_is_another_one(cell, tmp_path, change):
    file = tmp_path / "rows.jsonl"
    rows = [{"problem": "Find it:", "level": f"Level {k}", "solution": "it is\nAnswer: 2"} for k in (1, 2)]
    asked = cell | {"DATASET": "math", "N_EXAMPLES": 1, "SOURCE": str(file), "PROBES": ["depth_by_difficulty"]}
    made_from = []
    for changed in ({}, change):
        file.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], rows[1] | changed)))
        made_from.append(RunSpec(asked).provenance("depth_by_difficulty"))
    before, after = made_from
    assert [line.split(":")[0] for line in differing(before, after)] == ["examples_hash"]


def test_a_params_files_device_map_auto_is_for_one_process_and_not_for_ranks(cell, monkeypatch):
    calls = []
    monkeypatch.setattr(runs, "join_ranks", lambda n_ranks: None)
    monkeypatch.setattr(runs, "check_fits", lambda source, **how: None)
    monkeypatch.setattr(runs, "load_model", lambda source, **how: calls.append(how) or "loaded")
    large = cell | {"MODEL": "large", "MODEL_ID": "owner/large", "DEVICE_MAP": "auto"}
    assert [Run(large | {"TENSOR_PARALLEL": n_ranks}).llm for n_ranks in (1, 4)] == ["loaded", "loaded"]
    assert [(how["device_map"], how["tensor_parallel"]) for how in calls] == [("auto", 1), (None, 4)]


def test_without_a_call_what_is_changed_is_an_argument_of_the_probes_function(own_cell):
    run = Run(own_cell)
    found = run.result("block_removal", sizes=[1, 3])
    assert found["removal_sizes"].tolist() == [1, 3]
    assert run.result("block_removal")["removal_sizes"].tolist() != [1, 3]


@pytest.mark.parametrize("method", ["gradients", "increments"])
def test_provenance_says_which_method_gave_the_gradients(own_cell, method):
    def call(llm):
        return dl.integrated_gradients(llm, "5 + 7 = ", "12", 1.0, method=method, steps=1)

    meta = Run(own_cell | OWN | {"ANSWER": "13"}).result("integrated_gradients", call)["meta"]
    assert meta["method"] == method and f"; {method};" in made_from(meta)


def test_the_model_loaded_is_the_one_that_results_are_filed_under(cell):
    for change, model_id in (
        ({"In": [], "FURTHER_PROBES": (), "MY_NUMBER": 3}, "toy-4l"),  # names of a notebook
        ({"MODEL": "Llama-3.1-8B"}, "meta-llama/Llama-3.1-8B"),
        ({"MODEL": "my-own", "MODEL_ID": "toy-8l"}, "toy-8l"),
    ):
        assert RunSpec(cell | change).params["MODEL_ID"] == model_id
