"""The workbook as people open it: merged headers, colours, dashes, print layout and what its metrics mean."""

import openpyxl
import pytest

from depth_lib.effective_depth.rules import PAPER_METRICS
from depth_lib.report.tables import read_tables, write_tables
from depth_lib.results.study import Study
from tests.report.studies import write_depths, write_published
from tests.synthetic import DATASETS


@pytest.fixture(scope="module")
def sheet(tmp_path_factory):
    paper = write_published(tmp_path_factory.mktemp("paper"))
    write_depths(paper, "gsm8k", "toy-8l", 8, None, 4, 6)
    write_tables(read_tables(Study(paper, datasets=DATASETS)), paper)
    return openpyxl.load_workbook(paper / "effective_depth.xlsx")["Effective Depth Results"]


def test_the_workbook_has_one_row_a_model_under_three_merged_header_levels(sheet):
    merged = {str(cells) for cells in sheet.merged_cells.ranges}
    assert merged == {
        "A2:A4",
        "B2:G2",
        "H2:M2",
        "N2:S2",
        "B3:C3",
        "D3:E3",
        "F3:G3",
        "H3:I3",
        "J3:K3",
        "L3:M3",
        "N3:O3",
        "P3:Q3",
        "R3:S3",
    }
    assert [sheet[cell].value for cell in ("B2", "H2", "N2")] == ["cosine", "kl", "overlap"]
    assert [sheet[cell].value for cell in ("B3", "D3", "F3", "R3")] == ["hellaswag", "gsm8k", "aime24", "aime24"]
    assert [cell.value for cell in sheet[4]][1:] == ["ED", "RATIO"] * 9
    assert (sheet.max_row, sheet.max_column, sheet.freeze_panes) == (17, 19, "B5")


def test_the_workbook_shows_ratios_to_two_decimals_and_a_dash_for_what_is_missing(sheet):
    row = next(row for row in sheet.iter_rows(min_row=5) if row[0].value == "Qwen2.5-Math-7B")
    assert [cell.value for cell in row[1:7]] == [16, 0.61, 11, 0.43, 16, 0.61]
    assert {cell.number_format for cell in row[2::2]} == {"0.00"}
    toy = next(row for row in sheet.iter_rows(min_row=5) if row[0].value == "toy-8l")
    assert [cell.value for cell in toy[1:7]] == ["–"] * 6
    assert [cell.value for cell in toy[9:11]] == [4, 0.62]


def test_ratios_are_coloured_red_yellow_green_from_zero_to_one_whatever_else_is_there(sheet):
    (area,) = sheet.conditional_formatting
    assert str(area.sqref).split() == [f"{letter}5:{letter}17" for letter in "CEGIKMOQS"]
    scale = area.rules[0].colorScale
    assert [color.rgb for color in scale.color] == ["00F8696B", "00FFEB84", "0063BE7B"]
    assert [(point.type, point.val) for point in scale.cfvo] == [("num", 0), ("num", 0.5), ("num", 1)]


def test_every_sheet_has_a_title_and_prints_in_landscape_one_page_wide(sheet):
    assert sheet["A1"].value == sheet.parent.properties.title and "Effective depth" in sheet["A1"].value
    for page in sheet.parent:
        assert page.page_setup.orientation == "landscape" and page.sheet_properties.pageSetUpPr.fitToPage
        assert (page.page_setup.fitToWidth, page.page_setup.fitToHeight) == (1, 0)


def test_the_workbook_describes_metrics_rules_and_sources(sheet):
    book = sheet.parent
    text = "\n".join(str(cell.value) for row in book["Description"].iter_rows() for cell in row if cell.value)
    for words in (
        *PAPER_METRICS,
        "the last l in 0..L-2 with c[l] < 0",
        "0.5 · max(res_kl_divs)",
        "res_overlaps[l] > 0.3",
        "(ED + 1) / L",
        "arXiv 2512.14064",
        "arXiv 2505.13898",
    ):
        assert words in text
