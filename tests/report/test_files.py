"""The table's files: csv and TeX say what the table says, the workbook can be read and printed, all or none is new."""

import re

import openpyxl
import pandas as pd
import pytest

from depth_lib.report.table import read_tables, write_tables
from depth_lib.results.study import Study
from tests.report.studies import table_of, write_depths
from tests.synthetic import DATASETS


def write(folder, datasets=DATASETS):
    return write_tables(read_tables(Study(folder, datasets=datasets)), folder)


def test_the_csv_reads_back_as_the_table_rounded(gaps):
    write(gaps)
    path = gaps / "effective_depth.csv"
    back = pd.read_csv(path, header=[0, 1, 2], index_col=0, na_values="–")
    table = table_of(gaps)
    pd.testing.assert_frame_equal(back.astype(float), table.astype(float).round(2), check_names=False)
    assert path.read_text().splitlines()[3].startswith("toy-4l,–,–,0,0.25,–,–,")


def test_the_tex_is_a_whole_booktabs_document_with_one_cell_per_column(gaps):
    write_depths(gaps, "gsm8k", "my_model&co_70%", 4, 0, 1, 2)
    write(gaps)
    tex = (gaps / "effective_depth.tex").read_text()
    body = tex[tex.index(r"\midrule") : tex.index(r"\bottomrule")].splitlines()[1:]
    assert [len(re.split(r"(?<!\\)&", line)) for line in body] == [19, 19, 19]
    assert r"my\_model\&co\_70\% & -- & -- & 0 & 0.25 &" in tex
    assert tex.count(r"\begin{") == tex.count(r"\end{") == 2
    assert r"\cmidrule(lr){2-7}\cmidrule(lr){8-13}\cmidrule(lr){14-19}" in tex
    places = [tex.index(word) for word in ("{cosine}", "{2-7}", "{gsm8k}", "{2-3}", "Model &", r"\midrule")]
    assert places == sorted(places), "each rule below its header"
    assert tex.isascii()


@pytest.fixture(scope="module")
def book(published, tmp_path_factory):
    folder = tmp_path_factory.mktemp("book")
    write_tables(read_tables(Study(published, ["Qwen2.5-Math-7B", "toy-8l"])), folder)
    return openpyxl.load_workbook(folder / "effective_depth.xlsx")


def test_the_workbook_has_the_table_under_merged_headers_with_ratios_coloured(book):
    sheet = book["Effective Depth Results"]
    assert {"B1:G1", "B2:C2", "R2:S2"} <= {str(area) for area in sheet.merged_cells.ranges}
    row_of = {row[0].value: row for row in sheet.iter_rows()}
    math, toy = row_of["Qwen2.5-Math-7B"], row_of["toy-8l"]
    assert [cell.value for cell in math[1:5]] == [16, pytest.approx(17 / 28), 11, pytest.approx(12 / 28)]
    assert math[2].number_format == "0.00" and toy[1].value == "–"
    low, high, none = (cell.fill.fgColor.rgb for cell in (math[4], math[2], toy[2]))
    assert low != high and none == "00FFFFFF", "colours follow the ratio; a missing one is white"


def test_every_sheet_prints_in_landscape_one_page_wide_with_its_header_on_each_page(book):
    for sheet in book:
        assert sheet.page_setup.orientation == "landscape" and sheet.sheet_properties.pageSetUpPr.fitToPage
        assert sheet.page_setup.fitToHeight == 0
        assert sheet.print_title_rows and sheet.freeze_panes
        assert all(column.width <= 62 for column in sheet.column_dimensions.values())
