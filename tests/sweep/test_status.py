"""What status shows of a folder, from its files alone; results are a stand-in's (see study.py)."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from depth_lib.files import hold
from depth_lib.results.artifacts import load_artifact
from depth_lib.results.provenance import read_meta
from depth_lib.results.schemas import MissingArtifact
from depth_lib.sweep import status
from tests.sweep.study import DEMO, ROOT, TOY_4L

LOG = """Loading weights:   0%|          | 0/51
contribution:   0%|          | 00:00<?\rcontribution: 100%|##########| 00:10<00:00
    relative_contribution: computed in 1.8 s, written to outputs/gsm8k/toy-4l/relative_contribution.pt
logit lens:   0%|          | 00:00<?\rlogit lens:  40%|####      | 00:10<00:15"""
GONE = "SOURCE is gone.txt, and there is no such file; check the path, or give one of hub, embedded, sample"
ONE = (*TOY_4L, "--datasets", "gsm8k")
ONE_RUN = ("sweep", *ONE)


def test_status_has_a_row_per_run_a_column_per_probe_and_a_count(command):
    command("sweep", *ONE)
    lines = command("status", *DEMO, "--datasets", "gsm8k", "hellaswag").output.splitlines()
    assert lines[0].split() == ["dataset", "model", "relative", "layer", "logit", "residual", "integrated"]
    assert lines[1].split() == ["contribution", "effects", "lens", "erasure", "gradients"]
    assert max(map(len, lines)) <= 80
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in lines[2:-1]}
    assert rows["gsm8k", "toy-4l"] == ["done"] * 5 and rows["gsm8k", "toy-8l"] == ["missing"] * 5
    assert rows["hellaswag", "toy-4l"] == ["missing"] * 3 + ["–"] * 2
    assert lines[-1] == "outputs/demo: 5 of 24 done, 19 missing"


def test_other_settings_do_not_replace_results_unless_told_to_and_a_study_remembers_its_own(command, study):
    command("sweep", *ONE, "--n-examples", "20", "--DTYPE=bfloat16")
    file = "outputs/demo/study.yaml: DTYPE=bfloat16 N_EXAMPLES=20"
    assert file in command("status", *ONE).output and "5 of 5 done" in command("status", *ONE).output
    again = command("sweep", *ONE)
    assert (again.calls, again.status) == ([], 0) and file in again.output
    others = (*ONE, "--n-examples", "20", "--dtype", "float64")
    assert (
        "residual_erasure, integrated_gradients are stale: dtype: stored bfloat16, asked float64\n"
        in command("status", *others).output
    )
    refused = command("sweep", *others)
    assert (refused.calls, refused.status) == ([], 1)
    assert (
        "relative_contribution.pt was made with other settings (dtype: stored bfloat16, asked float64)" in refused.error
    )
    remedy = re.search("give another OUT, or .* run: .*depth-lib (.*)", refused.error)[1]
    assert len(command(*shlex.split(remedy)).calls) == 1 and command.status == 0, "as pasted"
    assert "5 of 5 done" in command("status", *ONE).output, "the new settings are those of the study"


def test_the_source_of_one_models_run_is_not_that_of_the_others_and_the_source_of_several_is(command, study):
    others = ("sweep", "--models", "toy-8l", "toy-16l", "--datasets", "gsm8k", "--out", "outputs/demo")
    command(*ONE_RUN, "--source", "sample", "--n-examples", "3")
    assert (study / "outputs/demo/study.yaml").read_text() == "N_EXAMPLES: 3\n"
    assert {(call["SOURCE"], call["N_EXAMPLES"]) for call in command(*others).calls} == {("embedded", 3)}
    command(*others, "--source", "sample", "--replace")
    assert "N_EXAMPLES=3 SOURCE=sample" in command(*ONE_RUN).output and command.status == 0


