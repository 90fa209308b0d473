"""Datasets that are run for levels of difficulty alone: no columns of dashes, and no advice that computes nothing."""

import numpy as np
import pytest
import torch

import depth_lib as dl
from depth_lib.report.page import write_report
from depth_lib.report.table import effective_depth_table, read_tables, summary_lines, write_tables
from depth_lib.results.artifacts import load_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import write_run

THREE = ["hellaswag", "gsm8k", "aime24"]


@pytest.fixture
def folder(tmp_path):
    """Two toys on GSM8K, one of them on sums of each number of terms too."""
    for toy, n_layers in (("toy-4l", 4), ("toy-8l", 8)):
        write_run(tmp_path, "gsm8k", toy, n_layers)
    write_run(tmp_path, "sums", "toy-4l", 4, ["depth_by_difficulty"])
    return tmp_path


def test_levels_alone_are_no_columns_and_the_papers_table_keeps_every_byte(folder):
    def written(datasets):
        tables = read_tables(Study(folder, datasets=datasets))
        return {path.name: path.read_bytes() for path in write_tables(tables, folder / "x") if path.suffix != ".xlsx"}

    alone, beside = written(THREE), written([*THREE, "sums"])
    assert all(beside[name] == content for name, content in alone.items())
    table = effective_depth_table(Study(folder, datasets=[*THREE, "sums"]))
    assert list(table.columns.unique("dataset")) == THREE, "what is still to come stays a column"


def test_what_is_missing_of_levels_is_the_probe_of_levels(folder):
    missing = {
        (run.dataset, run.model): run.probes for run in Study(folder, datasets=["gsm8k", "sums", "math"]).missing()
    }
    assert missing == {
        ("sums", "toy-8l"): ("depth_by_difficulty",),
        ("math", "toy-4l"): ("depth_by_difficulty",),
        ("math", "toy-8l"): ("depth_by_difficulty",),
    }


def test_levels_with_a_curve_of_the_table_have_their_columns(folder):
    write_run(folder, "sums", "toy-4l", 4, ["logit_lens"])
    study = Study(folder, datasets=["sums"])
    assert list(effective_depth_table(study).columns.unique("dataset")) == ["sums"]
    assert [run.probes for run in study.missing()] == [
        ("relative_contribution",),
        ("relative_contribution", "logit_lens", "depth_by_difficulty"),
    ]


def test_levels_alone_are_a_table_a_page_and_a_sentence(folder):
    study = Study(folder, ["toy-4l"], ["sums"])
    tables = read_tables(study)
    assert summary_lines(tables.effective_depth) == [
        "no dataset of this table is run for relative_contribution and logit_lens"
    ]
    assert all(path.stat().st_size for path in write_tables(tables, folder / "x"))
    assert "on sums</h1>" in write_report(study, tables).read_text()
    assert study.missing() == []


def test_load_results_has_the_means_of_each_level(folder):
    tidy = dl.load_results(folder, datasets=["sums"])
    assert list(tidy.columns) == ["model", "dataset", "probe", "layer", "key", "value", "column"]
    assert not tidy.duplicated(["model", "dataset", "probe", "key", "layer", "column"]).any()
    stored = load_artifact(artifact_path(folder, "sums", "toy-4l", "depth_by_difficulty", 10))
    assert set(tidy.key) == {
        f"{kind}_{effect}_effect:{level}"
        for kind in ("mean", "max")
        for effect in ("layer", "output")
        for level in (2, 3, 4)
    }
    grid = tidy[tidy.key == "mean_layer_effect:3"].pivot(index="layer", columns="column", values="value")
    np.testing.assert_array_equal(grid, stored["mean_layer_effect"][1].double())
    curve = tidy[tidy.key == "max_output_effect:4"].sort_values("layer")
    assert curve.column.isna().all()
    assert torch.equal(torch.tensor(curve.value.to_numpy()), stored["max_output_effect"][2].double())
    assert set(dl.load_results(folder).probe) > {"depth_by_difficulty", "logit_lens"}
