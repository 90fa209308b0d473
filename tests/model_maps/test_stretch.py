"""The numbers that answer the question, on matrices whose answer is seen, and the file and figure they come with."""

import re
import shlex
import shutil

import numpy as np
import pytest
import torch

from depth_lib.embedded import toy_path
from depth_lib.figures import linear_maps_figure
from depth_lib.model_maps.stretch import stretch
from depth_lib.results.artifacts import load_artifact
from depth_lib.results.schemas import SCHEMAS, MissingArtifact, parse_name
from depth_lib.results.study import Study
from depth_lib.sweep.cli import main


def test_a_perfect_stretch_has_rank_correlation_one_no_distance_and_a_price_elsewhere():
    relative = np.full((5, 5), 0.8) - 0.7 * np.eye(5)
    expected = {"rank_correlation": 1, "distance": 0, "predicted": 1, "penalty": 0.7}
    assert stretch({"relative": relative}) == pytest.approx(expected)
    flat = stretch({"relative": np.ones((3, 4))})
    assert np.isnan(flat["rank_correlation"]) and flat["predicted"] == 0, "one best layer for all has no order"


def test_the_figure_shows_every_cell_the_best_ones_and_the_diagonal():
    relative = np.random.default_rng(2).random((4, 7))
    figure = linear_maps_figure({"relative": relative, "best": relative.argmin(0)}, "toy_4$l", "toy-8l")
    ax = figure.axes[0]
    assert np.array_equal(ax.images[0].get_array(), relative)
    diagonal, best = ax.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [6, 3]]
    assert np.array_equal(best.get_ydata(), relative.argmin(0))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Layer of toy-8l", "Layer of toy_4$l")


@pytest.mark.filterwarnings("ignore:.*tokens are few")
def test_make_maps_leaves_result_and_figure_computes_nothing_twice_and_no_study_takes_it_for_its_own(tmp_path, capsys):
    text, folder = tmp_path / "sums.txt", tmp_path / "outputs" / "linear_maps"
    sums = [" ".join(f"{a} + {b} = {a + b}" for b in range(0, 60, 6)) for a in range(40)]
    text.write_text("\n\n".join(sums))
    asked = ["maps", "toy-4l", "toy-4l", "--n-characters", "2500", "--out", str(tmp_path / "outputs"), "--texts"]
    assert main([*asked, str(text)]) == 0
    path = folder / "linear_map_toy-4l_to_toy-4l.pt"
    shown = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert shown == {path.with_suffix(end).name for end in (".pt", ".pdf", ".png")}
    assert parse_name(path).probe == "linear_map"
    result = load_artifact(path)
    assert SCHEMAS["linear_map"].required.keys() <= result.keys()
    assert result["relative"].diagonal().max() < 1e-5
    assert result["meta"]["texts"] == str(text) and 20 < result["meta"]["n_texts"] < 40
    capsys.readouterr()
    text.rename(text.with_name("renamed.txt"))
    text = text.with_name("renamed.txt")
    copy = shutil.copytree(toy_path("toy-4l"), tmp_path / "toy-4l")
    for same in (asked, ["maps", str(copy), "toy-4l", *asked[3:]]):
        assert main([*same, str(text)]) == 0
        assert "nothing to compute" in capsys.readouterr().out, "texts and weights are compared, not their names"
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-2] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    with pytest.raises(SystemExit, match="was not made as asked .of_models: stored"):
        main(["maps", str(copy), "toy-4l", *asked[3:], str(text)])
    rounded = [*asked, str(text), "--dtype", "bfloat16"]
    with pytest.raises(SystemExit) as refused:
        main(rounded)
    remedy = re.search("dtype: stored None, asked bfloat16.*compute it again: .*depth-lib (.*)", str(refused.value))[1]
    assert main(shlex.split(remedy)) == 0
    assert "linear_map_toy-4l_to_toy-4l.pt.superseded-1" in capsys.readouterr().out
    found = load_artifact(path)
    assert found["meta"]["dtype"] == "bfloat16" and not np.array_equal(found["relative"], result["relative"])
    assert main([*asked, str(text), "--what", "contribution"]) == 0
    assert (folder / "linear_map_contribution_toy-4l_to_toy-4l.pt").is_file()
    assert torch.equal(load_artifact(path)["relative"], found["relative"])
    with pytest.raises(MissingArtifact):
        Study(tmp_path / "outputs")
    with pytest.raises(SystemExit, match="no file .*none.txt; check the path"):
        main([*asked, str(tmp_path / "none.txt")])
