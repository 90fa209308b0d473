"""Levels of difficulty: whether harder questions use more depth, and no columns of dashes in the papers' table."""

import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.report.table import effective_depth_table, read_tables, write_tables
from depth_lib.results.artifacts import load_artifact
from depth_lib.results.study import Study
from tests.synthetic import artifact_path, write_run

THREE = ["hellaswag", "gsm8k", "aime24"]


@pytest.fixture
def folder(tmp_path):
    """Two toys on GSM8K, one of them also on sums of each number of terms."""
    write_run(tmp_path, "gsm8k", "toy-4l", 4)
    write_run(tmp_path, "gsm8k", "toy-8l", 8)
    write_run(tmp_path, "sums", "toy-4l", 4, ["depth_by_difficulty"])
    return tmp_path


def test_tables_have_the_score_of_each_level_and_the_answer(folder):
    study = Study(folder)
    tables = read_tables(study)
    write_tables(tables, folder)
    assert tables.by_difficulty.level.tolist() == [2, 3, 4] * 2
    written = pd.read_csv(folder / "effective_depth_by_difficulty.csv")
    assert written.score.tolist() == pytest.approx(tables.by_difficulty.score.tolist(), abs=1e-4)
    assert tables.by_difficulty.answer.nunique() == 2


def test_levels_alone_are_no_columns_and_what_is_still_to_come_is(folder):
    alone, with_levels = (effective_depth_table(Study(folder, datasets=names)) for names in (THREE, [*THREE, "sums"]))
    pd.testing.assert_frame_equal(with_levels, alone)
    assert list(alone.columns.unique("dataset")) == THREE
    (tex,) = (p for p in write_tables(read_tables(Study(folder, datasets=["sums"])), folder) if p.suffix == ".tex")
    assert "No dataset of this table has effective depths." in tex.read_text()


def test_load_results_has_the_means_of_each_level(folder):
    tidy = dl.load_results(folder, datasets=["sums"])
    stored = load_artifact(artifact_path(folder, "sums", "toy-4l", "depth_by_difficulty", 10))
    grid = tidy[tidy.key == "mean_layer_effect:3"].pivot(index="layer", columns="column", values="value")
    assert torch.equal(torch.tensor(grid.to_numpy()), stored["mean_layer_effect"][1].double())
