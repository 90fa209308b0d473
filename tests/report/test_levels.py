"""Levels of difficulty: whether harder questions use more depth, and no columns of dashes in the papers' table."""

import openpyxl
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.report.page import write_report
from depth_lib.report.table import effective_depth_table, read_tables, write_tables
from depth_lib.results.artifacts import load_artifact, save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import result_of, write_run

pytestmark = pytest.mark.filterwarnings("ignore:.*have no meta")
L = 6
THREE = ["hellaswag", "gsm8k", "aime24"]


def write_levels(out, model, layer_of_level):
    """Three examples per level, for which only skipping one layer matters to the output."""
    levels = torch.tensor(list(layer_of_level), dtype=torch.float32)
    layers = torch.tensor(list(layer_of_level.values())).repeat(3)
    effect = torch.zeros(len(layers), L)
    effect[range(len(layers)), layers] = 0.5
    result = result_of("depth_by_difficulty", L)
    result = {key: value[: len(value) // 3 * len(levels)] for key, value in result.items()}  # it is made for 3 levels
    result |= {"level": levels.repeat(3), "levels": levels, "output_effect": effect}
    result["layer_effect"] = torch.rand(len(layers), L, L, generator=torch.Generator().manual_seed(0))
    save_artifact(artifact_path(out, "sums", model, "depth_by_difficulty", 3), result, {})


@pytest.fixture
def tables(tmp_path):
    write_levels(tmp_path, "toy-8l", {2: 1, 3: 3, 4: 5})
    write_levels(tmp_path, "toy-16l", {2: 1})
    study = Study(tmp_path)
    tables = read_tables(study)
    write_tables(tables, tmp_path)
    write_report(study, tables)
    return tables.by_difficulty


def test_tables_and_page_have_scores_slope_and_answer_per_run(tables, tmp_path):
    output = tables[(tables.effect == "output") & (tables.model == "toy-8l")]
    assert output.level.tolist() == [2, 3, 4] and output.score.tolist() == pytest.approx([1, 3, 5])
    assert output.slope.tolist() == pytest.approx([2] * 3)
    assert (output.slope_low > 0).all() and (output.examples == 3).all()
    alone = tables[tables.model == "toy-16l"]
    assert alone.slope.isna().all() and alone.answer.str.contains("one level of difficulty, 2, has no slope").all()

    written = pd.read_csv(tmp_path / "effective_depth_by_difficulty.csv")
    assert written.answer.tolist() == tables.answer.tolist()
    assert written.score.tolist() == pytest.approx(tables.score.tolist(), abs=1e-4)
    assert openpyxl.load_workbook(tmp_path / "effective_depth.xlsx")["By Difficulty"].max_row == 1 + len(tables)
    page = (tmp_path / "report.html").read_text()
    section = page.partition('<section id="difficulty">')[2].partition("</section>")[0]
    assert "Harder questions use more depth: by the effect on the output the depth score moves by +2.00" in section
    assert "one level of difficulty, 2, has no slope" in section


@pytest.fixture
def folder(tmp_path):
    """Two toys on GSM8K, one of them also on sums of each number of terms."""
    write_run(tmp_path, "gsm8k", "toy-4l", 4)
    write_run(tmp_path, "gsm8k", "toy-8l", 8)
    write_run(tmp_path, "sums", "toy-4l", 4, ["depth_by_difficulty"])
    return tmp_path


def test_levels_alone_are_no_columns_and_the_papers_table_keeps_every_byte(folder):
    def written(datasets):
        paths = write_tables(read_tables(Study(folder, datasets=datasets)), folder / "written")
        return {path.name: path.read_bytes() for path in paths if path.suffix != ".xlsx"}

    alone = written(THREE)
    with_levels = written([*THREE, "sums"])
    assert all(with_levels[name] == content for name, content in alone.items())
    table = effective_depth_table(Study(folder, datasets=[*THREE, "sums"]))
    assert list(table.columns.unique("dataset")) == THREE, "what is still to come stays a column"


def test_load_results_has_the_means_of_each_level(folder):
    tidy = dl.load_results(folder, datasets=["sums"])
    assert not tidy.duplicated(["model", "dataset", "probe", "key", "layer", "column"]).any()
    stored = load_artifact(artifact_path(folder, "sums", "toy-4l", "depth_by_difficulty", 10))
    grid = tidy[tidy.key == "mean_layer_effect:3"].pivot(index="layer", columns="column", values="value")
    assert torch.equal(torch.tensor(grid.to_numpy()), stored["mean_layer_effect"][1].double())
    curve = tidy[tidy.key == "max_output_effect:4"].sort_values("layer")
    assert torch.equal(torch.tensor(curve.value.to_numpy()), stored["max_output_effect"][2].double())
