"""What is handed on: workbook, csv files, the tidy frame and the report."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.effective_depth.coverage import COMMAND
from depth_lib.report import page as report
from depth_lib.report.conclusions import conclusions
from depth_lib.report.tables import read_tables, write_tables
from depth_lib.report.workbook import VERDICTS
from depth_lib.results import artifacts
from depth_lib.results import study as results
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import MissingArtifact, artifact_path
from depth_lib.results.study import Study
from tests.synthetic import DATASETS, curves_with_depths, write_run

MODELS = {"toy-8l": 8, "Qwen2.5-7B-Instruct": 28}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    for model, n_layers in MODELS.items():
        write_run(out, "gsm8k", model, n_layers, n_examples=4)
    write_run(out, "hellaswag", "toy-8l", 8, ["logit_lens"], n_examples=4)
    return out


@pytest.fixture(scope="module")
def read():
    """The files that `study` has read, in order."""
    return []


@pytest.fixture(scope="module")
def study(folder, read):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "read_artifact", lambda path: (read.append(path), artifacts.read_artifact(path))[1])
        yield Study(folder, datasets=DATASETS)


@pytest.fixture(scope="module")
def tables(study):
    return read_tables(study)


@pytest.fixture(scope="module")
def book(folder, tables):
    write_tables(tables, folder)
    return openpyxl.load_workbook(folder / "effective_depth.xlsx")


@pytest.fixture(scope="module")
def page(study, tables):
    return report.write_report(study, tables, report.draw_figures(study, tables)).read_text()


def test_table_figures_and_report_read_each_file_once(folder, read, book, page):
    assert sorted(read) == sorted(folder.glob("*/*/*.pt")) and len(read) == 11


def rows_of(sheet):
    header = [cell.value.replace(" ", "_") for cell in sheet[3]]
    return [dict(zip(header, (cell.value for cell in row), strict=True)) for row in sheet.iter_rows(min_row=4)]


def test_the_workbook_keeps_its_sheets_and_gains_one_for_each_answer(book):
    assert book.sheetnames == [
        "Effective Depth Results",
        "Intervals",
        "Thresholds",
        "Five Probes",
        "Beside The Paper",
        "Description",
    ]
    for sheet in book.worksheets[1:-1]:
        assert sheet.freeze_panes == "D4" and [str(area) for area in sheet.merged_cells.ranges]


def test_the_interval_sheet_says_what_the_table_of_intervals_says(book, tables):
    rows = rows_of(book["Intervals"])
    assert len(rows) == len(tables.intervals) == 8
    for row, expected in zip(rows, tables.intervals.to_dict("records"), strict=True):
        for key, value in expected.items():
            if isinstance(value, str):
                assert (row[key] or "") == value
            else:
                assert row[key] == ("–" if pd.isna(value) else pytest.approx(value, abs=0.0051)), key
    sheet = book["Intervals"]
    ratio = [cell.value for cell in sheet[3]].index("ratio") + 1
    assert {sheet.cell(row, ratio).number_format for row in range(4, 12)} == {"0.00"}
    assert len(sheet.conditional_formatting) == 1


def test_verdicts_are_painted(book, tables):
    sheet = book["Beside The Paper"]
    colours = [row[-1].fill.fgColor.rgb[2:] for row in sheet.iter_rows(min_row=4)]
    assert colours == [VERDICTS[verdict] for verdict in tables.beside_the_paper.verdict] and len(colours) == 3


def test_the_csv_files_read_back(folder, book, tables):
    for name, frame in (
        ("intervals", tables.intervals),
        ("thresholds", tables.thresholds),
        ("five_probes", tables.five_probes),
        ("beside_the_paper", tables.beside_the_paper),
    ):
        back = pd.read_csv(folder / f"effective_depth_{name}.csv")
        assert list(back.columns) == list(frame.columns) and len(back) == len(frame)
        numbers = frame.select_dtypes("number").astype(float)
        np.testing.assert_allclose(back[numbers.columns].astype(float), numbers, atol=1e-4)


@pytest.mark.skipif(not shutil.which("soffice"), reason="there is no LibreOffice here")
def test_libreoffice_opens_the_workbook(folder, book, tmp_path):
    as_csv = ["soffice", "--headless", f"-env:UserInstallation=file://{tmp_path}/profile", "--convert-to", "csv"]
    subprocess.run(
        [*as_csv, "--outdir", tmp_path, folder / "effective_depth.xlsx"], check=True, capture_output=True, timeout=120
    )
    lines = (tmp_path / "effective_depth.csv").read_text(encoding="cp1252").splitlines()
    assert lines[1].startswith("Model,cosine") and len(lines) == 6


def test_load_results_is_tidy_and_holds_every_value_once(folder):
    tidy = dl.load_results(folder)
    assert list(tidy.columns) == ["model", "dataset", "probe", "layer", "key", "value", "column"]
    assert not tidy.duplicated(["model", "dataset", "probe", "key", "layer", "column"]).any()
    lens = torch.load(artifact_path(folder, "gsm8k", "toy-8l", "logit_lens", 4), weights_only=True)
    mine = tidy.query("model == 'toy-8l' and dataset == 'gsm8k'")
    curve = mine[mine.key == "res_kl_divs"].sort_values("layer")
    np.testing.assert_allclose(curve.value, lens["res_kl_divs"], rtol=1e-6)
    assert curve.column.isna().all() and set(curve.probe) == {"logit_lens"}
    effects = torch.load(artifact_path(folder, "gsm8k", "toy-8l", "layer_effects", 4), weights_only=True)
    grid = mine[mine.key == "max_future_layer"].pivot(index="layer", columns="column", values="value")
    np.testing.assert_allclose(grid, effects["max_future_layer"], rtol=1e-6)
    assert set(mine[mine.key == "erasure_effect"].layer) == set(range(9))
    assert not tidy.key.str.contains("sums|prompt|n_tokens").any()


def test_load_results_reads_the_papers_files_and_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(MissingArtifact, match="run: make sweep"):
        dl.load_results(tmp_path)
    with pytest.raises(MissingArtifact, match="nowhere is not there; give the folder of a study") as error:
        dl.load_results("nowhere")
    assert "make sweep" not in str(error.value)
    write_run(tmp_path, "gsm8k", "Qwen2.5-7B", 28, ["logit_lens"], papers_keys_only=True)
    with pytest.warns(UserWarning, match="no meta"):
        assert len(dl.load_results(tmp_path)) == 2 * 28


def test_on_a_phone_a_figure_keeps_its_printed_size_and_moves_sideways_in_its_place():
    css = (Path(report.__file__).parent / "report.css").read_text()
    phone = css[css.index("@media (max-width: 640px)") :]
    assert "figure img { max-width: none; }" in phone and "figure .wide { overflow-x: auto; }" in css


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.images, self.links, self.open, self.words = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "img":
            self.images.append(attrs)
        self.links += [attrs[key] for key in ("href", "src") if key in attrs]
        if tag not in ("meta", "img", "input", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.words.append(text)


def test_the_report_is_one_file_that_needs_nothing_else(page):
    parsed = Page(page)
    assert parsed.open == [] and len(parsed.images) > 12
    images = [link for link in parsed.links if link.startswith("data:image/png;base64,")]
    inside = [link for link in parsed.links if link.startswith("#")]
    assert len(images) == len(set(images)) == len(parsed.images)  # no panel twice
    assert len(images) + len(inside) == len(parsed.links)
    contents = re.findall(r'href="(#[^"]+)"', page[: page.index("</nav>")])
    assert contents == [f"#{section}" for section in re.findall(r'<section id="([^"]+)"', page)]
    assert set(inside) <= {f"#{place}" for place in re.findall(r'id="([^"]+)"', page)} and len(inside) > 8
    assert all(image["alt"] for image in parsed.images)
    assert "<script src" not in page and "@import" not in page and 'name="viewport"' in page


def test_the_report_says_depths_intervals_coverage_and_where_they_come_from(page, tables):
    text = " ".join("".join(Page(page).words).split())
    row = tables.intervals.query("model == 'toy-8l' and metric == 'cosine'").iloc[0]
    assert f"{row.ed} ({row.ratio:.2f})" in text and f"same in {100 * row.same:.0f} %" in text
    for words in (
        *conclusions(tables.intervals, tables.beside_the_paper),
        COMMAND,
        "10 prompts",
        "nobody/toy-8l",
        f"torch {torch.__version__}",
        "arXiv 2512.14064",
        "Beside the paper",
        "How stable is this?",
    ):
        assert words in text, words


def test_the_report_defines_its_metrics_and_says_which_rules_are_ours_and_why_an_interval_is_wider(page):
    text = " ".join("".join(Page(page).words).split())
    for words in (
        "the last l in 0..L-2 with c[l] < 0 and c[l+1] ≥ 0",
        "KL(lens ‖ output)",
        "five likeliest tokens among the lens's five",
        "A rule of ours. The last l in 0..L-2 whose skipping changes what a later layer adds by over half",
        "A rule of ours. The last l in 0..L-1 at which erasing one moves the answer",
        "A rule of ours. The first l in 0..L-1 at which half of the sum of |attribution| over layers is reached",
        "every draw gave 1 and that the next layer is not ruled out",
    ):
        assert words in text, words


def test_names_that_are_markup_stay_text(tmp_path):
    name = "<b>&model"
    for probe, result in curves_with_depths(4, 1, 1, 1).items():
        save_artifact(artifact_path(tmp_path, "gsm8k", name, probe, 10), result, {"model_id": "<i>x</i>"})
    study = Study(tmp_path)
    page = report.write_report(study, read_tables(study)).read_text()
    assert "&lt;b&gt;&amp;model" in page and name not in page and "<i>x" not in page