def test_commands_that_errors_name_have_the_parameters_of_the_study(command, study):
    command("sweep", *ONE, "--n-examples", "20")
    with pytest.raises(MissingArtifact, match="depth-lib sweep --models=toy-8l .*--out=outputs/demo --n-examples=20"):
        load_artifact("outputs/demo/gsm8k/toy-8l/logitlens_20exps.pt")


def test_prompts_that_cannot_be_read_are_said_and_make_stale_only_what_is_there(command, study):
    (study / "gone.txt").write_text("A prompt.\n" * 10)
    gone = (*TOY_4L, "--datasets", "gsm8k", "--source", "gone.txt")
    command("sweep", *gone, "--probes", "logit_lens")
    (study / "gone.txt").unlink()
    shown = command("status", "--out", "outputs/demo").output
    assert (
        f"gone × toy-4l: logit_lens is stale: no file {study}/gone.txt; check the path\n" in shown
        and "1 stale" in shown
    )
    assert command("status", *gone).error == GONE


def test_another_number_of_the_hubs_prompts_or_another_definition_is_seen_without_the_network(command, study):
    hub = (*ONE, "--source", "hub")
    command("sweep", *hub)
    assert "5 of 5 done" in command("status", *hub).output
    shown = command("status", *hub, "--n-examples", "20").output
    assert "logit_lens, residual_erasure are stale: n_examples: stored 10, asked 20" in shown
    assert "1 of 5 done, 4 stale" in shown, "gradients read no prompts"
    yaml = study / "params/datasets/gsm8k.yaml"
    text = yaml.read_text()
    try:
        for change in (("SPLIT: test", "SPLIT: train"), ("{{ question }}", "{{ question }}!")):
            yaml.write_text(text.replace(*change))
            assert (
                "relative_contribution, layer_effects, logit_lens are stale: definition: stored"
                in command("status", *hub).output
            )
    finally:
        yaml.write_text(text)


def test_a_file_of_prompts_is_a_dataset_of_its_own_and_other_files_do_not_replace_it(command, study):
    (study / "mine.txt").write_text("A prompt.\nAnother.\n")
    own = (*ONE, "--probes", "logit_lens", "--n-examples", "2")
    command("sweep", *own)
    assert command("sweep", *own, "--source", "mine.txt").runs == [("gsm8k", "toy-4l")]
    assert [path.parts[-3] for path in sorted(study.glob("outputs/demo/*/*/*.pt"))] == ["gsm8k", "mine"]
    named = (*TOY_4L, "--datasets", "my-name", "--source", "mine.txt", "--probes", "logit_lens", "--n-examples", "2")
    command("sweep", *named)
    assert "1 of 1 done" in command("status", *named).output and (study / "outputs/demo/my-name").is_dir()
    (study / "mine.txt").write_text("A prompt.\nAn edited one.\n")
    assert "mine/toy-4l/logitlens_2exps.pt was made with" in command("sweep", *own, "--source", "mine.txt").error
    refused = command("sweep", *TOY_4L, "--source", "mine.txt")
    assert "toy-4l on hellaswag and toy-4l on gsm8k would share the folder outputs/demo/mine/toy-4l; " in refused.error
    (study / "gsm8k.txt").write_text("A prompt.\n")
    refused = command("sweep", *TOY_4L, "--datasets", "aime24", "--source", "gsm8k.txt")
    assert "results of gsm8k.txt would be filed as the dataset gsm8k; rename the file" in refused.error


def test_another_file_does_not_take_the_place_of_a_datasets_own(command, study):
    (study / "others.txt").write_text("Other prompts.\n")
    (study / "rows.jsonl").write_text('{"question": "1 + 1?"}\n')
    (study / "params/datasets/own.yaml").write_text("N_EXAMPLES: 1\nFILE: rows.jsonl\nTEMPLATE: '{{ question }}'\n")
    own = (*TOY_4L, "--datasets", "own", "--probes", "logit_lens")
    try:
        command("sweep", *own, "--source", "others.txt")
        assert "1 of 1 done" in command("status", *own).output
    finally:
        (study / "params/datasets/own.yaml").unlink()


