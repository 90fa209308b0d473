"""What a sweep runs, with which parameters, how it fails and goes on; runs are stand-ins (see study.py)."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
import zipfile
from pathlib import Path

import pytest

from depth_lib.embedded import toy_path
from depth_lib.files import hold
from depth_lib.models.errors import ArchitectureError
from depth_lib.params import FIVE_PROBES, Params, ParamsError, find_model
from depth_lib.results.artifacts import save_artifact
from depth_lib.sweep import cli
from depth_lib.sweep.launch import gpus_of_runs
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.processes import SIGNALS, Notebook, how_it_ended, say
from depth_lib.sweep.status import KILLED
from depth_lib.sweep.table import TABLES
from tests.sweep.study import DEMO, ROOT, TOY_4L, left_over, run_make, script
from tests.synthetic import result_of

pytestmark = pytest.mark.filterwarnings("ignore:.*truncated or damaged")  # a stand-in's results have no tensors
ONE = ("sweep", *TOY_4L, "--datasets", "gsm8k")


def test_a_run_gets_all_parameters_and_what_is_given_replaces_the_params_files(command):
    call, table = command(*ONE, "gsm8k").calls  # named twice, it runs once
    assert (table["MODELS"], table["DATASETS"]) == ([], ["gsm8k"]), "of all that is there"
    own = {"MODEL": "toy-4l", "MODEL_ID": "toy-4l", "PROBES": FIVE_PROBES, "OUT": os.path.abspath("outputs/demo")}
    nothing = dict.fromkeys(("REVISION", "QUANTIZATION", "DEVICE_MAP", "LENS", "QUESTION", "ANSWER"), "null")
    assert {name: call[name] for name in call if name.isupper()} == Params().model_dump() | nothing | own
    given = ("--N_EXAMPLES=3", "--remote", "local", "--OUT=outputs/o", "--dtype", "float64")
    call, _ = command("sweep", "--models", "Llama-3.1-8B", "--datasets", "aime24", *given).calls
    expected = {
        "N_EXAMPLES": 3,
        "REMOTE": "local",
        "OUT": os.path.abspath("outputs/o"),
        "DTYPE": "float64",
        "SOURCE": "hub",
    }
    assert {name: call[name] for name in expected} == expected


def test_chosen_probes_run_only_where_a_dataset_has_them_and_the_rest_later(command):
    chosen = command("sweep", *DEMO, "--models", "toy-8l", "--probes", "residual_erasure", "logit_lens")
    assert {call["DATASET"]: call["PROBES"] for call in chosen.calls if "MODEL" in call} == {
        "gsm8k": ["residual_erasure", "logit_lens"],
        "hellaswag": ["logit_lens"],
        "aime24": ["logit_lens"],
    }
    assert len(command("sweep", *DEMO, "--models", "toy-8l").runs) == 3
    named = command("sweep", "--models", "toy-8l", "--datasets", "aime24", "--probes", "residual_erasure")
    assert named.calls[0]["PROBES"] == ["residual_erasure"], "both named: what is asked for is run"
    command("sweep", "--models", "toy-4l", "--datasets", "aime24", "--probes", "depth_by_difficulty")
    assert command.status == 1 and "nothing to run: aime24 have no depth_by_difficulty in PROBES" in command.error


@pytest.mark.parametrize(
    "asked",
    [
        ("sweep", "--models", "toy-8l", "--source", "embedded", "--probes", "attention_gradients", "logit_lens"),
        ("sweep", "--models", "my-name", "--model-id", "toy-8l", "--datasets", "gsm8k", "--dtype", "float64"),
        (
            "sweep",
            *TOY_4L,
            "--datasets",
            "own",
            "--source",
            "it's mine.txt",
            "--question",
            "1 + $x = ",
            "--answer",
            " 2",
        ),
        ("demo", "--models", "toy-4l"),
        ("run", "toy-4l", "gsm8k"),
    ],
)
def test_the_list_of_runs_is_commands_that_do_each_of_them(command, study, monkeypatch, asked):
    (study / "it's mine.txt").write_text("A prompt.\nAnother.\n")
    lines = command(*asked, "--list").output.splitlines()
    assert command.status == 0 and command.calls == [] and lines
    monkeypatch.setattr(cli, "depths_of", lambda run: [])
    swept = {(call["DATASET"], call["MODEL"]): call for call in command(*asked).calls if "MODEL" in call}
    assert len(swept) == len(lines)
    shutil.rmtree(study / "outputs")
    for line in lines:
        program, *words = shlex.split(line)
        assert Path(program).name == "depth-lib" and words[0] == "run"
        (call,) = command(*words).calls
        assert command.status == 0 and call == swept[call["DATASET"], call["MODEL"]]
    assert command(*asked, "--list").output.strip() == ""


def test_a_failed_recomputation_is_a_failed_run_though_the_old_result_is_there(command, study):
    command(*ONE, "--probes", "logit_lens")
    (study / "fail-probe").write_text("logit_lens")
    again = command(*ONE, "--probes", "logit_lens", "--seed", "7", "--n-examples", "5", "--replace")
    (study / "fail-probe").unlink()
    assert again.status == 1 and "0 of 1 runs finished, 1 failed" in again.output
    assert len(again.calls) == 1, "and there is no table of it"
    (study / "idle").touch()
    again = command(*ONE, "--probes", "logit_lens", "--n-examples", "5", "--replace")
    why = "gsm8k × toy-4l: FAILED: the notebook ended, and logit_lens is stale: n_prompts: stored 10, asked 5; "
    assert again.status == 1 and why in again.output


def test_a_failed_run_prints_why_and_stops_the_others_unless_they_keep_going(command, study):
    (study / "fail-toy-4l").touch()
    two = ("sweep", *DEMO, "--models", "toy-4l", "toy-8l", "--datasets", "gsm8k")
    handlers = [signal.getsignal(number) for number in SIGNALS]
    failed = command(*two)
    assert failed.status == 1 and len(failed.calls) == 1
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    why = "gsm8k × toy-4l: FAILED: RuntimeError: no luck; remove the file; see outputs/demo/gsm8k/toy-4l/probe.log\n"
    assert (
        failed.output == f"2 runs left, 1 at a time\n{why}outputs/demo: 0 of 2 runs finished, 1 failed, 1 not started\n"
    )
    assert len(command(*two, "--keep-going").calls) == 2, "and no table"
    assert "gsm8k × toy-8l: done in 00:0" in command.output
    (study / "fail-toy-4l").unlink()
    assert command(*two).runs == [("gsm8k", "toy-4l")] and "(2 of 2)" in command.output
    assert command.status == 0 and left_over(study / "outputs/demo") == []


def bad_dataset(study):
    """A dataset whose first row lacks a field."""
    (study / "bad.jsonl").write_text('{"text": "without the fields of a row"}\n')
    dataset = {"DATASET": "bad", "N_EXAMPLES": 1, "FILE": "bad.jsonl", "TEMPLATE": "{{ question }}"}
    (study / "params/datasets/bad.yaml").write_text(json.dumps(dataset | {"PROBES": ["logit_lens"]}))


def test_a_model_that_several_gpus_share_is_started_by_torchrun(tmp_path):
    notebook = Notebook("title", "probe", tmp_path, {}, list, ranks=4)
    assert (
        notebook.command()[1:8]
        == "-m torch.distributed.run --standalone --nproc-per-node 4 -m depth_lib.sweep.execute".split()
    )


@pytest.mark.slow
def test_a_rank_that_fails_is_named(spawning, study):
    (study / "fail-toy-4l").touch()
    assert spawning(*ONE, "--tensor-parallel=2").status == 1
    assert re.search(
        r"gsm8k × toy-4l: FAILED: rank [01]: RuntimeError: no luck; remove the file; see \S+probe.log\n",
        spawning.output,
    )


def test_only_params_files_that_are_needed_have_to_be_right(command, study):
    mine = study / "params/models/mine"
    mine.mkdir()
    (mine / "Typo.yaml").write_text("MODEL: Typo\nDTYP: float32\n")
    assert command("status", *DEMO).status == 0
    assert command("sweep", "--models", "Typo").status == 1 and command.calls == []
    assert 'params/models/mine/Typo.yaml: key "DTYP" is not known; did you mean DTYPE?' in command.error


BAR = "contribution:   0%|          | 00:00<?\n"


def test_words_of_the_command_line_are_what_they_say(capsys):
    _, plan, positional = cli.parse(["run", "--replace", "toy-8l", "gsm8k", "--keep-going", "--remote", "local"])
    assert positional == {"model": "toy-8l", "dataset": "gsm8k"} and plan.KEEP_GOING
    assert plan.given_for_runs == {"REPLACE": True, "REMOTE": "local"}
    plan = cli.parse(["run", "--remote", "toy-8l", "gsm8k", "--replace", "0", "--revision=null"])[1]
    assert plan.given_for_runs == {"REPLACE": False, "REMOTE": True, "REVISION": None}
    assert cli.parse(["sweep", "--MODELS=a b"])[1].MODELS == ["a", "b"] == Plan(MODELS=["a", "b"]).MODELS
    assert cli.parse(["sweep", "--models", "a,b", "c"])[1].MODELS == ["a", "b", "c"]
    assert cli.parse(["maps", "toy-8l"])[2] == {"source_model": "toy-8l", "target_model": "toy-8l"}
    for wrong, why in (
        (["run", "toy-4l"], "run needs a dataset; write: depth-lib run MODEL DATASET"),
        (["swep", "toy-4l"], 'command "swep" is not known; did you mean sweep?'),
        (["sweep", "--gpus", "7"], 'sweep option "--gpus" is not known'),
        (["sweep", "--MODEL=toy-4l"], 'sweep option "--model" is not known; did you mean --models?'),
        (["status", "--n-example", "7"], 'status option "--n-example" is not known; did you mean --n-examples?'),
    ):
        with pytest.raises(ParamsError, match=re.escape(why)):
            cli.parse(wrong)
    with pytest.raises(SystemExit):
        cli.parse(["run", "--help"])
    assert "One model on one dataset, and its effective depths" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "demo", "--tensor-parallel", "2"], "TENSOR_PARALLEL is 2, and there are 1 GPUs: 7"),
        (["--models", "toy-4"], 'MODELS "toy-4" is not known; did you mean toy-4l?'),
        (["--models", "./toy-4"], "./toy-4 does not exist; check the path"),
        (["--datasets", "Makefile"], "for a file of prompts give it as SOURCE, and a name"),
        (["--datasets", "gsm"], 'DATASETS "gsm" is not known; did you mean gsm8k?'),
        (["--probes", "logitlens"], 'PROBES "logitlens" is not known; did you mean logit_lens?'),
        (["--set", "papers"], 'SET "papers" is not known; did you mean paper?'),
        (["--jobs=-1"], 'JOBS is "-1"; give 0 or more (number of runs at a time'),
        ([*DEMO, "--source", "none.jsonl"], "SOURCE is none.jsonl, and there is no such file; check the path"),
        (["--question", "1 + 1 = ", *DEMO], "give ANSWER too, or leave out both"),
        (
            ["--models", "Qwen2.5-7B-Instruct"],
            f"QUANTIZATION is 8bit, and bitsandbytes is not installed; {sys.executable} -m pip install bitsandbytes",
        ),
        (
            ["--models", "Qwen2.5-7B-Instruct", "--remote"],
            "QUANTIZATION is 8bit, and REMOTE is given too, and the server",
        ),
        (["--models", "Llama-3.1-8B"], "there is no NDIF key for https://api.ndif.us, or it has"),
        (["--model-id", "x", *DEMO], "MODEL_ID is given for several models; name one with MODELS"),
        (["--models", "a/final", "b/final"], "a/final on gsm8k and b/final on gsm8k would share the folder"),
    ],
)
def test_what_cannot_be_done_stops_before_anything_runs(command, monkeypatch, words, message):
    monkeypatch.delenv("NDIF_API_KEY", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr("nnsight.CONFIG.API.APIKEY", None)  # it keeps a key that it once saw
    monkeypatch.setattr("depth_lib.sweep.launch.find_spec", lambda name: None)  # no bitsandbytes
    refused = command("sweep", *words)
    assert refused.status == 1 and refused.calls == [] and message in refused.error


def test_prompts_or_probes_that_fail_fail_their_run_and_no_other_and_the_other_probes_are_kept(command, study):
    bad_dataset(study)
    chosen = ("--models", "toy-4l", "--datasets", "bad", "addition", "--probes", "logit_lens", "layer_effects")
    (study / "fail-probe").write_text("layer_effects")
    assert command("sweep", *chosen, "--keep-going").status == 1
    assert "bad × toy-4l: FAILED: PromptError: " in command.output
    assert "addition × toy-4l: FAILED: layer_effects: ValueError: texts are too short; see " in command.output
    assert "1 of 4 done, 3 missing" in command("status").output
    assert command("sweep", *chosen).calls == []
    assert "bad.jsonl row 1" in command.error, "before anything runs, if nothing is to go on"


def test_real_is_the_one_model_that_can_be_fetched_and_the_papers_set_goes_small_ones_first(monkeypatch):
    plans = []
    monkeypatch.setattr(cli, "run_unfinished", plans.append)
    monkeypatch.setattr(cli, "make_table", lambda plan, if_new: plans.append(plan))
    cli.main(["real"])
    run, table = plans
    assert run.folder == table.folder == "outputs/real" and run.models == ["SmolLM2-135M-Instruct"]
    assert len(run.runs()) == 3
    sizes = [find_model(name)["BILLIONS"] for name in Plan().models]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert Plan(MODELS=["toy-8l", "toy-4l"], SET="demo").models == ["toy-8l", "toy-4l"], "in the order that is given"


def test_a_folder_or_a_log_that_cannot_be_written_is_named(command, study):
    folder = study / "outputs/demo/gsm8k/toy-4l"
    (folder / "probe.log").mkdir(parents=True)
    assert command(*ONE).status == 1 and command.calls == []
    assert "FAILED: outputs/demo/gsm8k/toy-4l/probe.log: Is a directory; choose another OUT" in command.output
    shutil.rmtree(study / "outputs")
    (study / "outputs").write_text("a file")
    assert command(*ONE).status == 1 and command.calls == []
    (study / "outputs").unlink()
    assert "FAILED: outputs/demo/gsm8k/toy-4l: Not a directory; choose another OUT" in command.output


def test_init_writes_params_that_are_right_for_a_real_model(command, study):
    checkpoint = shutil.copytree(toy_path("toy-4l"), study / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    command("init", "my-model", "--model-id", "checkpoint")
    assert command.output.startswith("params/models/mine/my-model.yaml is written; ")
    assert "prompts that ship: " in command.output and command.output.count("run my-model gsm8k --source=") == 2
    assert "run my-model gsm8k --source=sample\n" in command.output, "which needs no Hub"
    call, _ = command("sweep", "--set", "mine", "--datasets", "gsm8k").calls
    expected = {"MODEL": "my-model", "MODEL_ID": str(checkpoint), "SOURCE": "hub", "DEVICE_MAP": "auto"}
    assert {name: call[name] for name in expected} == expected and call["DTYPE"] == "bfloat16"
    command("init", "checkpoint")
    assert find_model("checkpoint")["MODEL_ID"] == "checkpoint"
    assert "there is a model toy-4l" in command("init", "toy-4l").error and command.status == 1
    assert "cannot be a folder" in command("init", "..").error
    assert "cannot be a folder" in command("init", "other", "--set", "..").error
    call, _ = command("sweep", "--models", "./checkpoint", "--datasets", "aime24", "--out", "outputs/own").calls
    assert (call["MODEL"], call["MODEL_ID"], call["DTYPE"]) == ("checkpoint", str(checkpoint), "bfloat16")
    for path in checkpoint.glob("tokenizer*"):
        path.unlink()
    command("init", "without", "--model-id", "checkpoint")
    assert command.error.startswith("checkpoint has no tokenizer; write it there: tokenizer.save_pretrained(")
    shutil.rmtree(checkpoint)


@pytest.mark.parametrize(
    ("log", "status", "why"),
    [
        ("a check printed FAILED: nothing\nFAILED: RuntimeError: no luck\nthe end\n", 1, "RuntimeError: no luck"),
        (f"loading\n{BAR}", -9, KILLED),
        (f"loading\n{BAR}", 137, KILLED),
        (f"{BAR}traceback : Signal 9 (SIGKILL) received by PID 5\n=====\n", 1, KILLED),
        (f"no such device\n{BAR}", 3, "no such device"),
        ("", 5, "its command ended with status 5"),
        ("failed: layer_effects: ValueError: no.\n", 0, "layer_effects: ValueError: no"),
        ("", 0, "the notebook ended, and logit_lens is missing"),
    ],
)
def test_why_a_notebook_failed_is_who_killed_it_or_its_own_line(tmp_path, log, status, why):
    (tmp_path / "probe.log").write_text(log)
    how, said = how_it_ended(Notebook("title", "probe", tmp_path, {}, lambda: ["logit_lens is missing"]), status)
    assert (how, said) == ("failed", why)


def test_a_demo_is_nine_runs_and_a_table_and_a_second_one_nothing(command, study, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(12))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    *runs, table = command("demo").calls
    toys, papers = ["toy-4l", "toy-8l", "toy-16l"], ["hellaswag", "gsm8k", "aime24"]
    assert [(run["MODEL"], run["DATASET"]) for run in runs] == [(toy, one) for toy in toys for one in papers]
    assert {run["SOURCE"] for run in runs} == {"embedded"} and all(run["CONTROL"] is True for run in runs)
    assert (table["OUT"], table["MODELS"], table["DATASETS"]) == (str(study / "outputs/demo"), [], papers)
    first, second, *_ = command.output.splitlines()
    assert first == "three toy models on three datasets, then table and figures in outputs/demo: 3 to 8 minutes, once"
    assert second == "9 runs left, 2 at a time: GPU 5 | 7"
    assert {(run["cuda_visible_devices"], run["threads"]) for run in runs} == {("5", "6"), ("7", "6")}
    assert command("demo").calls == [] and "minutes" not in command.output


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        ({}, "0 | 1 | 2 | 3"),
        ({"JOBS": 1}, "0,1,2,3"),
        ({"JOBS": 8}, "0 | 1 | 2 | 3"),
        ({"JOBS": 2}, "0,1 | 2,3"),
        ({"TENSOR_PARALLEL": 2}, "0,1 | 2,3"),
        ({"TENSOR_PARALLEL": 2, "JOBS": 1}, "0,1,2,3"),
        ({"REMOTE": True, "JOBS": 3}, " |  | "),
    ],
)
def test_runs_at_a_time_share_out_the_gpus_that_nvidia_smi_lists(tmp_path, monkeypatch, given, gpus):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    script(tmp_path / "nvidia-smi", "#!/bin/sh\nprintf '%s\\n' 0 1 2 3\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    plan = Plan(MODELS=["toy-4l"], DATASETS=["gsm8k"], **given)
    assert " | ".join(gpus_of_runs(plan, plan.runs())) == gpus


def test_the_executed_notebook_is_given_all_that_it_has_to_show(command):
    """A run of one probe does not make the others' results stale or lost; its notebook reads and draws them too."""
    command(*ONE)
    assert command(*ONE, "--probes", "block_removal").calls[0]["PROBES"] == ["block_removal"]
    assert "6 of 6 done" in command("status", "--out", "outputs/demo", "--probes", *FIVE_PROBES, "block_removal").output


