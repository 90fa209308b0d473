"""What a sweep runs, with which parameters, how it fails and goes on; runs are stand-ins (see study.py)."""

import json
import os
import re
import shutil
import signal
import zipfile

import pytest

from depth_lib.embedded import toy_path
from depth_lib.models.discovery import ArchitectureError
from depth_lib.params import FIVE_PROBES, Params, find_model
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.sweep import cli, launch
from depth_lib.sweep.launch import execution
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.table import chosen_results
from tests.sweep.study import DEMO, ROOT, TOY_4L, left_over, run_make
from tests.synthetic import result_of

ONE = ("sweep", *TOY_4L, "--datasets", "gsm8k")


def test_a_run_gets_all_parameters_and_what_is_given_replaces_the_params_files(command):
    (call,) = command(*ONE).calls
    assert {name: call[name] for name in call if name.isupper()} == Params().model_dump() | {
        "MODEL": "toy-4l",
        "MODEL_ID": "toy-4l",
        "PROBES": FIVE_PROBES,
    }
    given = ("-p", "N_EXAMPLES=3", "--remote", "local", "-p", "OUT=outputs/o", "--dtype", "float64")
    (call,) = command("sweep", "--models", "Llama-3.1-8B", "--datasets", "aime24", *given).calls
    expected = {"N_EXAMPLES": 3, "REMOTE": "local", "OUT": "outputs/o", "DTYPE": "float64", "SOURCE": "hub"}
    assert {name: call[name] for name in expected} == expected


def test_chosen_probes_run_only_where_a_dataset_has_them_and_the_rest_later(command):
    chosen = command("sweep", *DEMO, "--models", "toy-8l", "--probes", "residual_erasure", "logit_lens")
    assert {call["DATASET"]: call["PROBES"] for call in chosen.calls} == {
        "gsm8k": ["residual_erasure", "logit_lens"],
        "hellaswag": ["logit_lens"],
        "aime24": ["logit_lens"],
    }
    assert len(command("sweep", *DEMO, "--models", "toy-8l").runs) == 3
    command("sweep", "--models", "toy-4l", "--datasets", "aime24", "--probes", "residual_erasure")
    assert command.status == 1 and "nothing to run: aime24 have no residual_erasure in PROBES" in command.error


def test_a_failed_run_prints_why_and_stops_the_others_unless_they_keep_going(command, study):
    (study / "fail-toy-4l").touch()
    two = ("sweep", *DEMO, "--models", "toy-4l", "toy-8l", "--datasets", "gsm8k")
    failed = command(*two)
    assert failed.status == 1 and len(failed.calls) == 1
    why = "gsm8k × toy-4l: FAILED: RuntimeError: no luck; remove the file"
    end = failed.output[failed.output.index("outputs/demo: 0 of 2 runs finished\n") :]
    assert f"{why}\n" in failed.output
    assert f"{why}; see outputs/demo/gsm8k/toy-4l/probe.log, then repeat the command\n" in end
    assert "gsm8k × toy-8l: not started\n" in end
    assert len(command(*two, "--keep-going").calls) == 2 and "gsm8k × toy-8l: done in 00:0" in command.output
    (study / "fail-toy-4l").unlink()
    assert command(*two).runs == [("gsm8k", "toy-4l")] and "(2 of 2 runs)" in command.output
    assert command.status == 0 and left_over(study / "outputs/demo") == []


def test_an_unexpected_error_in_one_run_is_raised_after_the_others_are_finished(command, monkeypatch):
    def no_words(name, output, parameters, ranks):
        if parameters["MODEL"] == "toy-4l":
            raise ZeroDivisionError(parameters["MODEL"])
        return execution(name, output, parameters, ranks)

    handlers = [signal.getsignal(number) for number in launch.SIGNALS]
    monkeypatch.setattr(launch, "execution", no_words)
    with pytest.raises(ZeroDivisionError, match="toy-4l"):
        command("sweep", *DEMO, "--datasets", "gsm8k", "--jobs", "2")
    assert [signal.getsignal(number) for number in launch.SIGNALS] == handlers
    shown = command("status", *DEMO, "--datasets", "gsm8k").output
    assert "10 of 15 done, 5 missing" in shown


def test_prompts_that_cannot_be_read_fail_their_run_and_no_other(command):
    chosen = ("--models", "toy-4l", "--datasets", "aime24", "addition", "--probes", "logit_lens")
    assert command("sweep", *chosen, "--source", "none.jsonl", "--keep-going").status == 1
    assert "aime24 × toy-4l: FAILED: PromptError: no file none.jsonl; check the path" in command.output
    assert "addition × toy-4l: done in" in command.output


