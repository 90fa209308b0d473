"""What a table covers, and when it is made again; runs and tables are stand-ins (see study.py)."""

import os
import shutil
import threading

import pytest

from depth_lib.params import ParamsError
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.table import TABLES, covered, make_table
from tests.sweep.study import TOY_4L, calls_in


def result_of(out, dataset, model, file="relative_contribution.pt"):
    folder = out / dataset / model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).touch()
    return folder / file


@pytest.mark.parametrize("target", ["table", "report", "share"])
def test_an_unknown_name_is_refused_before_a_good_table_is_touched(command, study, target):
    result_of(out := study / "outputs/demo", "gsm8k", "toy-4l")
    command("table", "--out", "outputs/demo")
    before = {name: (out / name).stat().st_mtime_ns for name in TABLES}
    for words, said in (
        (("--datasets", "gsm"), "no params/datasets/gsm.yaml; did you mean gsm8k? There are"),
        (("--models", "toy-4"), "no params/models/*/toy-4.yaml; did you mean toy-4l"),
        (("--datasets", "sums"), "under outputs/demo; choose of what is there, gsm8k × toy-4l"),
        (("--models", "toy-8l"), "no results of gsm8k × toy-8l under outputs/demo; choose of what is there"),
    ):
        assert command(target, "--out", "outputs/demo", *words).status == 1 and command.calls == []
        assert said in command.error
    assert {name: (out / name).stat().st_mtime_ns for name in TABLES} == before


def test_names_that_only_the_results_have_are_known(tmp_path):
    result_of(tmp_path, "riddles", "my-own")
    asked = covered(Plan(out=str(tmp_path), models=("my-own",), datasets=("riddles",)))
    assert (asked.models, asked.datasets) == (["my-own"], ["riddles"])
    beside = covered(Plan(out=str(tmp_path / "new"), beside=(str(tmp_path),), datasets=("riddles",)))
    assert beside.datasets == ["riddles"]
    with pytest.raises(ParamsError, match="no params/datasets/riddle.yaml"):
        covered(Plan(out=str(tmp_path), datasets=("riddle",)))


def test_without_names_a_table_has_the_papers_datasets_that_are_there_and_says_what_it_leaves_out(tmp_path):
    for dataset, model in (("gsm8k", "toy-4l"), ("sums", "toy-4l"), ("mquake", "toy-4l"), ("gsm8k", "my-own")):
        result_of(tmp_path, dataset, model)
    plan = Plan(out=str(tmp_path))
    assert covered(plan).datasets == ["gsm8k"]
    assert covered(plan).left_out == "mquake (DATASETS=…), sums (DATASETS=…), my-own (MODELS=…)"
    chosen = covered(Plan(out=str(tmp_path), datasets=("sums", "gsm8k"), models=("toy-4l", "my-own")))
    assert (chosen.datasets, chosen.left_out) == (["sums", "gsm8k"], "")
    assert covered(plan, all_there=True).datasets == ["gsm8k", "mquake", "sums"], "what is shared: the papers' first"
    shutil.rmtree(tmp_path / "gsm8k")
    assert covered(plan).datasets == ["mquake", "sums"], "without any of the papers' all that is there"


def test_models_that_no_set_has_are_all_in_the_table(tmp_path):
    result_of(tmp_path, "gsm8k", "my-own")
    result_of(tmp_path, "hellaswag", "toy-4l", "notes.pt")  # nobody's result
    assert covered(Plan(out=str(tmp_path))) == covered(Plan(out=str(tmp_path), datasets=("gsm8k",)))
    assert covered(Plan(out=str(tmp_path))).models == []


def test_a_folder_without_a_set_is_that_of_the_results_in_it(tmp_path):
    assert "Qwen2.5-7B-Instruct" in Plan(out=str(tmp_path)).all_models
    result_of(tmp_path, "gsm8k", "toy-8l")
    assert Plan(out=str(tmp_path)).all_models == ["toy-4l", "toy-8l", "toy-16l"]
    assert "SmolLM2-135M-Instruct" in Plan(out=str(tmp_path), set="real").all_models


def test_the_table_is_made_again_when_its_results_are_others_of_whatever_time(command, study):
    command("sweep", *TOY_4L, "--datasets", "gsm8k")
    demo = study / "outputs/demo"
    result = demo / "gsm8k/toy-4l/logitlens_10exps.pt"

    def replace_by_an_old_one():  # as rsync -a does
        result.write_text("replaced")
        os.utime(result, (0, 0))

    table = ("table", "--out", "outputs/demo")
    assert len(command(*table).calls) == 1
    for change in (replace_by_an_old_one, result.unlink, (demo / "effective_depth.xlsx").unlink):
        change()
        assert len(command(*table).calls) == 1 and command.status == 0
        assert command(*table).calls == [] and command.status == 0


def test_two_tables_at_once_are_made_one_after_the_other(command, study, monkeypatch):
    command("sweep", *TOY_4L, "--datasets", "gsm8k")
    monkeypatch.setenv("TAKES", "0.5")
    statuses = []
    both = [threading.Thread(target=lambda: statuses.append(make_table(Plan(out="outputs/demo")))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert statuses == [0, 0]
    assert sum(call["notebook"].endswith("effective_depth.ipynb") for call in calls_in(study)) == 1, "one reads it"
    assert not list((study / "outputs/demo").glob("*.partial*"))
