"""What status says of a folder, from its files alone; results are a stand-in's (see study.py)."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile

import pytest
import yaml

from depth_lib.files import hold
from tests.sweep.study import DEMO, ROOT, TOY_4L

ONE = (*TOY_4L, "--datasets", "gsm8k")


def state_of(command, *words):
    """The states of the cells of toy-4l on gsm8k."""
    run = command.runs_of(*ONE, *words)["gsm8k", "toy-4l"]
    return [cell["state"] for cell in run["cells"].values()]


def test_status_shows_sizes_and_ages_and_counts(command):
    command("sweep", *ONE)
    lines = command("status", *DEMO, "--datasets", "gsm8k", "hellaswag").output.splitlines()
    assert lines[0].split()[:3] == ["dataset", "model", "relative_contribution"]
    rows = {tuple(line.split()[:2]): re.split(r"  +", line)[2:] for line in lines[1:-1]}
    assert all(re.fullmatch(r"done, \d kB, \d+ s ago", cell) for cell in rows["gsm8k", "toy-4l"])
    assert rows["gsm8k", "toy-8l"] == ["missing"] * 5 and rows["hellaswag", "toy-4l"] == ["missing"] * 3 + ["–"] * 2
    assert re.fullmatch(r"outputs/demo: 5 of 24 done, 19 missing; \d kB", lines[-1])


def test_status_says_what_differs_and_a_sweep_makes_it_again(command, study):
    command("sweep", *ONE)
    (study / "file.jsonl").write_text('{"question": "1 + 1?", "answer": "2 #### 2"}\n')
    other = (*ONE, "--source", "file.jsonl")
    said = command("status", *other).output
    assert "gsm8k × toy-4l: logit_lens is stale: source: stored embedded, asked file.jsonl; " in said
    assert "prompts_hash: stored" in said and "5 stale" in said
    assert command("sweep", *other).runs == [("gsm8k", "toy-4l")]
    assert state_of(command, "--source", "file.jsonl") == ["done"] * 5


def test_another_number_of_the_hubs_prompts_is_seen_without_the_network(command):
    command("sweep", *ONE, "--source", "hub")
    assert state_of(command, "--source", "hub") == ["done"] * 5
    said = command("status", *ONE, "--source", "hub", "--n-examples", "20").output
    assert "relative_contribution is stale: n_examples: stored 10, asked 20" in said


def test_status_and_table_of_an_empty_folder_say_where_results_are(command, study):
    command("sweep", *ONE)
    hint = "there are some under outputs/demo: make {} OUT=outputs/demo"
    assert hint.format("status") in command("status", "--models", "toy-4l", "--datasets", "gsm8k").output
    assert command("table").status == 1 and command.calls == []
    assert "no results under outputs; " + hint.format("table") in command.error
    assert not list((study / "outputs").glob("effective_depth*"))


def test_unreadable_and_foreign_results_are_stale_and_left_to_the_run(command, study):
    chosen = (*DEMO, "--models", "toy-4l", "toy-8l", "--probes", "logit_lens")
    command("sweep", *chosen)
    paths = sorted(study.glob("outputs/demo/*/*/logitlens_*.pt"))
    whole = paths[0].read_bytes()
    for path, content in zip(paths, (b"", whole[:-30], b"not mine"), strict=False):
        path.write_bytes(content)
    for path, content in zip(paths[3:], (b"cposix\nsystem\n(S'touch code'\ntR.", b"}."), strict=False):
        with zipfile.ZipFile(path, "w") as stored:
            stored.writestr("x/data.pkl", content)
    runs = command.runs_of(*chosen)
    cells = [runs[path.parent.parent.name, path.parent.name]["cells"]["logit_lens"] for path in paths]
    assert [cell["state"] for cell in cells] == ["stale"] * 5 + ["done"]
    assert [why for cell in cells for why in cell["why"]] == [
        "it is empty",
        "it is truncated or damaged",
        "it is truncated or damaged",
        "it asks to load posix.system, which is not a plain tensor",
        "it has no key res_kl_divs (it has none)",
    ]
    assert not (study / "code").exists(), "no code in it was run"
    assert len(command("sweep", *chosen).calls) == 5


def test_status_knows_failed_running_and_remote_runs(command, study):
    (study / "fail-toy-4l").touch()
    command("sweep", *ONE)
    run = command.runs_of(*ONE)["gsm8k", "toy-4l"]
    assert run["failed"] == "RuntimeError: no luck; remove the file"
    assert state_of(command) == ["failed"] + ["missing"] * 4
    folder = study / "outputs/demo/gsm8k/toy-4l"
    with hold(folder / ".computing", doing="layer_effects"):
        said = command("status", *ONE).output
        assert f"gsm8k × toy-4l: running (process {os.getpid()}, for 00:0" in said and "0 of 5 results" in said
        assert state_of(command)[1] == "partial"
    jobs = folder / "logitlens_10exps.pt.job"
    jobs.mkdir()
    job = {"host": "https://ndif", "job_id": "j1", "state": "submitted", "part": "2 of 5", "submitted": "2026-01-01"}
    (jobs / "abc.json").write_text(json.dumps(job))
    said = command("status", *ONE).output
    assert "logit_lens is partial: job 2 of 5 j1 at https://ndif: submitted, submitted 2026-01-01" in said


@pytest.mark.parametrize("words", [["--help"], ["status", *DEMO], ["sweep", *ONE, "--launch", "true"]])
def test_status_and_sweeps_load_no_torch_and_no_numpy(study, words):
    code = "import contextlib, sys\nfrom depth_lib.sweep.cli import main\nwith contextlib.suppress(SystemExit):\n"
    code += "    main()\nassert not {'torch', 'numpy', 'pandas', 'transformers', 'nnsight'} & set(sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, *words], cwd=study, env=environment, check=True, capture_output=True)


@pytest.mark.slow
def test_a_thousand_finished_results_are_looked_at_in_seconds(command, study):
    models = study / "params/models/mine"
    models.mkdir()
    toy = yaml.safe_load((study / "params/models/demo/toy-4l.yaml").read_text())
    command("sweep", *TOY_4L)
    for n in range(92):
        (models / f"m{n:05}.yaml").write_text(yaml.safe_dump(toy | {"MODEL": f"m{n:05}"}))
        for dataset in ("gsm8k", "aime24", "hellaswag"):
            folder = shutil.copytree(study / f"outputs/demo/{dataset}/toy-4l", study / f"outputs/{dataset}/m{n:05}")
            for path in folder.glob("*.pt"):
                _rename_model(path, f"m{n:05}")
    for words, said in ((("status", "--set", "mine"), "1012 of 1012 done"), (("sweep", "--set", "mine"), "276 of 276")):
        start = time.monotonic()
        assert command(*words).status == 0 and command.calls == [] and said in command.output, command.output[-2000:]
        assert time.monotonic() - start < 10


def _rename_model(path, name):
    with zipfile.ZipFile(path) as stored:
        content = stored.read("result/data.pkl")
    with zipfile.ZipFile(path, "w") as stored:
        stored.writestr("result/data.pkl", content.replace(b"toy-4l", name.encode(), 1))