def test_a_notebook_that_ends_well_without_its_results_has_failed(command, study):
    (study / "idle").touch()
    assert command(*ONE).status == 1
    assert "FAILED: the notebook left no outputs/demo/gsm8k/toy-4l/relative_contribution.pt" in command.output


def test_runs_side_by_side_share_cores_and_gpus(command, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(12))
    monkeypatch.setenv("TAKES", "0.3")
    calls = command("sweep", *DEMO, "--datasets", "hellaswag", "--gpus", "5", "7").calls
    assert {call["cuda_visible_devices"] for call in calls} == {"5", "7"}
    assert {call["threads"] for call in calls} == {"6"}


def test_words_of_the_command_line_are_what_they_say(capsys):
    _, plan, positional = cli.parse(["run", "--keep-going", "toy-8l", "gsm8k", "--gpus", "0,1 2,3"])
    assert positional == {"model": "toy-8l", "dataset": "gsm8k"} and plan.KEEP_GOING
    assert plan.GPUS == ["0,1", "2,3"] == cli.parse(["sweep", "-p", "GPUS=0,1 2,3"])[1].GPUS
    with pytest.raises(SystemExit):
        cli.parse(["run", "--help"])
    assert "One model on one dataset, and its effective depths" in capsys.readouterr().out


def test_run_on_a_dataset_with_levels_only_prints_its_answer_and_no_empty_table(command, study, monkeypatch):
    path = artifact_path(study / "outputs", "sums", "toy-4l", "depth_by_difficulty", 20)
    save_artifact(path, result_of("depth_by_difficulty", 4), {"n_examples": 20})
    monkeypatch.setattr(cli, "run_unfinished", lambda plan: 0)
    printed = command("run", "toy-4l", "sums").output
    assert (
        command.status == 0
        and printed.count("Whether harder questions use more depth") == len(printed.splitlines()) == 2
    )


def test_a_launcher_stands_before_each_run_and_one_that_is_not_there_is_named(command):
    assert command(*ONE, "--launch", "env LAUNCHED=yes").calls[0]["launched"] == "yes"
    command("sweep", *TOY_4L, "--datasets", "aime24", "--launch", "no-such-scheduler --now")
    assert "FAILED: no-such-scheduler: No such file or directory; " in command.output
    assert "correct LAUNCH" in command.output


def test_a_model_that_several_gpus_share_is_started_by_torchrun():
    words = execution("probe", "out.ipynb", {}, ranks=4)[1:8]
    assert words == "-m torch.distributed.run --standalone --nproc-per-node 4 -m depth_lib.sweep.execute".split()


@pytest.mark.slow
def test_a_rank_that_fails_is_named(command, study):
    (study / "fail-toy-4l").touch()
    assert command(*ONE, "-p", "TENSOR_PARALLEL=2").status == 1
    assert re.search(r"gsm8k × toy-4l: FAILED: rank [01]: RuntimeError: no luck; remove the file\n", command.output)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "demo", "--launch", "srun --comment='a"], "which is no command (No closing quotation); close its"),
        (["--set", "demo", "--gpus", "0", "1", "-p", "TENSOR_PARALLEL=2"], "TENSOR_PARALLEL needs several; leave out"),
        (["--models", "toy-4"], 'MODELS "toy-4" is not known; did you mean toy-4l?'),
        (["--models", "./toy-4"], "./toy-4 does not exist; check the path"),
        (["--datasets", "Makefile"], "for a file of prompts give a dataset's name and SOURCE"),
        (["--datasets", "gsm"], 'DATASETS "gsm" is not known; did you mean gsm8k?'),
        (["--probes", "logitlens"], 'PROBES "logitlens" is not known; did you mean logit_lens?'),
        (["--set", "papers"], 'SET "papers" is not known; did you mean paper?'),
        (["-p", "N_EXAMPLE=3"], 'variable "N_EXAMPLE" is not known; did you mean N_EXAMPLES?'),
        (["-p", "SEED"], "SEED is null; Input should be a valid integer"),
        (["--question", "1 + 1 = ", "--set", "demo"], "give ANSWER too"),
        (["--model-id", "x", "--set", "demo"], "MODEL_ID is given for several models; name one with MODELS"),
    ],
)
def test_what_cannot_be_done_stops_before_anything_runs(command, words, message):
    refused = command("sweep", *words)
    assert refused.status == 1 and refused.calls == [] and message in refused.error