def test_after_a_failure_a_run_that_another_process_holds_is_not_waited_for(command, study):
    (study / "fail-toy-4l").touch()
    (folder := study / "outputs/demo/gsm8k/toy-8l").mkdir(parents=True)
    with hold(folder / ".running"):
        command("sweep", *DEMO, "--models", "toy-4l", "toy-8l", "--datasets", "gsm8k", "--jobs", "2")
    assert command.runs == [("gsm8k", "toy-4l")] and "1 failed, 1 not started" in command.output


def test_a_long_line_is_wrapped_between_words_on_a_terminal_and_whole_in_a_pipe(monkeypatch, capsys):
    text = f"table and figures: done in 00:12: {' '.join(f'outputs/demo/{name}' for name in TABLES)}"
    say(text)
    assert capsys.readouterr().out == f"{text}\n"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    say(text)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and " ".join(map(str.strip, lines)) == text


def test_run_on_a_dataset_with_levels_only_prints_its_answer_and_no_empty_table(command, study, monkeypatch):
    (run,) = Plan(MODELS=["toy-4l"], DATASETS=["sums"], OUT=str(study / "outputs")).runs()
    wanted = run.provenance("depth_by_difficulty")
    save_artifact(run.path("depth_by_difficulty"), result_of("depth_by_difficulty", 4), wanted)
    monkeypatch.setattr(cli, "run_unfinished", lambda plan: 0)
    printed = command("run", "toy-4l", "sums").output
    assert (
        command.status == 0
        and printed.count("Whether harder questions use more depth") == len(printed.splitlines()) == 2
    )


