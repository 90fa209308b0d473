"""What a table covers; the table's notebook is a stand-in (see study.py)."""

import os
import signal
import time

import pytest

from depth_lib.sweep import cli
from depth_lib.sweep.processes import Notebook
from depth_lib.sweep.table import TABLES
from tests.sweep import stand_in

pytestmark = pytest.mark.filterwarnings("ignore:.*truncated or damaged")


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
        (("--set", "ndif"), "no model of these on these datasets, of which outputs/demo has results"),
    ):
        assert command(target, "--out", "outputs/demo", *words).status == 1 and command.calls == []
        assert message in command.error
    assert {name: (out / name).stat().st_mtime_ns for name in TABLES} == before


def test_a_folder_without_results_is_named_with_the_next_step(command, study):
    (study / "outputs").mkdir()
    assert command("table").status == 1 and command.calls == []
    assert (
        f"no artifacts under {study}/outputs; run: " in command.error
        and "or give the folder of a study" in command.error
    )
    assert not list((study / "outputs").glob("effective_depth*"))


def test_without_names_a_table_has_every_dataset_that_has_results(command, study):
    out = study / "outputs"
    for dataset, model in (("gsm8k", "toy-4l"), ("riddles", "toy-4l"), ("mquake", "my-own")):
        result_of(out, dataset, model)
    (call,) = command("table").calls
    assert (call["MODELS"], call["DATASETS"]) == ([], ["gsm8k", "mquake", "riddles"])
    (call,) = command("table", "--models", "owner/my-own").calls
    assert (call["MODELS"], call["DATASETS"]) == (["my-own"], ["mquake"]), "as a sweep took it"
    (call,) = command("table", "--datasets", "riddles", "gsm8k").calls
    assert call["DATASETS"] == ["riddles", "gsm8k"], "names that only the results have"
    assert 'DATASETS "riddle" is not known; did you mean riddles' in command("table", "--datasets", "riddle").error


@pytest.mark.parametrize("words", [("demo",), ("real",), ("sweep", "--set", "demo", "--out", "outputs/demo")])
def test_after_runs_the_table_is_made_if_a_result_is_newer(command, study, monkeypatch, words):
    monkeypatch.setattr(cli, "run_unfinished", lambda plan: 0)
    out, model = study / ("outputs/real" if words == ("real",) else "outputs/demo"), "toy-4l"
    result_of(out, "gsm8k", model)
    assert [len(command(*words).calls) for _ in range(2)] == [1, 0] and command.status == 0
    assert f"table and figures: no result is newer than outputs/{out.name}/effective_depth.ipynb" in command.output
    (out / "report.html").unlink()
    assert [len(command(*words).calls) for _ in range(2)] == [1, 0], "the page was not there"
    later = time.time() + 1
    os.utime(out / "gsm8k" / model / "relative_contribution.pt", (later, later))
    assert len(command(*words).calls) == 1


def test_a_table_that_leaves_a_file_of_before_has_failed(command, study, monkeypatch):
    result_of(study / "outputs", "gsm8k", "toy-4l")
    assert [len(command("table").calls) for _ in range(2)] == [1, 1], "whenever it is asked for"
    monkeypatch.setattr(stand_in, "TABLES", TABLES[1:])
    assert command("table").status == 1
    assert f"table and figures: FAILED: the notebook ended, and outputs/{TABLES[0]} is not written" in command.output


def test_a_result_that_cannot_be_read_is_named_on_the_terminal_too(command, study):
    result_of(study / "outputs", "gsm8k", "toy-4l")
    with pytest.warns(UserWarning, match="relative_contribution.pt is no relative_contribution artifact"):
        command("table")


def test_a_table_that_dies_without_a_word_is_said(spawning, study, monkeypatch):
    result_of(study / "outputs/demo", "gsm8k", "toy-4l")
    monkeypatch.setattr(Notebook, "command", lambda notebook: ["sh", "-c", "exit 5"])
    assert spawning("table", "--out", "outputs/demo").status == 1
    assert "table and figures: FAILED: its command ended with status 5; see outputs/demo/effective" in spawning.output


def test_ctrl_c_ends_a_table_with_a_sentence(spawning, study, monkeypatch):
    result_of(study / "outputs/demo", "gsm8k", "toy-4l")
    monkeypatch.setattr(Notebook, "command", lambda notebook: ["sh", "-c", f"kill -INT {os.getpid()}; sleep 600"])
    assert spawning("table", "--out", "outputs/demo").status == 128 + signal.SIGINT
    assert "table and figures: stopped by SIGINT; what was finished is kept" in spawning.output
