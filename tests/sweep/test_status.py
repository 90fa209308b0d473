"""What status shows of a folder, from its files alone; results are a stand-in's (see study.py)."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile

import pytest

from depth_lib.embedded import toy_path
from depth_lib.files import hold
from depth_lib.results import provenance
from tests.sweep.study import DEMO, ROOT, TOY_4L

pytestmark = pytest.mark.filterwarnings("ignore:.*truncated or damaged")  # a stand-in's results have no tensors
LOG = """Loading weights:   0%|          | 0/51
contribution:   0%|          | 00:00<?\rcontribution: 100%|##########| 00:10<00:00
    relative_contribution: computed in 1.8 s, written to outputs/gsm8k/toy-4l/relative_contribution.pt
logit lens:   0%|          | 00:00<?\rlogit lens:  40%|####      | 00:10<00:15"""
GONE = "SOURCE is mine.txt, and there is no such file; check the path, or give one of hub, embedded, sample"
ONE = (*TOY_4L, "--datasets", "gsm8k")


def test_status_has_a_row_per_run_a_column_per_probe_and_a_count(command):
    command("sweep", *ONE)
    lines = command("status", *DEMO, "--datasets", "gsm8k", "hellaswag").output.splitlines()
    assert lines[0].split() == ["dataset", "model", "relative", "layer", "logit", "residual", "integrated"]
    assert lines[1].split() == ["contribution", "effects", "lens", "erasure", "gradients"]
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in lines[2:-2]}
    assert max(map(len, lines)) <= 80
    assert rows["gsm8k", "toy-4l"] == ["done"] * 5 and rows["gsm8k", "toy-8l"] == ["missing"] * 5
    assert rows["hellaswag", "toy-4l"] == ["missing"] * 3 + ["–"] * 2
    assert lines[-1] == "outputs/demo: 5 of 24 done, 19 missing"


def test_other_settings_do_not_replace_results_unless_told_to_and_the_commands_that_go_on_are_named(command, study):
    command("sweep", *ONE, "--n-examples", "12", "--DTYPE=bfloat16")
    said = "with N_EXAMPLES=12 SOURCE=embedded DTYPE=bfloat16: gsm8k × toy-4l"
    assert said in command("status", "--out", "outputs/demo").output
    results = {path: path.read_bytes() for path in study.glob("outputs/demo/*/*/*.pt")}
    refused = command("sweep", *ONE)
    assert (refused.calls, refused.status) == ([], 1)
    assert {path: path.read_bytes() for path in study.glob("outputs/demo/*/*/*.pt")} == results
    first, goes_on, anew = refused.error.splitlines()
    assert "contribution.pt was not made as asked (dtype: stored bfloat16, asked float32; n_prompts: " in first
    assert goes_on.endswith("--models=toy-4l --datasets=gsm8k --out=outputs/demo --dtype=bfloat16 --n-examples=12")
    again = command(*shlex.split(goes_on.partition("depth-lib ")[2]))
    assert (again.calls, again.status) == ([], 0), "as pasted"
    command(*shlex.split(anew.partition("depth-lib ")[2]))
    assert [call["N_EXAMPLES"] for call in command.calls if "MODEL" in call] == [10] and command.status == 0
    assert "5 of 5 done" in command("status", "--out", "outputs/demo").output


def test_a_checkpoint_that_is_gone_or_parameters_that_are_cut_short_spoil_their_own_row_only(command, study):
    checkpoint = shutil.copytree(toy_path("toy-8l"), study / "mine")
    own = ("sweep", "--models", "mine", "toy-4l", "toy-16l", "--datasets", "gsm8k", "--probes", "logit_lens")
    command(*own, "--source", "embedded", "--out", "outputs/demo")
    shutil.rmtree(checkpoint)
    (study / "outputs/demo/gsm8k/toy-16l/probe.json").write_text("{")
    shown = command("status", "--out", "outputs/demo").output
    assert f"gsm8k × mine: logit_lens is stale: the checkpoint {study}/mine does not exist; check the path" in shown
    assert "gsm8k × toy-16l: outputs/demo/gsm8k/toy-16l/probe.json cannot be read; remove it, and repeat" in shown
    assert "outputs/demo: 1 of 2 done, 1 stale" in shown


def test_a_value_of_none_in_parameters_of_before_is_none_and_is_not_looked_up(command, study):
    (study / "params/models/mine").mkdir()
    (study / "params/models/mine/eight.yaml").write_text("MODEL_ID: toy-8l\nQUANTIZATION: 8bit\nSOURCE: embedded\n")
    command("sweep", "--models", "eight", "--datasets", "gsm8k", "--quantization", "null", "--probes", "logit_lens")
    (path,) = study.glob("outputs/gsm8k/eight/probe.json")
    written = json.loads(path.read_text())
    assert written["QUANTIZATION"] == "null"
    path.write_text(json.dumps({name: None if value == "null" else value for name, value in written.items()}))
    assert "outputs: 1 of 1 done" in command("status").output


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


