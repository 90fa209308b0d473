"""What a table, a report and a shared folder cover: what is asked for, of what is there."""

import pytest

from depth_lib.params import ParamsError
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.table import covered
from tests.sweep.study import TOY_4L

TABLE = ("effective_depth.xlsx", "effective_depth.csv", "effective_depth.tex", "effective_depth.ipynb", "report.html")


def result_of(out, dataset, model, file="relative_contribution.pt"):
    folder = out / dataset / model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).touch()


@pytest.mark.parametrize("target", ["table", "report", "share"])
def test_an_unknown_name_is_refused_before_a_good_table_is_touched(make, study, target):
    make("demo", "MODELS=toy-4l")
    out = study / "outputs/demo"
    before = {name: (out / name).stat().st_mtime_ns for name in TABLE}
    for asked, said in (
        ("DATASETS=gsm", "no params/datasets/gsm.yaml; did you mean gsm8k? There are"),
        ("MODELS=toy-4", "no params/models/*/toy-4.yaml; did you mean toy-4l"),
        ("DATASETS=sums", "no results of sums × toy-4l toy-8l toy-16l under outputs/demo; choose of what is there, "),
        ("MODELS=toy-8l", "no results of hellaswag gsm8k aime24 × toy-8l under outputs/demo; choose of what is there"),
    ):
        refused = make(target, "OUT=outputs/demo", asked)
        assert refused.returncode != 0 and refused.calls == []
        assert said.replace(" × toy-4l toy-8l toy-16l", "" if target == "share" else " × toy-4l toy-8l toy-16l") in (
            refused.stderr
        )
    assert {name: (out / name).stat().st_mtime_ns for name in TABLE} == before


def test_names_that_only_the_results_have_are_known(tmp_path):
    result_of(tmp_path, "riddles", "my-own")
    asked = covered(Plan(out=str(tmp_path), models=("my-own",), datasets=("riddles",)))
    assert (asked.models, asked.datasets) == (["my-own"], ["riddles"])
    beside = covered(Plan(out=str(tmp_path / "new"), beside=(str(tmp_path),), datasets=("riddles",)))
    assert beside.datasets == ["riddles"]
    with pytest.raises(ParamsError, match="no params/datasets/riddle.yaml"):
        covered(Plan(out=str(tmp_path), datasets=("riddle",)))


def test_without_names_a_table_has_the_papers_datasets_that_are_there_and_says_what_it_leaves_out(make, study):
    make("sweep", *TOY_4L, "DATASETS=gsm8k sums mquake", "SOURCE=embedded")
    result_of(study / "outputs/demo", "gsm8k", "my-own")
    said = make("table", "OUT=outputs/demo")
    assert [call["DATASETS"] for call in said.calls] == [["gsm8k"]]
    assert "not in this table: mquake, sums (DATASETS=…); my-own (MODELS=…)\n" in said.stdout
    chosen = make("table", "OUT=outputs/demo", "DATASETS=sums gsm8k", "MODELS=toy-4l my-own")
    assert chosen.calls[0]["DATASETS"] == ["sums", "gsm8k"] and "not in this table" not in chosen.stdout


def test_without_any_of_the_papers_a_table_has_what_is_there(make, study):
    make("sweep", *TOY_4L, "DATASETS=sums addition")
    said = make("table", "OUT=outputs/demo")
    assert [call["DATASETS"] for call in said.calls] == [["addition", "sums"]] and "not in" not in said.stdout


def test_models_that_no_set_has_are_all_in_the_table(tmp_path):
    result_of(tmp_path, "gsm8k", "my-own")
    (tmp_path / "gsm8k/my-own/notes.pt").touch()
    result_of(tmp_path, "hellaswag", "toy-4l", "notes.pt")  # nobody's result
    assert covered(Plan(out=str(tmp_path))).models == []
    assert covered(Plan(out=str(tmp_path))).datasets == ["gsm8k"]


def test_what_is_shared_is_all_there_is_in_the_papers_order(tmp_path):
    for dataset in ("addition", "gsm8k", "sums", "hellaswag"):
        result_of(tmp_path, dataset, "toy-4l")
    assert covered(Plan(out=str(tmp_path)), all_there=True).datasets == ["hellaswag", "gsm8k", "addition", "sums"]


@pytest.mark.parametrize("target", ["sweep", "status", "table", "report", "share"])
def test_a_file_is_no_folder_of_results(make, study, target):
    (study / "notes").write_text("mine")
    for out, said in (
        ("notes", "OUT=notes is a file; name a folder"),
        ("notes/x", "OUT=notes/x lies in notes, which is a file; name a folder"),
    ):
        refused = make(target, f"OUT={out}", "MODELS=toy-4l")
        assert refused.returncode != 0 and refused.calls == []
        assert refused.stdout == "" and refused.stderr.startswith(f"{said}\n")
    assert (study / "notes").read_text() == "mine"


def test_two_questions_at_once_are_refused(make):
    for own in ("QUESTION", "ANSWER"):
        refused = make("sweep", *TOY_4L, "PAIR=spouse", f"{own}=12")
        assert refused.returncode != 0 and refused.calls == []
        assert refused.stderr.startswith(f"PAIR and {own} are both given; leave one out\n")