def test_only_params_files_that_are_needed_have_to_be_right(command, study):
    mine = study / "params/models/mine"
    mine.mkdir()
    (mine / "Typo.yaml").write_text("MODEL: Typo\nDTYP: float32\n")
    assert command("status", *DEMO).status == 0
    assert command("sweep", "--models", "Typo").status == 1 and command.calls == []
    assert 'params/models/mine/Typo.yaml: key "DTYP" is not known; did you mean DTYPE?' in command.error


def test_models_that_would_share_a_folder_are_refused_and_one_named_twice_runs_once(command):
    assert command("sweep", "--models", "a/final", "b/final", "--datasets", "gsm8k").status == 1
    assert "a/final and b/final would share one folder, final; give one another name: " in command.error
    twice = ("--models", "toy-4l", "toy-4l", "--datasets", "gsm8k", "gsm8k")
    assert len(command("sweep", *twice).calls) == 1


def test_the_table_takes_a_model_by_the_name_that_a_sweep_took(tmp_path):
    path = artifact_path(tmp_path, "gsm8k", "x", "logit_lens", 10)
    save_artifact(path, result_of("logit_lens", 4), {"n_prompts": 10})
    assert chosen_results(Plan(OUT=str(tmp_path), MODELS=["owner/x"])) == (["x"], ["gsm8k"])


def test_check_refuses_a_model_in_one_line(command, monkeypatch):
    def refuse(*_, **__):
        raise ArchitectureError("t5 is an encoder-decoder.")

    monkeypatch.setattr("depth_lib.models.load.load_model", refuse)
    assert command("check", "a/t5").status == 1 and command.error.strip() == "t5 is an encoder-decoder."


def test_init_writes_params_that_are_right_for_a_real_model(command, study):
    checkpoint = shutil.copytree(toy_path("toy-4l"), study / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    assert command("init", "my-model", "--model-id", "checkpoint").status == 0
    assert command.output.startswith("params/models/mine/my-model.yaml is written; ")
    (call,) = command("sweep", "--set", "mine", "--datasets", "gsm8k").calls
    expected = {"MODEL": "my-model", "MODEL_ID": "checkpoint", "SOURCE": "hub", "DEVICE_MAP": "auto"}
    assert {name: call[name] for name in expected} == expected and call["DTYPE"] == "bfloat16"
    assert command("init", "checkpoint", "--model-id", "").status == 0
    assert find_model("checkpoint")["MODEL_ID"] == "checkpoint"
    assert command("init", "toy-4l").status == 1 and "there is a model toy-4l" in command.error
    assert command("init", "of-toy", "--model-id", "toy-8l").status == 0 and find_model("of-toy")["DTYPE"] == "float32"
    assert command("init", "other", "--model-id", "a/b", "--n-examples", "3").status == 1
    assert 'of a model, key "N_EXAMPLES" is not known; use ' in command.error
    (call,) = command("sweep", "--models", "./checkpoint", "--datasets", "aime24", "--out", "outputs/own").calls
    assert (call["MODEL"], call["MODEL_ID"], call["DTYPE"]) == ("checkpoint", "./checkpoint", "bfloat16")
    shutil.rmtree(checkpoint)


def test_why_a_notebook_failed_is_its_own_line_and_not_one_that_has_the_word(tmp_path):
    log = tmp_path / "probe.log"
    log.write_text("a check printed FAILED: nothing\nFAILED: RuntimeError: no luck\nthe end\n")
    assert launch._why(log, 1) == "RuntimeError: no luck"


def test_a_log_that_cannot_be_opened_fails_the_run(command, study):
    (study / "outputs/demo/gsm8k/toy-4l/probe.log").mkdir(parents=True)
    assert command(*ONE).status == 1 and command.calls == []
    assert "FAILED: outputs/demo/gsm8k/toy-4l/probe.log: Is a directory; free the disk" in command.output


@pytest.mark.slow
def test_a_real_run_and_one_that_raises_never_write_the_key_or_the_token(study):
    secrets = {"NDIF_API_KEY": "ndif-key-0123456789", "HF_TOKEN": "hf_token0123456789", "JUPYTER_TOKEN": "jt0123456789"}
    shutil.copy(ROOT / "notebooks/probe.ipynb", study / "notebooks")
    chosen = ("MODELS=toy-4l", "DATASETS=addition aime24", "PROBES=logit_lens", "SOURCE=none.jsonl")
    done = run_make(study, "-k", "-j2", "sweep", *chosen, REAL="-", OMP_NUM_THREADS="1", **secrets)
    assert "addition × toy-4l: done in" in done.stdout and done.returncode != 0
    assert "aime24 × toy-4l: FAILED: PromptError: no file none.jsonl; check the path" in done.stdout
    written = [path for path in study.glob("outputs/**/*") if path.is_file()]
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
