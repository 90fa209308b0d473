"""The table's files: csv and TeX say what the table says, the workbook can be read and printed, all or none is new."""

import re
import shutil
import subprocess

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


def test_the_tex_is_a_whole_booktabs_document_with_the_papers_names_and_coloured_ratios(gaps):
    write_depths(gaps, "gsm8k", "my_model&co_70%", 4, 0, 1, 2)
    write(gaps)
    tex = (gaps / "effective_depth.tex").read_text()
    body = tex[tex.index(r"\midrule") : tex.index(r"\bottomrule")].splitlines()[1:]
    assert [len(re.split(r"(?<!\\)&", line)) for line in body] == [19, 19, 19]
    cell = r"{\cellcolor[HTML]{"
    assert re.search(r"my\\_model\\&co\\_70\\% & -- & -- & 0 & \{\\cellcolor\[HTML\]\{\w{6}\}\} 0.25 &", tex), tex
    assert tex.count(cell) == tex.count("0.") - tex.count("0.0")
    places = [tex.index(word) for word in ("{Cosine}", "{GSM8K}", "ED & Ratio", r"\midrule")]
    assert places == sorted(places) and "{Logit Lens KL}" in tex and "{HellaSwag}" in tex
    assert tex.count(r"\begin{") == tex.count(r"\end{") == 2 and tex.isascii()


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no LaTeX here")
def test_the_tex_compiles(gaps):
    write_depths(gaps, "gsm8k", "my_model&co_70%", 4, 0, 1, 2)
    write(gaps)
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "effective_depth.tex"], cwd=gaps)
    assert done.returncode == 0 and (gaps / "effective_depth.pdf").stat().st_size > 5000


@pytest.fixture(scope="module")
def book(published, tmp_path_factory):
    folder = tmp_path_factory.mktemp("book")
    write_tables(read_tables(Study(published, ["Qwen2.5-Math-7B", "toy-8l"])), folder)
    return openpyxl.load_workbook(folder / "effective_depth.xlsx")


def test_the_workbook_has_the_table_under_merged_headers_and_a_scale_of_colours(book):
    sheet = book["Effective Depth Results"]
    assert {"B1:G1", "B2:C2", "R2:S2"} <= {str(area) for area in sheet.merged_cells.ranges}
    assert [sheet[cell].value for cell in ("B1", "H1", "B2", "C3")] == ["Cosine", "Logit Lens KL", "HellaSwag", "Ratio"]
    row_of = {row[0].value: row for row in sheet.iter_rows()}
    math, toy = row_of["Qwen2.5-Math-7B"], row_of["toy-8l"]
    assert [cell.value for cell in math[1:5]] == [16, pytest.approx(17 / 28), 11, pytest.approx(12 / 28)]
    assert math[2].number_format == "0.00" and toy[1].value == "–" and sheet.freeze_panes == "B5"
    coloured = {cell.column_letter for row in sheet.iter_rows(min_row=5) for cell in row if cell.fill.fill_type}
    assert coloured == {*"CEGIKMOQS"}, "ratios only"
    darker, lighter = (math[place].fill.fgColor.rgb for place in (2, 4))
    assert int(darker[-6:-4], 16) < int(lighter[-6:-4], 16)  # 0.61 and 0.43
    assert all(sheet.max_row > 1 for sheet in book)
    assert {"Intervals", "Five Probes", "Beside The Paper", "Provenance", "Description"} <= set(book.sheetnames)
