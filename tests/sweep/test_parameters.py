"""What a run takes from a parameters cell, and what it refuses in one line before any model is loaded."""

import json
import shutil
from pathlib import Path

import pytest

from depth_lib.data.examples import load_examples
from depth_lib.embedded import toy_path
from depth_lib.params import ParamsError
from depth_lib.results.provenance import differing
from depth_lib.results.schemas import ArtifactError
from depth_lib.sweep import run as runs
from depth_lib.sweep.run import Run, in_project
from depth_lib.sweep.spec import RunSpec
from tests.sweep.cells import parameters


@pytest.fixture
def cell(tmp_path):
    return parameters(tmp_path)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"DATASET": "gsm8"}, ParamsError, "did you mean gsm8k"),
        ({"MODEL": "toy-4l", "MODEL_ID": "toy-8l"}, ParamsError, "MODEL is toy-4l and MODEL_ID is toy-8l, which is an"),
        (
            {"PROBES": ["depth_by_difficulty"]},
            ParamsError,
            "depth_by_difficulty needs one of the datasets math, mquake, sums",
        ),
        ({"PROBES": ["lens"]}, ParamsError, 'PROBES "lens" is not known'),
        ({"N_EXAMPLES": 0}, ParamsError, "N_EXAMPLES is 0"),
        ({"REMOTE": None}, ParamsError, "REMOTE is null"),
        ({"MODEL": "Qwen/Qwen2.5-7B"}, ArtifactError, "use a short name such as Qwen2.5-7B"),
    ],
)
def test_a_wrong_parameter_is_one_line_that_names_it(cell, change, error, said):
    with pytest.raises(error, match=said) as raised:
        Run(cell | change)
    assert "\n" not in str(raised.value)


def test_names_of_the_notebook_that_are_no_parameters_are_left_alone(cell):
    Run(cell | {"In": [], "Out": {}, "_": 1, "run": None, "Run": Run, "FURTHER_PROBES": (), "MY_NUMBER": 3})


def test_the_model_loaded_is_the_one_that_results_are_filed_under(cell):
    del cell["MODEL_ID"]
    assert RunSpec(cell).asked["MODEL_ID"] == "toy-4l"
    assert RunSpec(cell | {"MODEL": "Llama-3.1-8B"}).asked["MODEL_ID"] == "meta-llama/Llama-3.1-8B"
    assert RunSpec(cell | {"MODEL": "my-own", "MODEL_ID": "toy-8l"}).asked["MODEL_ID"] == "toy-8l"


def test_a_relative_folder_is_seen_from_the_clone_root_and_elsewhere_from_where_one_is(tmp_path, monkeypatch):
    root = Path(runs.__file__).resolve().parents[2]
    monkeypatch.chdir(root / "notebooks")
    assert in_project("outputs") == root / "outputs"
    assert in_project("../outputs/demo") == root / "outputs" / "demo" and in_project("../../x") == root.parent / "x"
    assert in_project("probe.ipynb") == root / "notebooks" / "probe.ipynb", "there only as seen from here"
    assert in_project(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert in_project("outputs").resolve() == tmp_path / "outputs"


@pytest.mark.parametrize("change", [{"level": "Level 5"}, {"problem": "Find it:\nAnswer: it is", "solution": "2"}])
def test_an_example_of_another_level_or_cut_elsewhere_is_another_one(cell, tmp_path, change):
    file = tmp_path / "rows.jsonl"
    rows = [{"problem": "Find it:", "level": f"Level {k}", "solution": "it is\nAnswer: 2"} for k in (1, 2)]
    asked = cell | {"DATASET": "math", "N_EXAMPLES": 1, "SOURCE": str(file), "PROBES": ["depth_by_difficulty"]}
    found = []
    for changed in ({}, change):
        file.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], rows[1] | changed)))
        found.append(RunSpec(asked).provenance("depth_by_difficulty"))
    before, after = found
    assert [line.split(":")[0] for line in differing(before, after)] == ["examples_hash"]
    assert before["prompts_hash"] == after["prompts_hash"] and not differing(before, before)
    del before["examples_hash"]  # as in files of earlier versions, which stay current
    assert not differing(before, after)


def test_what_a_run_reads_is_said_of_the_probes_that_it_runs(cell):
    levels = cell | {"DATASET": "sums", "PROBES": ["depth_by_difficulty"], "N_EXAMPLES": 3, "SEED": 42}
    (first, *_) = load_examples("sums", 3, seed=42)
    said = f"15 questions of levels 2 to 6, the first begins {first.question!r}"
    assert RunSpec(levels).reads == said
    prompts = RunSpec(cell | {"PROBES": ["logit_lens"]})
    assert prompts.reads == f"2 prompts, the first begins {prompts.prompts[0][:60]!r}"
    both = RunSpec(levels | {"PROBES": ["attention_effects", "depth_by_difficulty"]}).reads
    assert both.startswith("3 prompts, ") and both.endswith(f"; {said}")


def test_a_file_is_no_folder_of_results(cell, tmp_path):
    (tmp_path / "notes").touch()
    with pytest.raises(ParamsError, match=r"OUT=.*notes is a file; name a folder"):
        RunSpec(cell | {"OUT": str(tmp_path / "notes")})


def test_a_checkpoint_in_the_home_folder_has_a_fingerprint(cell, tmp_path, monkeypatch):
    shutil.copytree(toy_path("toy-4l"), tmp_path / "ckpt")
    monkeypatch.setenv("HOME", str(tmp_path))
    named = RunSpec(cell | {"MODEL": "own", "MODEL_ID": "~/ckpt"}).provenance("logit_lens")["weights"]
    whole = RunSpec(cell | {"MODEL": "own", "MODEL_ID": str(tmp_path / "ckpt")}).provenance("logit_lens")["weights"]
    assert named == whole and named
