"""What status shows of a folder, from its files alone; results are a stand-in's (see study.py)."""

import json
import os
import subprocess
import sys

import pytest

from depth_lib.files import hold
from tests.sweep.study import DEMO, ROOT, TOY_4L

ONE = (*TOY_4L, "--datasets", "gsm8k")


def test_status_has_a_row_per_run_a_column_per_probe_and_a_count(command):
    command("sweep", *ONE)
    lines = command("status", *DEMO, "--datasets", "gsm8k", "hellaswag").output.splitlines()
    assert lines[0].split()[:3] == ["dataset", "model", "relative_contribution"]
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in lines[1:-1]}
    assert rows["gsm8k", "toy-4l"] == ["done"] * 5 and rows["gsm8k", "toy-8l"] == ["missing"] * 5
    assert rows["hellaswag", "toy-4l"] == ["missing"] * 3 + ["–"] * 2
    assert lines[-1] == "outputs/demo: 5 of 24 done, 19 missing"


def test_what_differs_is_shown_and_a_sweep_makes_it_again(command, study):
    command("sweep", *ONE)
    (study / "file.jsonl").write_text('{"question": "1 + 1?", "answer": "2 #### 2"}\n' * 10)
    other = (*ONE, "--source", "file.jsonl")
    shown = command("status", *other).output
    assert "gsm8k × toy-4l: logit_lens is stale: source: stored embedded, asked file.jsonl; " in shown
    assert "prompts_hash: stored" in shown and "5 stale" in shown
    assert command("sweep", *other).runs == [("gsm8k", "toy-4l")]
    assert "5 of 5 done" in command("status", *other).output


def test_prompts_that_cannot_be_read_are_said_and_make_stale_only_what_is_there(command):
    gone = (*TOY_4L, "--datasets", "gsm8k", "hellaswag", "--source", "gone.jsonl")
    command("sweep", *ONE)
    shown = command("status", *gone).output
    assert "gsm8k × toy-4l: logit_lens is stale: no file gone.jsonl" in shown and "5 stale, 3 missing" in shown
    assert "hellaswag × toy-4l: logit_lens is missing: there is none yet; no file gone.jsonl" in shown


def test_another_number_of_the_hubs_prompts_is_seen_without_the_network(command):
    command("sweep", *ONE, "--source", "hub")
    assert "5 of 5 done" in command("status", *ONE, "--source", "hub").output
    shown = command("status", *ONE, "--source", "hub", "--n-examples", "20").output
    assert "relative_contribution is stale: n_examples: stored 10, asked 20" in shown


def test_prompts_that_are_fewer_than_asked_for_are_said_and_their_results_found_again(command, study):
    (study / "three.txt").write_text("The first prompt.\nThe second one.\nAnd the third.\n")
    few = (*ONE, "--source", "three.txt")
    for n_calls in (1, 0):
        with pytest.warns(UserWarning, match="three.txt has 3 gsm8k prompts, not 10: using those"):
            assert len(command("sweep", *few).calls) == n_calls and command.status == 0
    assert (study / "outputs/demo/gsm8k/toy-4l/logitlens_3exps.pt").is_file()
    with pytest.warns(UserWarning, match="three.txt has 3"):
        assert "5 of 5 done" in command("status", *few).output


def test_results_of_as_many_prompts_as_the_hub_had_are_found_without_the_network(command, study):
    hub = (*ONE, "--source", "hub")
    command("sweep", *hub)
    for path in (study / "outputs/demo/gsm8k/toy-4l").glob("*_10exps.pt"):
        path.rename(path.with_name(path.name.replace("10exps", "7exps")))
    assert command("sweep", *hub).calls == [] and command.status == 0
    assert "5 of 5 done" in command("status", *hub).output
    assert "1 stale, 4 missing" in command("status", *hub, "--n-examples", "20").output


def test_results_of_all_prompts_there_are_stay_whatever_was_asked_for_and_whatever_their_name(command, study):
    (study / "three.txt").write_text("The first prompt.\nThe second one.\nAnd the third.\n")
    few, folder = (*ONE, "--source", "three.txt"), study / "outputs/demo/gsm8k/toy-4l"
    with pytest.warns(UserWarning, match="three.txt has 3"):
        command("sweep", *few)
        assert "5 of 5 done" in command("status", *few, "--n-examples", "5").output
        for path in folder.glob("*_3exps.pt"):
            path.rename(path.with_name(path.name.replace("3exps", "10exps")))  # as earlier versions named them
        assert command("sweep", *few).calls == [] and command.status == 0
        assert "1 stale, 4 missing" in command("status", *few, "--dtype", "float64").output


def test_of_two_results_of_the_hubs_prompts_the_one_that_is_not_stale_counts(command, study):
    hub, folder = (*ONE, "--probes", "logit_lens", "--source", "hub"), study / "outputs/demo/gsm8k/toy-4l"
    command("sweep", *hub, "--dtype", "float64")
    other = (folder / "logitlens_10exps.pt").rename(study / "other.pt")
    command("sweep", *hub)
    (folder / "logitlens_10exps.pt").rename(folder / "logitlens_7exps.pt")
    other.rename(folder / "logitlens_10exps.pt")
    for words in (hub, (*hub, "--dtype", "float64")):
        assert "1 of 1 done" in command("status", *words).output


def test_where_none_of_the_papers_models_has_results_those_there_are_are_led_to(command):
    command("sweep", "--models", "toy-4l", "--datasets", "gsm8k", "sums", "--source", "embedded")
    line = "outputs has only results of others: make status MODELS=toy-4l 'DATASETS=gsm8k sums'"
    assert command("status").output.splitlines() == [line]
    for named in (("--set", "paper"), ("--datasets", "aime24"), ("--models", "Qwen2.5-Math-7B")):
        assert command("status", *named).output.splitlines()[-1].endswith("missing"), "what is asked for is shown"
    command("sweep", "--models", "Qwen2.5-Math-7B", "--datasets", "gsm8k", "--source", "embedded")
    assert command("status").output.splitlines()[-1].endswith("missing")


def test_status_knows_failed_running_and_remote_runs(command, study):
    (study / "fail-toy-4l").touch()
    command("sweep", *ONE)
    assert "gsm8k × toy-4l: FAILED: RuntimeError: no luck; remove the file; see" in command("status", *ONE).output
    folder = study / "outputs/demo/gsm8k/toy-4l"
    jobs = folder / "logitlens_10exps.pt.job"
    jobs.mkdir()
    (jobs / "abc.json").write_text(json.dumps({"host": "https://ndif", "job_id": "j1", "state": "submitted"}))
    (folder / "mine.job").mkdir()
    (folder / "mine.job/of-somebody.json").write_text("{}")
    with hold(folder / ".computing"):
        (run,) = command.runs_of(*ONE).values()
    assert {*run["states"].values()} == {"missing"} and not run["finished"]
    job, running = run["notes"]
    assert job == "gsm8k × toy-4l: logit_lens: job j1 at https://ndif is submitted"
    assert running.startswith(f"gsm8k × toy-4l: running (process {os.getpid()} on ")


@pytest.mark.parametrize("words", [["status", *DEMO], ["sweep", *ONE, "--launch", "true"]])
def test_status_and_sweeps_load_no_torch_and_no_numpy(study, words):
    code = "import sys\nfrom depth_lib.sweep.cli import main\nmain()\n"
    code += "assert not {'torch', 'numpy', 'pandas', 'transformers', 'nnsight'} & set(sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, *words], cwd=study, env=environment, check=True, capture_output=True)
