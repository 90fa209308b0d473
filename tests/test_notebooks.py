"""The notebooks as papermill runs them on the smallest toy, and without a kernel where that shows as much."""

import re

import matplotlib.pyplot as plt
import papermill
import pytest
from transformers.utils import logging

import depth_lib as dl
from depth_lib.embedded import toy_path
from depth_lib.params import FIVE_PROBES
from tests.cells import run_cells
from tests.notebooks import NOTEBOOKS, ROOT, executed_here, n_pictures, printed
from tests.synthetic import artifact_path

PROBE = {"MODEL": "toy-4l", "MODEL_ID": "toy-4l", "DATASET": "gsm8k", "N_EXAMPLES": 1}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def first(out):
    """The probe notebook run once, into an empty folder."""
    return executed_here("probe", **PROBE, OUT=str(out))


def paths(out):
    return {probe: artifact_path(out, "gsm8k", "toy-4l", probe, 1) for probe in FIVE_PROBES}


def test_the_probe_notebook_leaves_every_result_and_shows_every_figure(first, out):
    assert all(path.is_file() for path in paths(out).values())
    assert printed(first).count(": computed in") == len(FIVE_PROBES)
    assert n_pictures(first) == 8
    assert "toy-4l @ gsm8k, kl: " in printed(first)


@pytest.mark.slow
def test_a_run_of_one_probe_shows_every_result_that_is_kept_and_computes_none_of_them_again(first, out, monkeypatch):
    """In a kernel, as papermill starts it, from a folder that is not the project's."""
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    given = PROBE | {"OUT": str(out), "PROBES": ["logit_lens"]}
    how = {"kernel_name": "python3", "cwd": out, "progress_bar": False}
    again = papermill.execute_notebook(ROOT / "notebooks/probe.ipynb", None, given, **how)
    assert n_pictures(again) == n_pictures(first) and ": computed in" not in printed(again)
    assert printed(again).count(": read from ") == len(FIVE_PROBES)


@pytest.mark.slow
def test_quickstart_says_and_draws_what_it_is_committed_with(capsys):
    """Its words are the same; numbers may differ by what another CPU rounds otherwise."""
    plt.close("all")
    logging.disable_progress_bar()
    run_cells("quickstart")
    logging.enable_progress_bar()
    assert len(plt.get_fignums()) == n_pictures(NOTEBOOKS["quickstart"]) >= 9
    plt.close("all")
    committed, now = printed(NOTEBOOKS["quickstart"]), capsys.readouterr().out
    number = r"\d+(?:\.\d+)?"
    assert re.sub(number, "#", committed) == re.sub(number, "#", now)
    pairs = zip(re.findall(number, committed), re.findall(number, now), strict=True)
    assert all(float(a) == pytest.approx(float(b), rel=0.02) for a, b in pairs)
    for rule in ("cosine", "KL", "overlap"):
        assert f"\n{rule}" in now


@pytest.mark.slow
def test_the_notebook_of_maps_shows_a_picture_and_a_slope_for_each_pair_and_keeps_the_maps(tmp_path):
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner/model").symlink_to(toy_path("toy-4l"))
    notebook = executed_here(
        "linear_maps", MODELS=["toy-4l", str(tmp_path / "owner/model"), "toy-8l"], OUT=str(tmp_path)
    )
    assert n_pictures(notebook) == 2 and "slope 1.00 [1.00, 1.00]" in printed(notebook)
    maps = {path.name: dl.load_artifact(path) for path in tmp_path.glob("linear_maps/*.pt")}
    assert maps.keys() == {"linear_map_toy-4l_to_model.pt", "linear_map_model_to_toy-8l.pt"}
    assert maps["linear_map_model_to_toy-8l.pt"]["meta"]["model"] == "model to toy-8l"
    assert maps["linear_map_model_to_toy-8l.pt"]["relative"].shape == (5, 9)


def test_bad_input_ends_the_notebook_with_one_line_that_names_it():
    with pytest.raises(ValueError, match="^MODEL_ID=toy-9l is neither a folder nor a Hub id[^\n]*$"):
        run_cells("probe", MODEL_ID="toy-9l", SOURCE="embedded")


@pytest.mark.slow
def test_the_notebook_about_difficulty_answers_with_a_slope_and_its_interval():
    ran = executed_here("depth_by_difficulty", MODEL="toy-4l", N_PER_LEVEL=4)
    assert n_pictures(ran) == 4  # maps, importance twice, scores
    shown = [out.get("data", {}).get("text/html", "") for cell in ran.cells for out in cell.get("outputs", ())]
    assert "slope_low" in "".join(shown) and "level 6: " in printed(ran)