@pytest.mark.parametrize("words", [["status", *DEMO], ["sweep", *ONE, "--list"]])
def test_status_and_sweeps_load_no_torch_and_no_numpy(study, words):
    code = "import sys\nfrom depth_lib.sweep.cli import main\nmain()\n"
    code += "assert not {'torch', 'numpy', 'pandas', 'transformers', 'nnsight'} & set(sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, *words], cwd=study, env=environment, check=True, capture_output=True)


def test_a_file_of_prompts_is_a_dataset_of_its_own_and_stale_where_it_was_edited_or_is_gone(command, study):
    (study / "mine.txt").write_text("A prompt.\nAnother.\n")
    own = (*ONE, "--probes", "logit_lens", "--n-examples", "2")
    command("sweep", *own)
    assert command("sweep", *own, "--source", "mine.txt").runs == [("gsm8k", "toy-4l")]
    assert [path.parts[-3] for path in sorted(study.glob("outputs/demo/*/*/*.pt"))] == ["gsm8k", "mine"]
    named = (*TOY_4L, "--datasets", "my-name", "--source", "mine.txt", "--probes", "logit_lens", "--n-examples", "2")
    command("sweep", *named)
    assert "1 of 1 done" in command("status", *named).output and (study / "outputs/demo/my-name").is_dir()
    (study / "mine.txt").write_text("A prompt.\nAn edited one.\n")
    refused = command("sweep", *own, "--source", "mine.txt")
    assert "mine/toy-4l/logitlens_2exps.pt was not made as asked (prompts_hash: " in refused.error
    refused = command("sweep", *TOY_4L, "--source", "mine.txt")
    assert "SOURCE is mine.txt, the prompts of one dataset; name it: DATASETS=gsm8k, or a name of" in refused.error
    drawn = (*TOY_4L, "--datasets", "addition", "--source", "mine.txt", "--probes", "logit_lens")
    assert command("sweep", *drawn).runs == [] and "mine/toy-4l/logitlens_2exps.pt was not made" in command.error
    (study / "gsm8k.txt").write_text("A prompt.\n")
    refused = command("sweep", *TOY_4L, "--datasets", "aime24", "--source", "gsm8k.txt")
    assert "results of gsm8k.txt would be filed as the dataset gsm8k; rename the file" in refused.error
    (study / "mine.txt").unlink()
    gone = f"mine × toy-4l: logit_lens is stale: no file {study}/mine.txt; check the path\n"
    assert gone in command("status", "--out", "outputs/demo").output and "2 stale" in command.output
    assert command("status", *named).error == GONE


def test_status_without_names_shows_what_was_run_with_the_parameters_it_was_run_with(command, study):
    assert command("status").status == 1 and "outputs has no runs yet; name some: " in command.error
    command("sweep", "--models", "toy-4l", "--datasets", "gsm8k", "sums", "--source", "embedded", "--n-examples", "3")
    (study / "fail-toy-4l").touch()
    command("sweep", *DEMO, "--datasets", "aime24", "--dtype", "float64")
    lines = command("status").output.splitlines()
    demo = "outputs/demo: 0 of 9 done, 9 missing"
    assert [line for line in lines if line.startswith("outputs")] == ["outputs: 6 of 6 done", demo]
    assert "with N_EXAMPLES=3 SOURCE=embedded DTYPE=float32: gsm8k × toy-4l, sums × toy-4l" in lines
    for which in (("--models", "toy-4l", "--datasets", "gsm8k"), ("--out", "outputs", "--probes", "logit_lens")):
        shown = command("status", *which, "--n-examples", "10").output
        assert "n_prompts: stored 3, asked 10" in shown, "what is given now is compared with what is there"


def test_of_other_weights_no_options_go_on(command, study):
    command("sweep", *ONE, "--probes", "logit_lens")
    (path,) = study.glob("outputs/demo/*/*/*.pt")
    with zipfile.ZipFile(path) as stored:
        meta = json.loads(stored.read("archive/meta.json"))
    with zipfile.ZipFile(path, "w") as stored:
        stored.writestr("archive/meta.json", json.dumps(meta | {"weights": "others"}))
    refused = command("sweep", *ONE, "--probes", "logit_lens")
    first, anew = refused.error.splitlines()
    assert "weights: stored others" in first and anew.endswith("--replace")


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
    probes = {call["DATASET"]: call["PROBES"] for call in command.calls if "MODEL" in call}
    assert probes.pop("gsm8k") == ["attention_gradients", "logit_lens"]
    assert probes == dict.fromkeys(("hellaswag", "aime24"), ["logit_lens"])


def test_status_sums_what_servers_reported_of_the_jobs_of_finished_results(command, monkeypatch):
    command("sweep", *ONE)
    costs = [{"runtime": 1.25, "max_memory_usage": 3e9}, {"runtime": 0.5, "max_memory_usage": 1e9}, None]
    jobs = {"jobs": [{"id": "j", "cost": cost} for cost in costs]}
    read_meta = provenance.read_meta
    monkeypatch.setattr(provenance, "read_meta", lambda path: read_meta(path) | jobs)
    says = "gsm8k × toy-4l: 15 jobs on the server: 8.8 s in all"
    assert says in command("status", *ONE).output
