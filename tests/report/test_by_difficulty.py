"""Whether harder questions use more depth, in the tables and on the page of a study."""

import openpyxl
import pandas as pd
import pytest
import torch

from depth_lib.report.page import write_report
from depth_lib.report.table import read_tables, write_tables
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import result_of

L = 6


def write(out, model, levels, layers):
    """Every level with three examples for which skipping one layer alone matters to the output."""
    level = torch.tensor(levels, dtype=torch.float32).repeat(3)
    effect = torch.zeros(len(level), L)
    effect[range(len(level)), torch.tensor(layers).repeat(3)] = 0.5
    maps = torch.rand(len(level), L, L, generator=torch.Generator().manual_seed(0))
    result = {"level": level, "levels": level[: len(levels)], "output_effect": effect, "layer_effect": maps}
    keys = result_of("depth_by_difficulty", L).keys() - result.keys()
    result |= {
        key: torch.rand(len(levels), *[L] * (2 if "layer" in key else 1), generator=torch.Generator()) for key in keys
    }
    save_artifact(artifact_path(out, "sums", model, "depth_by_difficulty", 3), result, {})


@pytest.fixture
def tables(tmp_path):
    write(tmp_path, "toy-8l", [2, 3, 4], [1, 3, 5])
    write(tmp_path, "toy-16l", [2], [1])
    study = Study(tmp_path)
    tables = read_tables(study)
    write_tables(tables, tmp_path)
    write_report(study, tables)
    return tables.by_difficulty


@pytest.mark.filterwarnings("ignore:.*have no meta")
def test_the_table_has_the_score_of_each_level_its_slope_and_the_answer(tables, tmp_path):
    output = tables[(tables.effect == "output") & (tables.model == "toy-8l")]
    assert output.level.tolist() == [2, 3, 4] and output.score.tolist() == pytest.approx([1, 3, 5])
    assert (
        output.slope.tolist() == pytest.approx([2] * 3)
        and (output.slope_low > 0).all()
        and (output.examples == 3).all()
    )
    assert output.answer.unique().tolist()[0].startswith("Harder questions use more depth: by the effect on the output")
    alone = tables[tables.model == "toy-16l"]
    assert alone.slope.isna().all() and alone.answer.str.contains("one level of difficulty, 2, has no slope").all()
    assert alone[alone.effect == "output"].score.tolist() == pytest.approx([1])
    written = pd.read_csv(tmp_path / "effective_depth_by_difficulty.csv")
    assert written.answer.tolist() == tables.answer.tolist() and written.score.tolist() == pytest.approx(
        tables.score.tolist(), abs=1e-4
    )
    sheet = openpyxl.load_workbook(tmp_path / "effective_depth.xlsx")["By Difficulty"]
    columns = [cell.value for cell in sheet[1]]
    assert sheet.cell(5, columns.index("slope") + 1).value == 2 and sheet.max_row == 1 + len(tables)


@pytest.mark.filterwarnings("ignore:.*have no meta")
def test_the_page_answers_for_every_run(tables, tmp_path):
    page = (tmp_path / "report.html").read_text()
    section = page.partition('<section id="difficulty">')[2].partition("</section>")[0]
    assert "Harder questions use more depth: by the effect on the output the depth score moves by +2.00" in section
    assert "one level of difficulty, 2, has no slope" in section and 'href="#difficulty"' in page


@pytest.mark.filterwarnings("ignore:.*have no meta")
def test_without_such_results_there_is_neither(gaps):
    study = Study(gaps)
    tables = read_tables(study)
    write_report(study, tables)
    assert tables.by_difficulty.empty and 'id="difficulty"' not in (gaps / "report.html").read_text()
    assert not [path for path in write_tables(tables, gaps) if "difficulty" in path.name]
