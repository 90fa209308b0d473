"""What make hands to the command: its variables, -j and -k; runs are stand-ins (see study.py)."""

import json
import re
import shlex
import subprocess
import time

import nbformat
import pytest

from depth_lib.params import ParamsError
from depth_lib.sweep import cli
from tests.sweep.study import ENVIRONMENT, ROOT, needs_make

pytestmark = needs_make
AWKWARD = """Who's "the $x" # of `5`, 100% \\ & so? --"""
TOY_4L = ("MODELS=toy-4l", "DATASETS=gsm8k", "SOURCE=embedded")


def test_help_lists_every_target_a_person_may_ask_for(make):
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    said = make("help").stdout
    assert all(f"make {target} " in said for target in phony.split()[1:])
    assert make().stdout == said, "make alone helps"


def test_a_demo_is_nine_runs_and_a_table_and_a_second_one_does_nothing(make, study):
    first = make("demo")
    assert first.returncode == 0, first.stderr
    *runs, table = first.calls
    toys, papers = ["toy-4l", "toy-8l", "toy-16l"], ["hellaswag", "gsm8k", "aime24"]
    assert {(run["DATASET"], run["MODEL"]) for run in runs} == {(one, toy) for one in papers for toy in toys}
    assert len(runs) == 9 and {run["SOURCE"] for run in runs} == {"embedded"}
    assert (table["OUT"], table["MODELS"], table["DATASETS"]) == ("outputs/demo", toys, papers), "small ones first"
    assert len(list((study / "outputs/demo").glob("*/*/*.pt"))) == 3 * (5 + 3 + 3)
    assert len(list((study / "outputs/demo").glob("*/*/probe.ipynb"))) == 9
    start = time.monotonic()
    assert make("demo").calls == []
    assert time.monotonic() - start < 10


def test_any_parameter_is_a_variable_of_make(make, study):
    (study / "it's my.jsonl").write_text('{"question": "1 + 1?", "answer": "2 #### 2"}\n')
    given = ("DTYPE=bfloat16", "N_EXAMPLES=1", "REMOTE=true", "QUANTIZATION=8bit", "SOURCE=it's my.jsonl", "SEED=7")
    (call,) = make("sweep", "MODELS=toy-4l", "DATASETS=gsm8k", "PROBES=logit_lens", "OUT=outputs/o v", *given).calls
    expected = {"DTYPE": "bfloat16", "N_EXAMPLES": 1, "REMOTE": True, "QUANTIZATION": "8bit", "SEED": 7}
    expected |= {"SOURCE": "it's my.jsonl", "PROBES": ["logit_lens"], "OUT": "outputs/o v"}
    assert {name: call[name] for name in expected} == expected


def test_the_command_to_go_on_repeats_every_variable_whatever_it_is_made_of(make, study):
    (study / "fail-toy-4l").touch()
    given = (f"QUESTION={AWKWARD.replace('$', '$$')}", "ANSWER=-10 'x'", "PROBES=residual_erasure logit_lens", "GPUS=5")
    given = (*TOY_4L, *given, "REMOTE=http://there:1", "LAUNCH=env A='b $$c' LAUNCHED=yes")
    said = make("sweep", *given)
    assert (said.calls[0]["QUESTION"], said.calls[0]["ANSWER"]) == (AWKWARD, "-10 'x'")
    assert (said.calls[0]["cuda_visible_devices"], said.calls[0]["launched"]) == ("5", "yes")
    again = re.search(r"then: (make .*)", said.stdout)[1]
    (study / "fail-toy-4l").unlink()
    (study / "calls.jsonl").unlink()
    done = subprocess.run(again, shell=True, cwd=study, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line) for line in (study / "calls.jsonl").read_text().splitlines()] == said.calls
    assert make(*shlex.split(again)[1:]).calls == [], "the same question"


def test_an_answer_from_the_environment_keeps_its_space(make):
    (call,) = make("sweep", *TOY_4L, "QUESTION=2 + 10 =", ANSWER=" 12").calls
    assert call["ANSWER"] == " 12"


@pytest.mark.parametrize(
    ("flags", "how"),
    [
        ("k -j2 --jobserver-auth=3,4 -- SET=demo", ["--set=demo", "--jobs", "2", "--keep-going"]),
        (" -j -- MODELS=a\\ b", ["--models", "a", "b", "--jobs", "0"]),
        (" -- JOBS=4 LAUNCH=srun\\ A=b", ["--jobs=4", "--launch=srun A=b"]),
        ("", []),
    ],
)
def test_jobs_and_variables_are_read_from_make(monkeypatch, flags, how):
    monkeypatch.setenv("MAKEFLAGS", flags)
    for name, value in {"SET": "demo", "MODELS": "a b", "JOBS": "4", "LAUNCH": "srun A=b"}.items():
        monkeypatch.setenv(name, value)
    assert cli._from_make(["sweep"])[1:] == how


def test_a_make_that_hides_the_number_of_its_jobs_is_answered_with_the_variable(monkeypatch):
    monkeypatch.setenv("MAKEFLAGS", " --jobserver-fds=3,4 -j")  # GNU make 3.81, which macOS has
    with pytest.raises(ParamsError, match="write JOBS=4 instead"):
        cli._from_make(["sweep"])


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("MODEL=toy-4l", 'variable "MODEL" is not known; did you mean MODELS?'),
        ("PAIRS=spouse", 'variable "PAIRS" is not known; did you mean PAIR?'),
        ("N_EXAMPLE=3", 'variable "N_EXAMPLE" is not known; did you mean N_EXAMPLES?'),
        ("LIMIT=3", 'variable "LIMIT" is not known; use "ANSWER", '),
        ("JOBS=one", "'one' is no number of runs side by side"),
        ("REMOTE=yes please", 'REMOTE is "yes please"; use true, false, "local" or a host'),
        ("N_EXAMPLES=ten", 'N_EXAMPLES is "ten"; it should be a valid integer: number of prompts'),
    ],
)
def test_a_variable_is_understood_or_refused(make, variable, said):
    done = make("sweep", "SET=demo", variable)
    assert done.returncode != 0 and done.calls == [] and said in done.stderr


def test_a_pipe_that_is_closed_early_is_no_traceback(make, study):
    ask = "make status SET=paper | head -n 1"
    done = subprocess.run(["bash", "-c", ask], cwd=study, env=ENVIRONMENT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "dataset" in done.stdout


@pytest.mark.slow
def test_the_kernel_is_this_environments_whatever_kernelspec_a_user_has(make, study, tmp_path):
    elsewhere = tmp_path / ".local/share/jupyter/kernels/python3"
    elsewhere.mkdir(parents=True)
    spec = {"argv": ["/bin/false", "{connection_file}"], "display_name": "elsewhere", "language": "python"}
    (elsewhere / "kernel.json").write_text(json.dumps(spec))
    parameters = nbformat.v4.new_code_cell("OUT = DATASET = MODEL = None", metadata={"tags": ["parameters"]})
    writes = nbformat.v4.new_code_cell(
        'import pathlib\npathlib.Path(OUT, DATASET, MODEL, "logitlens_5exps.pt").touch()'
    )
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    template = study / "notebooks" / "probe.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[parameters, writes], metadata=kernel), template)
    user = {"HOME": str(tmp_path), "JUPYTER_PATH": f"{tmp_path}/.local/share/jupyter", "REAL": "-"}
    said = make("sweep", "MODELS=toy-4l", "DATASETS=aime24", "PROBES=logit_lens", **user)
    assert "aime24 × toy-4l: done in" in said.stdout, said.stdout
