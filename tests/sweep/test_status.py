"""What make status says of results that are done, stale, damaged, failed or on their way, and how soon."""

import json
import re
import shutil
import subprocess
import sys
import time
import zipfile

import yaml

from depth_lib.lock import hold
from depth_lib.results.schemas import PROBES
from depth_lib.sweep.status import ProbeStatus, RunStatus, progress
from tests.sweep.study import SWEEP, TOY_4L, needs_make, status

pytestmark = needs_make


def test_status_shows_sizes_and_ages_and_counts(make):
    make("sweep", *TOY_4L, "DATASETS=gsm8k")
    lines = make("status", "SET=demo", "DATASETS=gsm8k hellaswag").stdout.splitlines()
    assert lines[0].split()[:3] == ["dataset", "model", "relative_contribution"]
    rows = {tuple(line.split()[:2]): re.split(r"  +", line)[2:] for line in lines[1:-1]}
    assert all(re.fullmatch(r"done, \d kB, \d+ s ago", cell) for cell in rows["gsm8k", "toy-4l"])
    assert rows["gsm8k", "toy-8l"] == ["missing"] * 5 and rows["hellaswag", "toy-4l"] == ["missing"] * 3 + ["–"] * 2
    assert re.fullmatch(r"outputs/demo: 5 of 24 done, 19 missing; \d kB", lines[-1])


def test_status_says_what_differs_and_a_sweep_makes_it_again(make, study):
    make("sweep", *TOY_4L, "DATASETS=gsm8k")
    (study / "file.jsonl").write_text('{"question": "1 + 1?", "answer": "2 #### 2"}\n')
    other = (*TOY_4L, "DATASETS=gsm8k", "SOURCE=file.jsonl")
    said = make("status", *other).stdout
    assert "gsm8k × toy-4l: logit_lens is stale: source: stored embedded, asked file.jsonl; n_prompts: stored" in said
    assert "prompts_hash: stored" in said and "5 stale" in said
    assert make("sweep", *other).runs == [("gsm8k", "toy-4l")]
    assert {cell["state"] for cell in status(make, *other)["gsm8k", "toy-4l"]["cells"].values()} == {"done"}
    assert make("sweep", *other).calls == []


def test_status_and_table_of_an_empty_folder_say_where_results_are(make, study):
    make("sweep", *TOY_4L, "DATASETS=gsm8k")
    hint = "there are some under outputs/demo: make {} OUT=outputs/demo"
    assert hint.format("status") in make("status", "MODELS=toy-4l", "DATASETS=gsm8k").stdout
    start = time.monotonic()
    said = make("table")
    assert time.monotonic() - start < 5 and said.returncode != 0 and said.calls == []
    assert "no results under outputs; " + hint.format("table") in said.stderr
    assert not list((study / "outputs").glob("effective_depth*"))


def test_unreadable_and_foreign_results_are_stale_and_left_to_the_run(make, study):
    def packed(path, content):
        with zipfile.ZipFile(path, "w") as stored:
            stored.writestr("x/data.pkl", content)

    chosen = (*SWEEP, "MODELS=toy-4l toy-8l", "DATASETS=aime24 hellaswag gsm8k", "PROBES=logit_lens")
    make(*chosen)
    paths = sorted(study.glob("outputs/demo/*/*/logitlens_*.pt"))
    whole = paths[0].read_bytes()
    paths[0].write_bytes(b"")
    paths[1].write_bytes(whole[:-30])
    paths[2].write_bytes(b"not mine")
    packed(paths[3], b"cposix\nsystem\n(S'touch code'\ntR.")
    packed(paths[4], b"}.")
    runs = status(make, *chosen[1:])
    cells = [runs[path.parent.parent.name, path.parent.name]["cells"]["logit_lens"] for path in paths]
    assert [cell["state"] for cell in cells] == ["stale"] * 5 + ["done"]
    assert [why for cell in cells for why in cell["why"]] == [
        "it is empty",
        "it is truncated or damaged",
        "it is truncated or damaged",
        "it asks to load posix.system, which is not a plain tensor",
        "it has no meta: not written by depth_lib",
    ]
    assert not (study / "code").exists(), "no code in it was run"
    assert len(make(*chosen).calls) == 5


