"""How a sweep ends, goes on and is refused before its first run; runs are stand-ins (see study.py)."""

import contextlib
import importlib.util
import re
import shlex
import shutil
import subprocess
import zipfile

import pytest

from depth_lib.results import commands
from depth_lib.sweep.__main__ import _parser
from tests.sweep.study import ROOT, SWEEP, TOY_4L, left_over, needs_make, status

pytestmark = needs_make


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
