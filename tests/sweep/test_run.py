"""A run computes what is missing or stale, reads what matches, and says which; on the smallest toy."""

import json
import shutil
import warnings

import pytest
import torch

import depth_lib as dl
from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.embedded import toy_path
from depth_lib.params import ParamsError
from depth_lib.results.provenance import why_stale
from depth_lib.sweep import run as runs
from depth_lib.sweep.run import Run
from tests.sweep.cells import ANY_DATASET, parameters


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A parameters cell whose results are all there."""
    cell = parameters(tmp_path_factory.mktemp("results"))
    run = Run(cell)
    for probe in ANY_DATASET:
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


def written(run):
    return {probe: path.stat().st_mtime_ns for probe, path in run.paths.items() if path.exists()}


def test_results_that_match_are_read_and_the_model_is_never_loaded(cell, no_loading, capsys):
    run = Run(cell)
    before = written(run)
    assert all(run.result(probe) for probe in ANY_DATASET)
    assert written(run) == before
    assert capsys.readouterr().out.count("nothing to compute") == len(ANY_DATASET)


def test_a_stored_result_is_what_the_probe_itself_returns(cell):
    llm, run = dl.load_model("toy-4l"), Run(cell)
    prompts = dl.load_prompts("addition", 2, seed=1)
    baseline = dl.load_prompts("gsm8k", 2, source="embedded")
    fresh = {
        "relative_contribution": dl.relative_contribution(llm, prompts),
        "logit_lens": dl.logit_lens(llm, prompts),
        "layer_effects": dl.layer_effects(llm, prompts, "future") | dl.layer_effects(llm, prompts, "all"),
        "residual_erasure": dl.residual_erasure(llm, QUESTION, ANSWER, baseline),
        "integrated_gradients": dl.integrated_gradients(llm, QUESTION, ANSWER),
    }
    for probe, result in fresh.items():
        stored = run.result(probe)
        assert set(stored) == {*result, "meta"}
        for key, value in result.items():
            same = stored[key] == value if key == "tokens" else torch.allclose(stored[key], value, rtol=1e-4, atol=1e-6)
            assert same, (probe, key)


def test_the_metadata_says_what_was_run_and_where(cell):
    meta = Run(cell).result("residual_erasure")["meta"]
    expected = {
        "model": "toy-4l",
        "model_id": "toy-4l",
        "revision": None,
        "dtype": "float32",
        "quantization": None,
        "dataset": "addition",
        "source": "drawn",
        "n_prompts": 2,
        "seed": 1,
        "where": "local cpu",
    }
    assert {key: meta[key] for key in expected} == expected
    assert len(meta["prompts_hash"]) == len(meta["weights"]) == 16 and meta["seconds"] > 0
    assert meta["settings"]["question"] == QUESTION and meta["settings"]["answer"] == ANSWER
    assert meta["check"]["identity_1"] <= meta["check"]["tolerance"]
    assert set(meta["versions"]) >= {"torch", "transformers", "nnsight"}


@pytest.mark.parametrize("probe", ["logit_lens", "relative_contribution"])
def test_deleting_one_result_recomputes_that_one_only(own_cell, probe):
    run = Run(own_cell)
    before = written(run)
    run.paths[probe].unlink()
    for name in ("logit_lens", "relative_contribution", "layer_effects"):
        run.result(name)
    assert [name for name, time in written(run).items() if time != before[name]] == [probe]


def test_what_a_killed_run_left_beside_a_finished_result_goes_with_the_next_one(own_cell, no_loading):
    run = Run(own_cell)
    path = run.paths["logit_lens"]
    jobs = path.with_name(f"{path.name}.job")
    jobs.mkdir()
    entry = {"settings": "abc", "probe": "logit_lens", "host": "https://ndif", "model": "toy", "artifact": str(path)}
    (jobs / "abc.json").write_text(json.dumps(entry))
    half = path.with_name(f".{path.name}.0123abcd.part")
    half.touch()
    assert run.result("logit_lens")
    assert not jobs.exists() and not half.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"DTYPE": "float64"}, "dtype: stored float32, asked float64"),
        ({"SEED": 2}, "prompts_hash: stored"),
        ({"N_EXAMPLES": 3}, "n_examples: stored 2, asked 3"),
        ({"QUANTIZATION": "8bit"}, "quantization: stored None, asked 8bit"),
        ({"REVISION": "main"}, "revision: stored None, asked main"),
    ],
)
def test_a_stale_result_is_said_with_what_differs_and_computed_again(own_cell, change, said, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(Run, "llm", property(lambda run: asked.append(run) or dl.load_model("toy-4l")))
    run = Run(own_cell | change)
    run.result("relative_contribution")
    printed = capsys.readouterr().out
    assert "is stale" in printed and said in printed and asked
    run.result("relative_contribution")
    assert "nothing to compute" in capsys.readouterr().out


def test_a_checkpoint_folder_that_was_trained_on_makes_its_results_stale(own_cell, tmp_path, capsys):
    folder = shutil.copytree(toy_path("toy-4l"), tmp_path / "checkpoint")
    own_cell |= {"MODEL": "mine", "MODEL_ID": str(folder)}
    Run(own_cell).result("logit_lens")
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-2] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    capsys.readouterr()
    Run(own_cell).result("logit_lens")
    assert "weights: stored" in capsys.readouterr().out


def test_a_damaged_result_is_kept_aside_named_and_computed_again(own_cell, capsys):
    run = Run(own_cell)
    path = run.paths["logit_lens"]
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=f"is kept as {path.name}.unreadable-1"):
        assert run.result("logit_lens")["res_kl_divs"].shape == (4,)
    assert "it is truncated or damaged" in capsys.readouterr().out
    assert path.with_name(f"{path.name}.unreadable-1").stat().st_size == 1000


def test_a_probe_that_is_not_asked_for_is_left_out(own_cell, no_loading, capsys):
    run = Run(own_cell | {"PROBES": ["logit_lens"]})
    assert run.result("layer_effects") is None
    assert "layer_effects: left out (PROBES = logit_lens)" in capsys.readouterr().out


def hellaswag_file(path, *endings):
    rows = [{"ctx": "a", "endings": [ending], "label": "0"} for ending in endings]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_layer_effects_of_prompts_that_are_all_too_short_say_so(own_cell, tmp_path):
    source = hellaswag_file(tmp_path / "short.jsonl", "cat", "dog")
    with pytest.raises(ValueError, match="no prompt has the 13 tokens that future mode needs; use longer prompts"):
        Run(own_cell | {"DATASET": "hellaswag", "SOURCE": source}).result("layer_effects")


def test_layer_effects_leave_short_prompts_out_of_future_mode_only(own_cell, tmp_path):
    source = hellaswag_file(tmp_path / "mixed.jsonl", "cat", "dog that runs away from it")
    with pytest.warns(UserWarning, match="left out: prompt 0"):
        result = Run(own_cell | {"DATASET": "hellaswag", "SOURCE": source}).result("layer_effects")
    assert len(result["max_future_layer_by_prompt"]) == 1 and len(result["max_all_layer_by_prompt"]) == 2


@pytest.mark.filterwarnings("always")
def test_what_several_probes_warn_of_is_said_once_with_dataset_and_model(own_cell, tmp_path):
    source = hellaswag_file(tmp_path / "mixed.jsonl", "cat", "dog that runs away from it")
    run = Run(own_cell | {"DATASET": "hellaswag", "SOURCE": source})
    with warnings.catch_warnings(record=True) as caught:
        for probe in ("layer_effects", "attention_effects", "local_effects"):
            run.result(probe)
    said = [str(one.message) for one in caught if "too short" in str(one.message)]
    assert len(said) == 1 and said[0].startswith("hellaswag × toy-4l: too short for future mode (13 tokens)")


def test_erasure_takes_its_baseline_from_gsm8k_and_refuses_a_file_of_another_dataset(own_cell, tmp_path):
    source = hellaswag_file(tmp_path / "file.jsonl", "dog that runs away from it", "cat that runs away from it")
    with pytest.raises(ParamsError, match="takes its baseline from gsm8k"):
        Run(own_cell | {"DATASET": "hellaswag", "SOURCE": source}).result("residual_erasure")


def test_depth_by_difficulty_is_run_on_as_many_examples_of_each_level_as_asked_for(cell, capsys, tmp_path):
    asked = cell | {"DATASET": "sums", "N_EXAMPLES": 3, "PROBES": ["depth_by_difficulty"], "OUT": str(tmp_path)}
    run = Run(asked)
    found = run.result("depth_by_difficulty")
    fresh = dl.depth_by_difficulty(run.llm, dl.load_examples("sums", 3, seed=1))
    assert all(torch.equal(found[key], value) for key, value in fresh.items())
    assert found["meta"]["n_prompts"] == 15 and found["meta"]["source"] == "drawn"
    assert run.paths["depth_by_difficulty"] == tmp_path / "sums" / "toy-4l" / "depth_by_difficulty_3exps.pt"
    Run(asked).result("depth_by_difficulty")
    assert "nothing to compute" in capsys.readouterr().out
    (reason,) = why_stale(run.paths["depth_by_difficulty"], Run(asked | {"SEED": 2}).provenance("depth_by_difficulty"))[
        :1
    ]
    assert "prompts_hash" in reason or "seed" in reason


def test_a_params_files_device_map_auto_is_for_one_process_and_not_for_ranks(cell, monkeypatch):
    calls = []
    monkeypatch.setattr(runs, "join_ranks", lambda n_ranks: None)
    monkeypatch.setattr(runs, "check_fits", lambda source, **how: None)
    monkeypatch.setattr(runs, "load_model", lambda source, **how: calls.append(how) or "loaded")
    large = cell | {"MODEL": "large", "MODEL_ID": "owner/large", "DEVICE_MAP": "auto"}
    assert [Run(large | {"TENSOR_PARALLEL": n_ranks}).llm for n_ranks in (1, 4)] == ["loaded", "loaded"]
    assert [(how["device_map"], how["tensor_parallel"]) for how in calls] == [("auto", 1), (None, 4)]


def test_a_call_and_prompts_of_ones_own_are_kept_and_told_from_the_runs(own_cell, capsys):
    asked, own = own_cell | {"PROBES": ["logit_lens"]}, ["a prompt of my own", "and another"]
    before = Run(asked).result("logit_lens")

    def call(llm):
        return dl.logit_lens(llm, own)

    first = Run(asked, prompts=own).result("logit_lens", call)
    assert "prompts_hash: stored" in capsys.readouterr().out
    assert not torch.equal(first["res_kl_divs"], before["res_kl_divs"])
    assert torch.equal(first["res_kl_divs"], dl.logit_lens(dl.load_model("toy-4l"), own)["res_kl_divs"])
    again = Run(asked, prompts=own)
    again.result("logit_lens", call)
    assert "nothing to compute" in capsys.readouterr().out
    again.result("logit_lens", call, temperature=2)
    assert "settings.temperature: stored nothing, asked 2" in capsys.readouterr().out
