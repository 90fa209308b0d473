"""The Makefile's graph: what runs, with which parameters, and what does not run again.

A stand-in for papermill keeps these quick (tests/sweep/study.py).
"""

import json
import os
import sys
import time

import nbformat
import pytest

from depth_lib.params import ParamsError
from depth_lib.sweep.plan import Plan
from tests.sweep.study import ROOT, needs_make

pytestmark = needs_make
TOYS = ("toy-16l", "toy-4l", "toy-8l")
RUNS = sorted((dataset, toy) for dataset in ("aime24", "gsm8k", "hellaswag") for toy in TOYS)
TOY_8L_ON_GSM8K = ("sweep", "MODELS=toy-8l", "DATASETS=gsm8k", "OUT=outputs/demo")


def test_help_lists_every_target_a_person_may_ask_for(make):
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    said = make("help").stdout
    for target in phony.split()[1:]:
        assert f"make {target} " in said
    assert make().stdout == said, "make alone helps"


def test_a_demo_is_nine_runs_and_a_table_and_a_second_one_does_nothing(make, study):
    first = make("demo")
    assert first.returncode == 0, first.stderr
    *runs, table = first.calls
    assert sorted((run["DATASET"], run["MODEL"]) for run in runs) == RUNS
    assert all(run["notebook"] == "notebooks/probe.ipynb" and run["SOURCE"] == "embedded" for run in runs)
    assert table["notebook"] == "notebooks/effective_depth.ipynb" and table["OUT"] == "outputs/demo"
    assert table["MODELS"] == ["toy-4l", "toy-8l", "toy-16l"], "small ones first"
    assert table["DATASETS"] == ["hellaswag", "gsm8k", "aime24"]
    demo = study / "outputs" / "demo"
    assert len(list(demo.glob("*/*/*.pt"))) == 3 * (5 + 3 + 3)
    assert len(list(demo.glob("*/*/probe.ipynb"))) == 9 and not list(demo.glob("**/*.partial.ipynb"))
    start = time.monotonic()
    assert make("demo").calls == []
    assert time.monotonic() - start < 10


def test_a_run_gets_the_notebooks_parameters_and_no_others(make):
    call = make(*TOY_8L_ON_GSM8K).calls[0]
    assert {key: call[key] for key in call if key.isupper()} == {
        "MODEL": "toy-8l",
        "MODEL_ID": "toy-8l",
        "REVISION": None,
        "DTYPE": "float32",
        "QUANTIZATION": None,
        "DEVICE_MAP": None,
        "REMOTE": False,
        "DATASET": "gsm8k",
        "N_EXAMPLES": 10,
        "SOURCE": "embedded",
        "PROBES": ["relative_contribution", "layer_effects", "logit_lens", "residual_erasure", "integrated_gradients"],
        "SEED": 123,
        "OUT": "outputs/demo",
    }


def test_what_the_command_line_says_overrides_the_params_files(make, study):
    chosen = ("MODELS=toy-8l Qwen2.5-14B", "DATASETS=aime24 addition")
    (study / "my.jsonl").write_text('{"Problem": "1 + 1", "Solution": "2"}\n')
    said = make("sweep", *chosen, "SOURCE=my.jsonl", "REMOTE=1", "OUT=outputs/o")
    assert said.runs == [(d, m) for d in ("addition", "aime24") for m in ("Qwen2.5-14B", "toy-8l")]
    assert {(call["SOURCE"], call["REMOTE"], call["OUT"]) for call in said.calls} == {("my.jsonl", True, "outputs/o")}
    assert make("sweep", "MODELS=Llama-3.1-8B", "DATASETS=aime24", "REMOTE=0").calls[0]["REMOTE"] is False
    assert make("sweep", "MODELS=toy-4l", "DATASETS=aime24", "REMOTE=local").calls[0]["REMOTE"] == "local"


def test_a_missing_result_runs_its_notebook_again_and_the_table(make, study):
    make("demo")
    (study / "outputs/demo/gsm8k/toy-8l/logitlens_10exps.pt").unlink()
    again = make("demo")
    assert [(call.get("DATASET"), call.get("MODEL")) for call in again.calls] == [("gsm8k", "toy-8l"), (None, None)]
    assert make("demo").calls == []


