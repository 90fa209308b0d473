"""Sweeps that are interrupted, repeated, run side by side and looked into; runs are stand-ins (see study.py)."""

import contextlib
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import yaml

from depth_lib.lock import hold
from depth_lib.results import commands
from depth_lib.results.schemas import PROBES
from depth_lib.sweep.__main__ import _parser
from depth_lib.sweep.launch import Launch
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.status import ProbeStatus, RunStatus, progress
from tests.sweep import slurm as real_slurm
from tests.sweep.study import ENVIRONMENT, ROOT, calls_in, start_make

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
TOY_4L = ("MODELS=toy-4l", "OUT=outputs/demo")
SWEEP = ("sweep", "SET=demo")


def status(make, *arguments):
    """The runs of `make status FORMAT=json`, by dataset and model."""
    said = make("status", "FORMAT=json", *arguments)
    assert said.returncode == 0, said.stderr
    return {(run["dataset"], run["model"]): run for run in json.loads(said.stdout)["runs"]}


def left_over(folder):
    kept = {"probe.ipynb", "probe.log"}
    return [path.name for path in folder.glob("*/*/*") if path.name not in kept and path.suffix != ".pt"]


@contextlib.contextmanager
def mounted(folder, options):
    """A file system of its own at this folder; skips where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# ---- how a sweep ends


def test_a_sweep_that_keeps_going_ends_with_who_failed_why_and_how_to_go_on(make, study):
    (study / "fail-toy-4l").touch()
    chosen = (*SWEEP, "MODELS=toy-4l toy-8l", "DATASETS=gsm8k aime24")
    said = make("-k", "-j2", *chosen)
    assert said.returncode != 0 and len(said.calls) == 4, "others are not stopped, failed ones not repeated"
    end = said.stdout[said.stdout.index("outputs/demo: 2 of 4 runs finished, 2 failed") :]
    for dataset in ("gsm8k", "aime24"):
        assert f"  {dataset} × toy-4l: RuntimeError: no luck; remove the file\n" in end, "the notebook's own words"
        assert f"again: make sweep MODELS=toy-4l DATASETS={dataset} OUT=outputs/demo" in end
        assert f"log: outputs/demo/{dataset}/toy-4l/probe.log" in end
    (study / "fail-toy-4l").unlink()
    again = re.search(r"again: make (.*)", end)[1].split(" ")
    assert len(make(*again).calls) == 1
    assert make(*chosen).returncode == 0


def test_without_keep_going_the_end_says_what_was_not_started(make, study):
    (study / "fail-toy-4l").touch()
    said = make(*SWEEP, "DATASETS=gsm8k")
    assert said.returncode != 0 and len(said.calls) == 1
    assert "1 failed" in said.stdout and "gsm8k × toy-8l: not started, 0 of 5 results" in said.stdout


def test_a_sweep_without_failures_ends_with_a_count(make):
    said = make(*SWEEP, *TOY_4L)
    assert said.returncode == 0 and said.stdout.endswith("outputs/demo: all 3 runs finished\n")
    assert said.stdout.count("done in 0:0") == 3


# ---- side by side, and killed


def test_two_sweeps_on_one_folder_share_the_work(make, study):
    both = [start_make(study, "-j2", *SWEEP, TAKES="0.7") for _ in range(2)]
    said = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    runs = [(call["DATASET"], call["MODEL"]) for call in calls_in(study)]
    assert len(runs) == len(set(runs)) == 9, "each run once"
    assert any("another sweep is at it (process" in text for text in said)
    assert left_over(study / "outputs/demo") == []


def test_a_sweep_takes_over_when_the_other_one_is_killed(make, study):
    first = start_make(study, *SWEEP, *TOY_4L, "DATASETS=gsm8k", TAKES="30")
    while not calls_in(study):
        time.sleep(0.05)
    second = start_make(study, *SWEEP, *TOY_4L, "DATASETS=gsm8k")
    while "waiting" not in (line := second.stdout.readline()):
        assert line, "it ended before it waited"
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    said, _ = second.communicate(timeout=30)
    assert second.returncode == 0 and "gsm8k × toy-4l: done" in said
    assert left_over(study / "outputs/demo") == []


def test_a_sweep_killed_at_random_moments_repeats_nothing_that_was_finished(make, study):
    draw, finished, folder = random.Random(3), set(), study / "outputs/demo"
    for _ in range(3):
        sweep = start_make(study, "-j2", *SWEEP, TAKES="0.2")
        with contextlib.suppress(subprocess.TimeoutExpired):
            sweep.wait(draw.uniform(0.3, 2.5))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(sweep.pid, signal.SIGKILL)
        sweep.wait()
        before = finished
        finished = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/probe.ipynb")}
        assert all(finished[path] == time for path, time in dict(before).items())
    assert make("-j2", *SWEEP).returncode == 0
    assert all(path.stat().st_mtime_ns == time for path, time in finished.items())
    assert left_over(folder) == [] and len(list(folder.glob("*/*/probe.ipynb"))) == 9
    assert make(*SWEEP).calls == []


def test_a_term_signal_ends_a_run_with_a_sentence_and_its_notebook_too(make, study):
    sweep = start_make(study, *SWEEP, *TOY_4L, "DATASETS=gsm8k", TAKES="60")
    while not calls_in(study):
        time.sleep(0.05)
    sweep.terminate()
    said, _ = sweep.communicate(timeout=30)
    assert sweep.returncode != 0
    assert "gsm8k × toy-4l: FAILED: stopped by SIGTERM (a scheduler's limit, or somebody); what was finished" in said
    run = status(make, *TOY_4L, "DATASETS=gsm8k")["gsm8k", "toy-4l"]
    assert run["running"] is None and run["failed"].startswith("stopped by SIGTERM")


def test_a_run_that_ctrl_c_stops_is_stopped_and_has_not_failed(make, study):
    sweep = start_make(study, *SWEEP, *TOY_4L, "DATASETS=gsm8k", TAKES="60")
    while not calls_in(study):
        time.sleep(0.05)
    os.killpg(sweep.pid, signal.SIGINT)
    said, _ = sweep.communicate(timeout=30)
    again = "make sweep MODELS=toy-4l DATASETS=gsm8k OUT=outputs/demo"
    assert sweep.returncode != 0 and "FAILED" not in said
    assert f"gsm8k × toy-4l: stopped by Ctrl-C; what was finished is kept; go on with: {again}\n" in said
    run = status(make, *TOY_4L, "DATASETS=gsm8k")["gsm8k", "toy-4l"]
    assert run["running"] is None and run["failed"] is None and run["interrupted"]
    assert run["cells"]["relative_contribution"]["state"] == "missing"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_notebook_has_started_ends_the_run_too(study, tmp_path, monkeypatch, number):
    monkeypatch.chdir(study)
    run = Plan(models=("toy-4l",), datasets=("aime24",), out=str(tmp_path)).runs()[0]
    launch = Launch(run, [sys.executable, "-c", "import time; time.sleep(60)"], environment=os.environ)
    launch.stop(number)
    start = time.monotonic()
    assert launch.run() == 128 + number
    assert time.monotonic() - start < 10


def test_the_command_to_go_on_repeats_every_override(make, study):
    (study / "fail-toy-4l").touch()
    (study / "it's my.jsonl").write_text('{"question": "1 + 1?", "answer": "2 #### 2"}\n')
    given = ("PROBES=logit_lens relative_contribution", "SOURCE=it's my.jsonl", "OUT=outputs/o v")
    given = ("SET=demo", "MODELS=toy-4l", "DATASETS=gsm8k", *given, "REMOTE=http://there", "QUANTIZATION=8bit")
    said = make("sweep", *given, "JOBS=one", "GPUS=5", "LAUNCH=env A='b $$c' LAUNCHED=yes")
    again = re.search(r"again: make (.*)", said.stdout)[1]
    (study / "fail-toy-4l").unlink()
    repeated = make(*shlex.split(again))
    assert repeated.returncode == 0, repeated.stdout + repeated.stderr
    assert repeated.calls == said.calls and len(said.calls) == 1
    call = said.calls[0]
    assert (call["depth_lib_jobs"], call["cuda_visible_devices"], call["launched"]) == ("one", "5", "yes")
    assert (call["SOURCE"], call["REMOTE"], call["QUANTIZATION"]) == ("it's my.jsonl", "http://there", "8bit")
    assert make("sweep", *given).calls == [], "the same study"


def test_without_a_clone_the_command_to_go_on_repeats_every_override_too(monkeypatch):
    monkeypatch.setattr(commands, "INSTALLED", True)
    given = {"models": ["toy-4l"], "probes": ["logit_lens", "layer_effects"], "gpus": ["0", "1"], "out": "o v"}
    given |= {"source": "it's my.jsonl", "remote": "1", "quantization": "null"}
    words = {name.upper(): " ".join(value) if isinstance(value, list) else value for name, value in given.items()}
    variable, program, *told = shlex.split(commands.command("sweep", JOBS="one", LAUNCH="env A='b c'", **words))
    assert (variable, program, told[-3:]) == ("DEPTH_LIB_JOBS=one", "depth-lib", ["--", "env", "A=b c"])
    read = vars(_parser().parse_args(told[:-3]))
    assert {name: read[name] for name in given} == given


def test_a_probe_that_no_chosen_dataset_has_is_an_error_that_says_where_to_name_it(make):
    said = make("sweep", "MODELS=toy-4l", "DATASETS=aime24", "PROBES=residual_erasure")
    why = "nothing to run: params/datasets/aime24.yaml: no residual_erasure in PROBES; add it there, or choose "
    assert said.returncode != 0 and said.calls == [] and why + "DATASETS=gsm8k\n" in said.stderr
    assert "runs finished" not in said.stdout


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_weights_that_cannot_be_held_here_stop_a_sweep_before_its_first_run(make):
    chosen = ("sweep", "MODELS=toy-4l Qwen2.5-14B", "DATASETS=aime24", "SOURCE=embedded")
    said = make(*chosen)
    assert said.returncode != 0 and said.calls == []
    assert re.search(r"8bit weights need bitsandbytes, .*; run: \S+ -m pip install bitsandbytes ", said.stderr)
    full = make(*chosen, "QUANTIZATION=null")
    assert full.returncode == 0 and [call["QUANTIZATION"] for call in full.calls] == [None, None]
    assert make("sweep", "MODELS=toy-4l", "DATASETS=aime24", "QUANTIZATION=9bit").calls == []


@pytest.mark.skipif(not os.environ.get("DEPTH_LIB_TORTURE"), reason="an hour: DEPTH_LIB_TORTURE=20")
def test_a_demo_killed_again_and_again_ends_as_one_left_alone(tmp_path):
    from tests.sweep.torture import torture

    torture(int(os.environ["DEPTH_LIB_TORTURE"]), tmp_path, "SET=demo")


# ---- real notebooks


def test_a_real_run_and_one_that_raises_never_write_the_key_or_the_token(make, study):
    secrets = {"NDIF_API_KEY": "ndif-key-0123456789", "HF_TOKEN": "hf_token0123456789", "JUPYTER_TOKEN": "jt0123456789"}
    shutil.copy(ROOT / "notebooks/probe.ipynb", study / "notebooks")
    chosen = ("MODELS=toy-4l", "DATASETS=addition aime24", "PROBES=logit_lens", "SOURCE=none.jsonl")
    said = make("-k", "-j2", "sweep", *chosen, "REAL=-", OMP_NUM_THREADS="1", **secrets)
    assert "addition × toy-4l: done in" in said.stdout and said.returncode != 0
    why = 'PromptError: no file none.jsonl; check the path or use source="embedded"'
    assert f"aime24 × toy-4l: FAILED: {why}" in said.stdout
    run = status(make, *chosen)["aime24", "toy-4l"]
    assert run["failed"] == why and run["cells"]["logit_lens"]["state"] == "failed"
    written = [path for path in study.glob("outputs/**/*") if path.is_file()]
    assert {path.name for path in written} >= {"probe.ipynb", "probe.partial.ipynb", "probe.log", "logitlens_10exps.pt"}
    for path in written:
        content = _unpacked(path)
        assert not any(secret.encode() in content for secret in secrets.values()), path
    assert not any(secret in said.stdout + said.stderr for secret in secrets.values())


def _unpacked(path):
    if path.suffix != ".pt":
        return path.read_bytes()
    with zipfile.ZipFile(path) as stored:
        return b"".join(map(stored.read, stored.namelist()))


# ---- launchers


def test_each_run_has_a_gpu_to_itself(make, study):
    launch = "LAUNCH=sh -c 'echo $$CUDA_VISIBLE_DEVICES >> gpus; exec \"$$@\"' -"
    said = make("-j3", *SWEEP, "DATASETS=gsm8k", "GPUS=5 7", launch, TAKES="0.5")
    gpus = (study / "gpus").read_text().split()
    (study / "gpus").unlink()
    assert said.returncode == 0 and len(gpus) == 3 and set(gpus) == {"5", "7"}
    assert "waiting for one of GPUs 5, 7" in said.stdout


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if not real_slurm.available:
        pytest.skip("needs root, slurm-wlm and munge")
    with real_slurm.slurm(Path(tmp_path_factory.mktemp("slurm"))) as environment:
        yield {key: environment[key] for key in ("SLURM_CONF",)}


def test_a_launcher_that_is_not_there_is_named(make):
    said = make(*SWEEP, *TOY_4L, "DATASETS=aime24", "LAUNCH=no-such-scheduler --now")
    assert "FAILED: no-such-scheduler cannot be started (No such file or directory); correct LAUNCH" in said.stdout


def test_slurm_gives_each_run_an_allocation(make, study, slurm):
    launch = "LAUNCH=srun --gres=gpu:1 --time=2:00:00 --job-name=depth env LAUNCHED=yes"
    said = make("-j3", *SWEEP, "DATASETS=gsm8k", launch, TAKES="1", **slurm)
    assert said.returncode == 0, said.stdout + said.stderr
    assert [call["launched"] for call in said.calls] == ["yes"] * 3
    assert make(*SWEEP, "DATASETS=gsm8k", launch, **slurm).calls == []


def test_a_run_that_slurm_cancels_or_refuses_says_so_and_is_repeated(make, study, slurm):
    launch = "LAUNCH=srun --job-name=long"
    sweep = start_make(study, "-k", *SWEEP, *TOY_4L, "DATASETS=gsm8k", launch, TAKES="60", **slurm)
    while not calls_in(study):
        time.sleep(0.1)
    subprocess.run(["scancel", "--name=long"], env=ENVIRONMENT | slurm, check=True)
    said, _ = sweep.communicate(timeout=60)
    assert sweep.returncode != 0 and re.search(r"gsm8k × toy-4l: FAILED: .*STEP.* CANCELLED AT", said), said
    refused = make(*SWEEP, *TOY_4L, "DATASETS=gsm8k", "LAUNCH=srun --gres=gpu:9", **slurm)
    assert "FAILED: srun: error: " in refused.stdout and refused.calls == []
    assert make(*SWEEP, *TOY_4L, "DATASETS=gsm8k", "LAUNCH=srun", **slurm).returncode == 0


def test_a_term_signal_reaches_the_job_on_the_cluster(make, study, slurm):
    launch = "LAUNCH=srun --job-name=term"
    sweep = start_make(study, *SWEEP, *TOY_4L, "DATASETS=gsm8k", launch, TAKES="60", **slurm)
    while not calls_in(study):
        time.sleep(0.1)
    sweep.terminate()
    said, _ = sweep.communicate(timeout=60)
    assert "FAILED: stopped by SIGTERM" in said
    for _ in range(100):
        queue = subprocess.run(["squeue", "-h"], env=ENVIRONMENT | slurm, capture_output=True, text=True).stdout
        if not queue:
            break
        time.sleep(0.1)
    assert queue == "", "nothing goes on computing"


# ---- status


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


# ---- disks


def test_a_full_disk_fails_the_run_with_its_word_and_keeps_what_was_finished(make, study):
    with mounted(study / "outputs/demo", "size=1m") as out:
        assert make(*SWEEP, *TOY_4L, "DATASETS=aime24").returncode == 0
        finished = {path: path.read_bytes() for path in out.glob("aime24/toy-4l/*.pt")}
        with contextlib.suppress(OSError), open(out / "ballast", "wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        said = make(*SWEEP, *TOY_4L, "DATASETS=gsm8k aime24")
        assert said.returncode != 0 and "FAILED: " in said.stdout and "No space left on device" in said.stdout
        assert {path: path.read_bytes() for path in finished} == finished
        (out / "ballast").unlink()
        assert make(*SWEEP, *TOY_4L, "DATASETS=gsm8k aime24").runs == [("gsm8k", "toy-4l")]
        assert left_over(out) == []


def test_a_read_only_folder_is_named_with_the_next_step(make, study):
    with mounted(study / "outputs/demo", "ro,size=64k"):
        said = make(*SWEEP, *TOY_4L, "DATASETS=aime24")
        assert said.returncode != 0 and said.calls == []
        why = r"FAILED: outputs/demo\S* cannot be written \(Read-only file system\); free the disk or choose another"
        assert re.search(why, said.stdout), said.stdout
