"""What is typed, or stands in an environment, is read as its writer meant it."""

import pytest

from depth_lib.params import ParamsError, command
from depth_lib.sweep import launch
from depth_lib.sweep.cli import main
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.run import Run
from depth_lib.sweep.status import RunStatus
from tests.sweep.cells import parameters


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
