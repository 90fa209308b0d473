"""What a table covers; the table's notebook is a stand-in (see study.py)."""

import threading
import time

import pytest

from depth_lib.params import ParamsError
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.table import TABLES, chosen_results, make_table
from tests.sweep.study import calls_in


def result_of(out, dataset, model):
    folder = out / dataset / model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "relative_contribution.pt").touch()


@pytest.mark.parametrize("target", ["table", "share"])
def test_an_unknown_name_is_refused_before_a_good_table_is_touched(command, study, target):
    out = study / "outputs/demo"
    result_of(out, "gsm8k", "toy-4l")
    command("table", "--out", "outputs/demo")
    before = {name: (out / name).stat().st_mtime_ns for name in TABLES}
    for words, message in (
        (("--datasets", "gsm"), 'DATASETS "gsm" is not known; did you mean gsm8k?'),
        (("--models", "toy-8l"), 'use "toy-4l", of which outputs/demo has results'),
        (("--set", "ndif"), "outputs/demo has no results of these models and datasets together"),
    ):
        assert command(target, "--out", "outputs/demo", *words).status == 1 and command.calls == []
        assert message in command.error
    assert {name: (out / name).stat().st_mtime_ns for name in TABLES} == before


def test_a_result_that_cannot_be_read_is_named_on_the_terminal_too(command, study):
    result_of(study / "outputs", "gsm8k", "toy-4l")
    with pytest.warns(UserWarning, match="relative_contribution.pt is no relative_contribution artifact"):
        command("table")


def test_a_folder_without_results_is_named_with_the_next_step(command, study):
    (study / "outputs").mkdir()
    assert command("table").status == 1 and command.calls == []
    assert f"no artifacts under {study}/outputs; run: make sweep, or give the folder of a study" in command.error
    assert not list((study / "outputs").glob("effective_depth*"))


def test_names_that_only_the_results_have_are_known(tmp_path):
    result_of(tmp_path, "riddles", "my-own")
    plan = Plan(OUT=str(tmp_path), MODELS=["my-own"], DATASETS=["riddles"])
    assert chosen_results(plan) == (["my-own"], ["riddles"])
    with pytest.raises(ParamsError, match='DATASETS "riddle" is not known; did you mean riddles'):
        chosen_results(Plan(OUT=str(tmp_path), DATASETS=["riddle"]))


def test_without_names_a_table_has_every_dataset_that_has_results(command, study):
    out = study / "outputs"
    for dataset, model in (("gsm8k", "toy-4l"), ("sums", "toy-4l"), ("mquake", "my-own")):
        result_of(out, dataset, model)
    (call,) = command("table").calls
    assert (call["MODELS"], call["DATASETS"]) == ([], ["gsm8k", "mquake", "sums"])
    (call,) = command("table", "--models", "my-own").calls
    assert (call["MODELS"], call["DATASETS"]) == (["my-own"], ["mquake"])
    (call,) = command("table", "--datasets", "sums", "gsm8k").calls
    assert call["DATASETS"] == ["sums", "gsm8k"]


def test_the_set_whose_name_a_folder_has_is_meant_there():
    assert "Qwen2.5-7B-Instruct" in Plan(OUT="somewhere").models
    assert {*Plan(OUT="outputs/demo").models} == {"toy-4l", "toy-8l", "toy-16l"}
    assert "SmolLM2-135M-Instruct" in Plan(OUT="somewhere", SET="real").models


def test_two_tables_at_once_are_made_one_after_the_other(command, study, capsys):
    result_of(study / "outputs/demo", "gsm8k", "toy-4l")
    gate = study / "gate"
    gate.touch()
    statuses, printed = [], ""
    both = [threading.Thread(target=lambda: statuses.append(make_table(Plan(OUT="outputs/demo")))) for _ in range(2)]
    for thread in both:
        thread.start()
    while "waiting: process" not in printed or not calls_in(study):
        time.sleep(0.05)
        printed += capsys.readouterr().out
    gate.unlink()
    for thread in both:
        thread.join()
    assert statuses == [0, 0] and len(calls_in(study)) == 2
    assert not list((study / "outputs/demo").glob("*.partial*"))