def test_changed_params_run_what_they_concern(make, study):
    make("sweep", "SET=demo")
    os.utime(study / "params/models/demo/toy-4l.yaml")
    os.utime(study / "params/datasets/gsm8k.yaml")
    assert make("sweep", "SET=demo").runs == [run for run in RUNS if run[0] == "gsm8k" or run[1] == "toy-4l"]
    assert make("sweep", "SET=demo").runs == []


def test_chosen_probes_run_only_where_a_dataset_has_them_and_the_rest_later(make):
    chosen = make("sweep", "SET=demo", "MODELS=toy-8l", "PROBES=residual_erasure logit_lens")
    assert {call["DATASET"]: call["PROBES"] for call in chosen.calls} == {
        "gsm8k": ["residual_erasure", "logit_lens"],
        "hellaswag": ["logit_lens"],
        "aime24": ["logit_lens"],
    }
    erasure = ("sweep", "SET=demo", "MODELS=toy-4l toy-8l", "PROBES=residual_erasure")
    assert make(*erasure).runs == [("gsm8k", "toy-4l")], "toy-8l has it, other datasets do not want it"
    assert make("sweep", "SET=demo", "MODELS=toy-8l").runs == [(dataset, "toy-8l") for dataset, _ in RUNS[::3]]


def test_a_failed_run_says_why_stops_no_other_and_is_repeated(make, study):
    (study / "fail-toy-4l").touch()
    failed = make("-k", "sweep", "SET=demo", "DATASETS=gsm8k")
    assert failed.returncode != 0 and len(failed.calls) == 3
    assert "gsm8k × toy-4l: FAILED: RuntimeError: no luck; remove the file\n" in failed.stdout
    assert "make sweep MODELS=toy-4l DATASETS=gsm8k OUT=outputs/demo" in failed.stdout
    folder = study / "outputs/demo/gsm8k/toy-4l"
    assert not (folder / "probe.ipynb").exists() and (folder / "probe.partial.ipynb").exists()
    (study / "fail-toy-4l").unlink()
    again = make("sweep", "SET=demo", "DATASETS=gsm8k")
    assert again.returncode == 0 and again.runs == [("gsm8k", "toy-4l")]
    assert (folder / "probe.ipynb").exists() and not (folder / "probe.partial.ipynb").exists()


def test_a_notebook_that_ends_well_without_its_results_has_failed(make, study):
    (study / "idle").touch()
    idle = make(*TOY_8L_ON_GSM8K)
    assert idle.returncode != 0
    assert "FAILED: the notebook left no outputs/demo/gsm8k/toy-8l/relative_contribution.pt" in idle.stdout


def test_launch_stands_before_each_run_and_not_before_the_table(make):
    launched = make("sweep", "table", "SET=demo", "OUT=outputs/l", "LAUNCH=env LAUNCHED=yes", "MODELS=toy-4l")
    assert [call["launched"] for call in launched.calls if call.get("MODEL")] == ["yes"] * 3
    assert [call["launched"] for call in launched.calls if "MODELS" in call] == [None]


def test_the_kernel_is_this_environments_whatever_kernelspec_a_user_has(make, study, tmp_path):
    elsewhere = tmp_path / ".local/share/jupyter/kernels/python3"
    elsewhere.mkdir(parents=True)
    spec = {"argv": ["/bin/false", "{connection_file}"], "display_name": "elsewhere", "language": "python"}
    (elsewhere / "kernel.json").write_text(json.dumps(spec))
    parameters = nbformat.v4.new_code_cell("OUT = DATASET = MODEL = None", metadata={"tags": ["parameters"]})
    writes = nbformat.v4.new_code_cell(
        'import sys, pathlib\npathlib.Path(OUT, DATASET, MODEL, "logitlens_5exps.pt").write_text(sys.executable)'
    )
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    template = study / "notebooks" / "probe.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[parameters, writes], metadata=kernel), template)
    user = (f"HOME={tmp_path}", f"JUPYTER_PATH={tmp_path}/.local/share/jupyter", "REAL=-")
    said = make("sweep", "MODELS=toy-4l", "DATASETS=aime24", "PROBES=logit_lens", *user)
    assert "aime24 × toy-4l: done in" in said.stdout, said.stdout
    assert (study / "outputs/aime24/toy-4l/logitlens_5exps.pt").read_text() == sys.executable