def test_probes_that_read_no_prompts_run_once_per_model(command):
    command("sweep", *TOY_4L, "--probes", "attention_gradients", "logit_lens", "--source", "embedded")
    probes = {call["DATASET"]: call["PROBES"] for call in command.calls}
    assert probes.pop("gsm8k") == ["attention_gradients", "logit_lens"]
    assert probes == dict.fromkeys(("hellaswag", "aime24"), ["logit_lens"])


def test_status_without_names_shows_what_was_run_with_the_parameters_it_was_run_with(command, study):
    assert command("status").status == 1 and "outputs has no runs yet; name some: " in command.error
    command("sweep", "--models", "toy-4l", "--datasets", "gsm8k", "sums", "--source", "embedded", "--n-examples", "3")
    (study / "fail-toy-4l").touch()
    command("sweep", *DEMO, "--datasets", "aime24", "--dtype", "float64")
    demo = "outputs/demo: 0 of 9 done, 9 missing"
    assert [line for line in command("status").output.splitlines() if line.startswith("outputs")] == [
        "outputs/study.yaml: N_EXAMPLES=3",
        "outputs: 6 of 6 done",
        "outputs/demo/study.yaml: DTYPE=float64",
        demo,
    ]
    assert command("status", "--out", "outputs/demo").output.splitlines()[-1] == demo
    named = command("status", "--models", "toy-4l", "--datasets", "gsm8k", "--n-examples", "10").output
    assert "n_prompts: stored 3, asked 10" in named, "what is named is compared with what is asked for"


def test_status_knows_failed_running_and_remote_runs(command, study):
    (study / "fail-toy-4l").touch()
    command("sweep", *ONE)
    assert "gsm8k × toy-4l: FAILED: RuntimeError: no luck; remove the file; see" in command("status", *ONE).output
    (study / "outputs/demo/gsm8k/toy-4l/probe.log").write_text(LOG)
    folder = study / "outputs/demo/gsm8k/toy-4l"
    jobs = folder / "logitlens_10exps.pt.job"
    jobs.mkdir()
    (jobs / "abc.json").write_text(json.dumps({"host": "https://ndif", "job_id": "j1", "state": "submitted"}))
    (folder / "mine.job").mkdir()
    (folder / "mine.job/of-somebody.json").write_text("{}")
    with hold(folder / ".computing"):
        shown = command("status", *ONE).output.splitlines()
    assert "outputs/demo: 0 of 5 done, 5 missing" in shown
    assert "gsm8k × toy-4l: logit_lens: job j1 at https://ndif is submitted" in shown
    (running,) = [line for line in shown if "running" in line]
    assert running.startswith(f"gsm8k × toy-4l: running (process {os.getpid()} on ")
    assert running.endswith(", probe 2/5: logit lens, 40 %")


def test_status_sums_what_servers_reported_of_the_jobs_of_finished_results(command, monkeypatch):
    command("sweep", *ONE)
    costs = [{"runtime": 1.25, "max_memory_usage": 3e9}, {"runtime": 0.5, "max_memory_usage": 1e9}, None]
    jobs = {"jobs": [{"id": "j", "cost": cost} for cost in costs]}
    monkeypatch.setattr(status, "read_meta", lambda path: read_meta(path) | jobs)
    says = "gsm8k × toy-4l: 15 jobs on the server: 8.8 s in all, at most 3.00 GB beside the weights"
    assert says in command("status", *ONE).output


@pytest.mark.parametrize("words", [["status", *DEMO], ["sweep", *ONE, "--launch", "true"]])
def test_status_and_sweeps_load_no_torch_and_no_numpy(study, words):
    code = "import sys\nfrom depth_lib.sweep.cli import main\nmain()\n"
    code += "assert not {'torch', 'numpy', 'pandas', 'transformers', 'nnsight'} & set(sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, *words], cwd=study, env=environment, check=True, capture_output=True)
