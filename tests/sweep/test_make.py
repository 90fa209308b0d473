"""What make hands to the command: its variables, -j and -k; runs are stand-ins (see study.py)."""

import json
import shlex
import shutil
import subprocess

import nbformat
import pytest

from depth_lib.embedded import toy_path
from tests.sweep.study import ENVIRONMENT, ROOT, needs_make

pytestmark = needs_make
AWKWARD = """Who's "the $x" # of `5`, 100% \\ & so? --"""


def test_help_lists_every_target_a_person_may_ask_for(make):
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    shown = make("help").stdout
    assert all(f"make {target} " in shown for target in phony.split()[1:])
    assert make().stdout == shown, "make alone helps"


def test_any_parameter_is_a_variable_of_make_and_a_path_or_a_word_may_be_awkward(make, study):
    (study / "it's my.jsonl").write_text('{"question": "1 + 1?", "answer": "2 #### 2"}\n')
    shutil.copytree(toy_path("toy-4l"), study / "my models" / "toy")
    which = ("MODELS=my models/toy", "DATASETS=gsm8k", "PROBES=residual_erasure logit_lens", "OUT=outputs/o v")
    given = ("DTYPE=bfloat16", "N_EXAMPLES=1", "REMOTE=local", "REVISION=v1", "SOURCE=it's my.jsonl", "SEED=7")
    asked = (f"QUESTION={AWKWARD.replace('$', '$$')}", "ANSWER=-10 'x'", "CUDA_VISIBLE_DEVICES=5")
    (line,) = make("sweep", *which, *given, *asked, "LIST=1").stdout.splitlines()
    _, _, model, dataset, *options = shlex.split(line)
    assert (model, dataset) == ("toy", "gsm8k")
    expected = {"--probes=residual_erasure logit_lens", "--out=outputs/o v", f"--model-id={study / 'my models/toy'}"}
    expected |= {"--dtype=bfloat16", "--n-examples=1", "--remote=local", "--revision=v1", "--seed=7"}
    assert {*options} == expected | {"--source=it's my.jsonl", f"--question={AWKWARD}", "--answer=-10 'x'"}


def test_jobs_and_keep_going_are_makes_own_flags(make, study):
    """A word of a variable that looks like a flag is none."""
    (study / "fail-toy-4l").touch()
    stopped = make("sweep", "SET=demo", "DATASETS=gsm8k", "QUESTION=a -j9 -k", "ANSWER=b")
    assert len(stopped.calls) == 1 and "1 at a time" in stopped.stdout
    (study / "fail-toy-8l").touch()
    done = make("-k", "-j2", "sweep", "SET=demo", "MODELS=toy-4l toy-8l", "DATASETS=gsm8k")
    assert len(done.calls) == 2 and "2 at a time" in done.stdout
    assert make("-k", "-j2", "status", "SET=demo").returncode == 0, "of which they are none"


def test_maps_get_their_models_and_every_option(make):
    words = ("SOURCE_MODEL=a", "TARGET_MODEL=my b", "N_CHARACTERS=9", "DTYPE=float64", "PY=printf '%s|'")
    given = make("maps", *words).stdout
    assert given.startswith("-m|depth_lib.sweep|maps|a|my b|") and "--N_CHARACTERS=9|" in given
    assert "--DTYPE=float64|" in given and "SOURCE_MODEL" not in given
    assert 'maps option "--n-character" is not known; did' in make("maps", "N_CHARACTER=9").stderr


def test_what_make_does_not_know_is_refused_and_a_pipe_that_is_closed_early_is_no_traceback(make, study):
    for words, why in (
        (("-j", "sweep", "SET=demo"), 'JOBS is ""; give a whole number (number of runs at a time'),
        (("sweep", "SET=demo", "MODEL=toy-4l"), 'sweep option "--model" is not known; did you mean --models?'),
    ):
        refused = make(*words)
        answer, _ = refused.stderr.splitlines()  # the second line is make's own
        assert refused.returncode != 0 and refused.calls == [] and answer.startswith(why)
    status = "make status SET=demo | true"  # which is gone before a word is written
    done = subprocess.run(["bash", "-c", status], cwd=study, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.slow
def test_the_kernel_is_this_environments_whatever_kernelspec_a_user_has(make, study, tmp_path):
    elsewhere = tmp_path / ".local/share/jupyter/kernels/python3"
    elsewhere.mkdir(parents=True)
    spec = {"argv": ["/bin/false", "{connection_file}"], "display_name": "elsewhere", "language": "python"}
    (elsewhere / "kernel.json").write_text(json.dumps(spec))
    parameters = nbformat.v4.new_code_cell("OUT = DATASET = MODEL = None", metadata={"tags": ["parameters"]})
    says = nbformat.v4.new_code_cell("pass")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    template = study / "notebooks" / "probe.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[parameters, says], metadata=kernel), template)
    user = {"HOME": str(tmp_path), "JUPYTER_PATH": f"{tmp_path}/.local/share/jupyter", "REAL": "-"}
    done = make("sweep", "MODELS=toy-4l", "DATASETS=aime24", "PROBES=logit_lens", **user)
    said = "aime24 × toy-4l: FAILED: the notebook ended, and logit_lens is missing"
    assert said in done.stdout, "it ran in a kernel that runs"