def test_check_refuses_a_model_in_one_line(command, monkeypatch):
    def refuse(*_, **__):
        raise ArchitectureError("t5 is an encoder-decoder.")

    monkeypatch.setattr("depth_lib.models.load.load_model", refuse)
    assert command("check", "a/t5").status == 1 and command.error.strip() == "t5 is an encoder-decoder."


@pytest.mark.slow
def test_a_real_run_and_one_that_raises_never_write_the_key_or_the_token(study):
    secrets = {"NDIF_API_KEY": "ndif-key-0123456789", "HF_TOKEN": "hf_token0123456789", "JUPYTER_TOKEN": "jt0123456789"}
    shutil.copy(ROOT / "notebooks/probe.ipynb", study / "notebooks")
    chosen = ("MODELS=toy-4l", "DATASETS=addition bad", "PROBES=logit_lens", "OUT=outputs/{0}")
    bad_dataset(study)
    done = run_make(study, "-k", "-j2", "sweep", *chosen, REAL="-", OMP_NUM_THREADS="1", **secrets)
    assert "addition × toy-4l: done in" in done.stdout and done.returncode != 0
    assert "bad × toy-4l: FAILED: PromptError: " in done.stdout
    written = [path for path in study.glob("outputs/{0}/**/*") if path.is_file()]
    assert {path.name for path in written} >= {"probe.ipynb", "probe.partial.ipynb", "probe.log", "logitlens_10exps.pt"}
    for path in written:
        content = _unpacked(path)
        assert not any(secret.encode() in content for secret in secrets.values()), path
    assert not any(secret in done.stdout + done.stderr for secret in secrets.values())


def _unpacked(path):
    if path.suffix != ".pt":
        return path.read_bytes()
    with zipfile.ZipFile(path) as stored:
        return b"".join(map(stored.read, stored.namelist()))
