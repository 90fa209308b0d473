"""Figures of a study have a panel for each of its runs, and are saved whole."""

import itertools
import re
import warnings

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from depth_lib.figures.grids import grid, save_figures
from depth_lib.figures.kinds import KINDS
from depth_lib.results.schemas import MissingArtifact, artifact_path
from depth_lib.results.study import Study
from tests.figures.conftest import THREE_PROBES, TOYS
from tests.figures.drawn import panels
from tests.synthetic import DATASETS, write_run

SINGLE = [name for name in KINDS if not KINDS[name].together]
WITHOUT_REPEATS = set(KINDS) - {part for kind in KINDS.values() for part in kind.shows}


@pytest.mark.parametrize("name", SINGLE)
def test_a_figure_has_a_panel_for_every_model_and_dataset_that_has_the_kind(toys, name):
    datasets = DATASETS if KINDS[name].probe in THREE_PROBES else ["gsm8k"]
    titles = {ax.get_title() for ax in panels(grid(name, Study(toys)))}
    assert titles == (
        {f"{model}\n{dataset}" for model in TOYS for dataset in datasets} if len(datasets) > 1 else set(TOYS)
    )


def test_panels_show_their_own_model_and_dataset(toys):
    for ax in panels(grid("layer_effects", Study(toys))):
        model, dataset = ax.get_title().split("\n")
        stored = torch.load(artifact_path(toys, dataset, model, "layer_effects", 3), weights_only=True)
        np.testing.assert_array_equal(ax.get_images()[0].get_array(), stored["max_future_layer"])


def test_small_maps_count_layers_in_whole_numbers(toys):
    figure = grid("layer_effects_modes", Study(toys, ["toy-4l"]))
    assert all(float(tick).is_integer() for ax in panels(figure) for tick in (*ax.get_xticks(), *ax.get_yticks()))


def test_models_and_columns_can_be_chosen(toys):
    figure = grid("lens_kl", Study(toys, ["toy-16l", "toy-4l"], ["gsm8k", "aime24"]), columns=2)
    first_row = ["toy-16l\ngsm8k", "toy-16l\naime24", "toy-4l\ngsm8k", "toy-4l\naime24"]
    assert [ax.get_title() for ax in sorted(panels(figure), key=lambda ax: ax.get_position().x0)] == first_row
    assert len({ax.get_position().y0 for ax in panels(figure)}) == 1


def rows_of(figure):
    """The panels of a figure, row by row."""
    by_height = sorted(panels(figure), key=lambda ax: (-round(ax.get_position().y0, 4), ax.get_position().x0))
    return [list(row) for _, row in itertools.groupby(by_height, key=lambda ax: round(ax.get_position().y0, 4))]


@pytest.mark.parametrize("name", ["cosine", "norms", "output_change_modes", "lens_kl"])
def test_curves_in_a_row_have_one_scale_with_its_numbers_at_the_left(toys, name):
    for row in rows_of(grid(name, Study(toys))):
        assert len({ax.get_ylim() for ax in row}) == 1 and len({ax.get_yscale() for ax in row}) == 1
        assert [ax.yaxis.get_tick_params()["labelleft"] for ax in row] == [True] + [False] * (len(row) - 1)


def test_three_models_stand_in_a_row_without_an_empty_place(toys):
    for name in ("residual_erasure", "integrated_gradients"):
        assert [len(row) for row in rows_of(grid(name, Study(toys)))] == [3]


def test_what_is_missing_is_an_empty_panel_that_says_so(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)
    write_run(tmp_path, "aime24", "toy-8l", 8, ["logit_lens"], n_examples=3)
    found = {ax.get_title(): [text.get_text() for text in ax.texts] for ax in panels(grid("lens_kl", Study(tmp_path)))}
    assert found == {
        "toy-4l\ngsm8k": [],
        "toy-4l\naime24": ["missing"],
        "toy-8l\ngsm8k": ["missing"],
        "toy-8l\naime24": [],
    }


def test_a_kind_without_any_result_is_left_out_and_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(MissingArtifact, match="run: make sweep"):
        save_figures(Study(tmp_path))
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)
    with pytest.raises(MissingArtifact, match="no residual_erasure artifacts under .* PROBES=residual_erasure"):
        grid("residual_erasure", Study(tmp_path))
    lens = ("lens_kl", "lens_overlap", "lens_first_k", "lens_entropy", "lens_settled")
    written = [path.name for path in save_figures(Study(tmp_path))]
    assert written == [f"{name}.{ending}" for name in lens for ending in ("png", "pdf")]


def test_the_papers_files_are_drawn_too(tmp_path):
    write_run(tmp_path, "gsm8k", "Qwen2.5-7B", 28, ["layer_effects", "residual_erasure"], papers_keys_only=True)
    with (
        pytest.warns(UserWarning, match="1 of 1 layer_effects results .* have no meta"),
        pytest.warns(UserWarning, match="1 of 1 residual_erasure results .* have no meta"),
    ):
        assert [path.stem for path in save_figures(Study(tmp_path))[::2]] == [
            "layer_effects",
            "output_change",
            "residual_erasure",
        ]


def test_saving_writes_vector_bars_and_image_heat_maps_and_leaves_nothing_open(one):
    style = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = save_figures(Study(one))
    assert {path.relative_to(one) for path in paths} == {
        (one / "figures" / f"{name}.{ending}").relative_to(one) for name in WITHOUT_REPEATS for ending in ("pdf", "png")
    }
    for path in paths:
        content = path.read_bytes()
        if path.suffix == ".pdf":
            assert content.startswith(b"%PDF")
            # A colour bar is an image or a patch; only a heat map has an image as large as itself.
            images = [int(width) for width in re.findall(rb"/Width (\d+)", content)]
            assert bool(images and max(images) > 100) == (KINDS[path.stem].colorbar is not None), path.name
        else:
            assert plt.imread(path).shape[2] == 4 and plt.imread(path)[..., :3].std() > 0.02
    assert plt.get_fignums() == [] and dict(matplotlib.rcParams) == style


def test_saving_twice_gives_the_same_bytes(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-8l", 8, ["residual_erasure"])
    first = [path.read_bytes() for path in save_figures(Study(tmp_path))]
    assert [path.read_bytes() for path in save_figures(Study(tmp_path))] == first