def test_jobs_side_by_side_share_the_cores(make):
    alone, together = make(*TOY_8L_ON_GSM8K), make("-j2", *TOY_8L_ON_GSM8K[:3], "OUT=outputs/two")
    assert alone.calls[0]["threads"] is None
    assert int(together.calls[0]["threads"]) == (len(os.sched_getaffinity(0)) + 1) // 2
    own = make("-j2", *TOY_8L_ON_GSM8K[:3], "OUT=outputs/own", "OMP_NUM_THREADS=7")
    assert own.calls[0]["threads"] == "7"
    inherited = [make("-j2", *TOY_8L_ON_GSM8K[:3], f"OUT=outputs/of{n}", OMP_NUM_THREADS=n) for n in ("77", "1")]
    assert [run.calls[0]["threads"] for run in inherited] == [together.calls[0]["threads"], "1"]


@pytest.mark.parametrize(
    "argument, message",
    [
        ("MODELS=own", "no params/models/*/own.yaml; there are DeepSeek-R1-Distill-Qwen-1.5B "),
        (
            "DATASETS=gsm",
            "no params/datasets/gsm.yaml; did you mean gsm8k? There are addition aime24 gsm8k hellaswag math mquake "
            "multiplication sums.",
        ),
        (
            "PROBES=logitlens",
            "no probe logitlens; did you mean logit_lens? There are relative_contribution layer_effects logit_lens ",
        ),
        ("SET=papers", "no set papers; params/models has demo ndif paper real training."),
        ("PROBES=igrads_attention", "no probe igrads_attention; did you mean attention_gradients? There are "),
        ("MODEL=toy-4l", 'no variable MODEL; write MODELS="toy-4l"'),
        ("PAIRS=spouse", 'no variable PAIRS; write PAIR="spouse"'),
        ("SETS=demo", 'no variable SETS; write SET="demo"'),
        ("N_EXAMPLES=3", "no variable N_EXAMPLES; set it in params/datasets/"),
    ],
)
def test_an_unknown_name_stops_before_anything_runs(make, argument, message):
    said = make("sweep", argument)
    assert said.returncode != 0 and said.calls == [] and message in said.stderr


def test_a_typo_in_any_params_file_stops_before_anything_runs(make, study):
    typo = study / "params/models/paper/Typo.yaml"
    typo.write_text("MODEL: Typo\nDTYP: float32\nN_EXAMPLES: ten\n")
    try:
        said = make(*TOY_8L_ON_GSM8K)
        assert said.returncode != 0 and said.calls == []
        assert "params/models/paper/Typo.yaml: unknown key DTYP; did you mean DTYPE?" in said.stderr
        assert 'params/models/paper/Typo.yaml: N_EXAMPLES is "ten" (text)' in said.stderr
        typo.write_text("PROBES: [logitlens]\n")
        said = make("sweep", "MODELS=Typo", "DATASETS=gsm8k")
        assert said.returncode != 0 and said.calls == []
    finally:
        typo.unlink()


def test_the_table_is_made_again_when_a_result_comes_goes_or_is_replaced(make, study):
    make("demo")
    demo = study / "outputs/demo"
    for change in (
        lambda: (demo / "gsm8k/toy-8l/logitlens_10exps.pt").write_text("replaced"),
        lambda: (demo / "gsm8k/toy-8l/logitlens_10exps.pt").unlink(),
        lambda: (demo / "effective_depth.xlsx").unlink(),
    ):
        time.sleep(0.02)
        change()
        assert len(make("table", "OUT=outputs/demo").calls) == 1
        again = make("table", "OUT=outputs/demo")
        assert again.returncode == 0 and again.calls == [], again.stderr


def test_a_folder_without_a_set_is_that_of_the_results_in_it(tmp_path):
    assert "Qwen2.5-7B-Instruct" in Plan(out=str(tmp_path)).all_models
    (tmp_path / "gsm8k/toy-8l").mkdir(parents=True)
    (tmp_path / "gsm8k/toy-8l/relative_contribution.pt").touch()
    assert Plan(out=str(tmp_path)).all_models == ["toy-4l", "toy-8l", "toy-16l"]
    assert "SmolLM2-135M-Instruct" in Plan(out=str(tmp_path), set="real").all_models
    with pytest.raises(ParamsError, match="no set papers; params/models has demo "):
        assert Plan(set="papers", models=("toy-4l",)).all_models
