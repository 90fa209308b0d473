"""What is typed, or stands in an environment, is read as its writer meant it."""

import sys
from types import SimpleNamespace

import pytest
from nbclient.exceptions import DeadKernelError

import depth_lib as dl
from depth_lib.params import ParamsError, command
from depth_lib.results.asked import RunSpec, asked_in
from depth_lib.results.provenance import State, Superseded
from depth_lib.sweep import execute, launch
from depth_lib.sweep import maps as of_two_models
from depth_lib.sweep.cli import main, parse
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.run import Run
from depth_lib.sweep.status import RunStatus, matrix
from tests.sweep.cells import parameters
from tests.synthetic import curves_with_depths


def test_no_word_at_all_is_answered_by_the_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2 and "COMMAND" in capsys.readouterr().err


def test_a_command_names_the_folder_unless_it_takes_that_by_itself():
    folders = [("demo", "outputs"), ("paper", "outputs"), ("demo", "outputs/demo"), ("paper", "outputs/demo")]
    named = ["--out" in command("sweep", SET=which, OUT=out) for which, out in folders]
    assert named == [True, False, False, True]


@pytest.mark.parametrize(("visible", "gpus"), [("-1", []), ("0, 1", ["0", "1"]), ("", []), ("GPU-5,2", ["GPU-5", "2"])])
def test_visible_gpus_are_cudas(monkeypatch, visible, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert launch.visible_gpus() == gpus


def test_a_sweep_with_nothing_left_needs_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(launch, "status_of", lambda run: RunStatus(run, {}, executed=True))
    four = Plan(SET="demo", TENSOR_PARALLEL=4, OUT=str(tmp_path))
    assert launch.run_unfinished(four) == 0
    with pytest.raises(ParamsError, match="TENSOR_PARALLEL is 4, and there are 1 GPUs"):
        launch.gpus_of_runs(four, four.runs())


def test_a_setting_that_the_probe_does_not_take_is_an_error_and_not_recorded_as_taken(tmp_path):
    with pytest.raises(TypeError, match="tolerance"):
        Run(parameters(tmp_path)).result("integrated_gradients", tolerance=0.001)


def test_a_value_is_no_option_and_a_second_argument_may_follow_an_option():
    assert [parse(["sweep", "--out", name])[1].OUT for name in ("./control", "control")] == ["./control", "control"]
    _, plan, arguments = parse(["run", "toy-8l", "--source", "embedded", "gsm8k"])
    assert plan.SOURCE == "embedded" and arguments == {"model": "toy-8l", "dataset": "gsm8k"}


def test_a_file_of_prompts_is_for_one_dataset(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("One text.\n")
    with pytest.raises(ParamsError, match="prompts of one dataset, and DATASETS are gsm8k mine; give one"):
        Plan(SOURCE=str(file), DATASETS=["gsm8k", "mine"], MODELS=["toy-4l"], OUT=str(tmp_path)).runs()


def test_maps_that_are_refused_name_the_command_of_the_same_texts(monkeypatch, tmp_path):
    of_other_texts = State("stale", tmp_path / "maps.pt", ["texts_hash: stored a, asked b"], {"texts_hash": "a"})
    monkeypatch.setattr(of_two_models, "judge", lambda path, wanted: of_other_texts)
    plan = Plan(OUT=str(tmp_path), N_CHARACTERS=5000)
    with pytest.raises(Superseded, match="--n-characters=5000 --replace"):
        of_two_models.maps(plan, "toy-4l", "toy-8l")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("Disk quota exceeded"), "FAILED: OSError: Disk quota exceeded"),
        (DeadKernelError("Kernel died"), "FAILED: DeadKernelError: ended by SIGABRT"),
    ],
)
def test_only_a_dead_kernels_error_is_how_the_kernel_ended(error, said, monkeypatch, capsys):
    def fails(*_):
        raise error

    monkeypatch.setattr(sys, "argv", ["execute", "in.ipynb", "out.ipynb", "{}"])
    monkeypatch.setattr(execute, "_execute", fails)
    monkeypatch.setattr(execute.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(execute._KernelManager, "how", "ended by SIGABRT")
    assert execute.main() == 1 and capsys.readouterr().err.strip() == said


def test_a_folder_whose_parameters_are_no_dict_is_named(tmp_path):
    folder = tmp_path / "gsm8k" / "toy-4l"
    folder.mkdir(parents=True)
    (folder / "probe.json").write_text("[]")
    with pytest.raises(ParamsError, match="probe.json cannot be read; remove it"):
        asked_in(folder)


def test_the_depths_of_a_run_are_of_its_own_number_of_examples(tmp_path):
    run = Run(parameters(tmp_path) | {"DATASET": "gsm8k", "N_EXAMPLES": 3, "PROBES": ["logit_lens"]})
    ed = dl.effective_depth_kl(run.result("logit_lens"))
    said = run.depths()
    other = curves_with_depths(4, None, 3 - ed, 0)["logit_lens"]
    dl.save_artifact(run.folder / "logitlens_10exps.pt", other, {"model": "toy-4l"})
    assert run.depths() == said


def test_what_has_no_column_in_the_status_is_named_below_it(tmp_path):
    run = RunSpec(parameters(tmp_path) | {"DATASET": "gsm8k", "PROBES": ["logit_lens"], "CONTROL": True})
    assert f"{run.name}: logit_lens, logit_lens@weights=random are missing" in matrix(tmp_path, [run])


def test_a_folder_is_not_compared_with_itself():
    with pytest.raises(SystemExit, match="compare needs two folders, and both are outputs/gsm8k/A"):
        main(["compare", "outputs/gsm8k/A", "outputs/gsm8k/A"])