def test_status_knows_failed_running_and_remote_runs(make, study):
    (study / "fail-toy-4l").touch()
    make(*SWEEP, *TOY_4L, "DATASETS=gsm8k")
    run = status(make, *TOY_4L, "DATASETS=gsm8k")["gsm8k", "toy-4l"]
    assert run["failed"] == "RuntimeError: no luck; remove the file"
    assert [cell["state"] for cell in run["cells"].values()] == ["failed"] + ["missing"] * 4
    folder = study / "outputs/demo/gsm8k/toy-4l"
    with hold(folder / ".running") as running, hold(folder / ".computing") as computing:
        running.note(begun=0.0)
        computing.note(probe="layer_effects", label="layer effects, future", done=3, total=10, share=0.15)
        said = make("status", *TOY_4L, "DATASETS=gsm8k").stdout
        assert re.search(
            r"gsm8k × toy-4l: running \(process \d+\): layer effects, future 3/10 prompts, "
            r"0 of 5 probes, 0:0\d of about 0:\d\d",
            said,
        ), said
        cells = status(make, *TOY_4L, "DATASETS=gsm8k")["gsm8k", "toy-4l"]["cells"]
        assert cells["layer_effects"]["state"] == "partial"
    jobs = folder / "logitlens_10exps.pt.job"
    jobs.mkdir()
    (jobs / "abc.json").write_text(
        json.dumps(
            {
                "host": "https://ndif",
                "job_id": "j1",
                "state": "submitted",
                "part": "2 of 5",
                "submitted": "2026-01-01T00:00:00+00:00",
            }
        )
    )
    said = make("status", *TOY_4L, "DATASETS=gsm8k").stdout
    assert "logit_lens is partial: job 2 of 5 j1 at https://ndif: submitted, submitted 2026-01-01T00:00:00" in said


def test_an_estimate_leaves_the_start_out_and_knows_that_probes_take_unequal_time():
    def run(done, probe, share, computing, spent):
        cells = {name: ProbeStatus("missing") for name in PROBES}
        for name, seconds in done.items():
            cells[name] = ProbeStatus("done", age=1, seconds=seconds)
        now = {"since": time.time() - spent, "computing_since": time.time() - computing, "begun": 0.0}
        now |= {"probe": probe, "share": share, "label": probe, "done": 1, "total": 10, "unit": "layer"}
        return RunStatus("gsm8k", "toy", cells, now, None, False, "", "")

    first = progress(run({}, "relative_contribution", 0.1, computing=0.1, spent=30))
    assert first == "relative_contribution 1/10 layers, 0 of 5 probes, 0:30 of about 0:55", "26 s, and the start once"
    costs = dict(zip(PROBES, (1, 50, 5, 5, 20), strict=True))
    later = progress(run({"relative_contribution": 2}, "layer_effects", 0.5, computing=50, spent=60), costs)
    assert later == "layer_effects 1/10 layers, 1 of 5 probes, 1:00 of about 2:50"


def test_status_and_make_load_no_torch_and_no_numpy(study):
    code = "import contextlib, runpy, sys\nwith contextlib.suppress(SystemExit):\n"
    code += "    runpy.run_module('depth_lib.sweep', run_name='__main__')\n"
    code += "assert not {'torch', 'numpy', 'pandas', 'transformers', 'nnsight'} & set(sys.modules)"
    for what in (["--help"], ["status", "--models", "toy-4l"], ["sweep", "--models", "toy-4l", "--", "true"]):
        command = [sys.executable, "-c", code, *what]
        subprocess.run(command, cwd=study, check=True, stdout=subprocess.DEVNULL)


def test_a_thousand_finished_results_are_looked_at_in_seconds(make, study):
    models = study / "params/models/many"
    models.mkdir()
    try:
        toy = yaml.safe_load((study / "params/models/demo/toy-4l.yaml").read_text())
        for n in range(92):
            (models / f"m{n}.yaml").write_text(yaml.safe_dump(toy | {"MODEL": f"m{n}"}))
        made = make(*SWEEP, "SET=demo", *TOY_4L)  # the graph, and results to copy
        assert made.returncode == 0
        for dataset in ("gsm8k", "aime24", "hellaswag"):
            for n in range(92):
                folder = shutil.copytree(study / f"outputs/demo/{dataset}/toy-4l", study / f"outputs/{dataset}/m{n}")
                for path in folder.glob("*.pt"):
                    _rename_model(path, f"m{n}")
        for arguments, said in (((("status", "SET=many")), "1012 of 1012 done"), (("sweep", "SET=many"), "")):
            start = time.monotonic()
            done = make(*arguments)
            assert done.returncode == 0 and done.calls == [] and said in done.stdout, done.stdout[-2000:]
            assert time.monotonic() - start < 10
    finally:
        shutil.rmtree(models)


def _rename_model(path, name):
    import pickle

    with zipfile.ZipFile(path) as stored:
        result = pickle.loads(stored.read("result/data.pkl"))
    result["meta"]["model"] = name
    with zipfile.ZipFile(path, "w") as stored:
        stored.writestr("result/data.pkl", pickle.dumps(result, protocol=2))
