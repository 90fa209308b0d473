"""What is handed on: workbook, csv files, the tidy frame and the report."""

import re
import shutil
import subprocess
import warnings
from html.parser import HTMLParser

import numpy as np
import openpyxl
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.effective_depth.coverage import COMMAND
from depth_lib.report import page as report
from depth_lib.report.answers import read_answers, write_answers
from depth_lib.report.provenance_table import provenance_table
from depth_lib.report.sheets import VERDICTS
from depth_lib.results import files as storage
from depth_lib.results.artifacts import MissingArtifact, artifact_path, save_artifact
from depth_lib.results.study import Study
from tests.synthetic import DATASETS, curves_with_depths, result_of, write_run

MODELS = {"toy-8l": 8, "Qwen2.5-7B-Instruct": 28}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.os, "fsync", lambda descriptor: None)
        for model, n_layers in MODELS.items():
            write_run(out, "gsm8k", model, n_layers, n_examples=4)
        write_run(out, "hellaswag", "toy-8l", 8, ["logit_lens"], n_examples=4)
    return out


@pytest.fixture(scope="module")
def answers(folder):
    return read_answers(Study(folder, datasets=DATASETS))


@pytest.fixture(scope="module")
def book(folder, answers):
    write_answers(answers, folder)
    return openpyxl.load_workbook(folder / "effective_depth.xlsx")


@pytest.fixture(scope="module")
def page(folder):
    return report.write_report(Study(folder, datasets=DATASETS)).read_text()


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


def test_the_interval_sheet_says_what_the_table_of_intervals_says(book, answers):
    rows = rows_of(book["Intervals"])
    assert len(rows) == len(answers.stability) == 8
    for row, expected in zip(rows, answers.stability.to_dict("records"), strict=True):
        for key, value in expected.items():
            if isinstance(value, str):
                assert (row[key] or "") == value
            else:
                assert row[key] == ("–" if pd.isna(value) else pytest.approx(value, abs=0.0051)), key
    sheet = book["Intervals"]
    ratio = [cell.value for cell in sheet[3]].index("ratio") + 1
    assert {sheet.cell(row, ratio).number_format for row in range(4, 12)} == {"0.00"}
    assert len(sheet.conditional_formatting) == 1


def test_verdicts_are_painted(book, answers):
    sheet = book["Beside The Paper"]
    colours = [row[-1].fill.fgColor.rgb[2:] for row in sheet.iter_rows(min_row=4)]
    assert colours == [VERDICTS[verdict] for verdict in answers.beside.verdict] and len(colours) == 3


def test_the_csv_files_read_back(folder, book, answers):
    for name, frame in (
        ("intervals", answers.stability),
        ("thresholds", answers.thresholds),
        ("five_probes", answers.five_probes),
        ("beside_the_paper", answers.beside),
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
    assert lines[0].startswith("Model,cosine") and len(lines) == 5


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
    write_run(tmp_path, "gsm8k", "Qwen2.5-7B", 28, ["logit_lens"], papers_keys_only=True)
    with pytest.warns(UserWarning, match="no meta"):
        assert len(dl.load_results(tmp_path)) == 2 * 28


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
    assert parsed.open == [] and len(parsed.images) > 15
    assert all(link.startswith("data:image/png;base64,") for link in parsed.links)
    assert all(image["alt"] for image in parsed.images)
    assert "<script" not in page and "@import" not in page and 'name="viewport"' in page


def test_the_report_says_depths_intervals_coverage_and_where_they_come_from(page, answers):
    text = " ".join("".join(Page(page).words).split())
    row = answers.stability.query("model == 'toy-8l' and metric == 'cosine'").iloc[0]
    assert f"{row.ed} ({row.ratio:.2f})" in text and f"{row.same:.0%}" in text
    for words in (
        COMMAND,
        "10 prompts",
        "nobody/toy-8l",
        f"torch {torch.__version__}",
        "arXiv 2512.14064",
        "Beside the paper",
        "How stable is this?",
    ):
        assert words in text, words


def test_a_report_draws_figures_that_are_older_than_a_result_and_no_others(folder, page):
    figure = folder / "figures" / "summary" / "ratio_intervals.png"
    before = figure.stat().st_mtime_ns
    report.write_report(Study(folder, datasets=DATASETS))
    assert figure.stat().st_mtime_ns == before


def test_names_that_are_markup_stay_text(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "draw_figures", lambda *arguments: [])
    name = "<b>&model"
    for probe, result in curves_with_depths(4, 1, 1, 1).items():
        save_artifact(artifact_path(tmp_path, "gsm8k", name, probe, 10), result, {"model_id": "<i>x</i>"})
    page = report.write_report(Study(tmp_path)).read_text()
    assert "&lt;b&gt;&amp;model" in page and name not in page and "<i>x" not in page


def test_results_with_only_the_papers_keys_give_a_report_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "draw_figures", lambda *arguments: [])
    write_run(
        tmp_path, "gsm8k", "Qwen2.5-7B-Instruct", 28, ["relative_contribution", "logit_lens"], papers_keys_only=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        page, runs = report.write_report(Study(tmp_path)).read_text(), provenance_table(Study(tmp_path))
    assert page.count("no interval</small>") == 3 and "<b>" in page
    assert "not written by depth_lib" in runs["Made from"].item()


def test_provenance_names_probes_that_were_made_otherwise(tmp_path):
    made = {"model_id": "Qwen/X", "revision": "abc", "dtype": "bfloat16", "n_prompts": 10, "source": "hub"}
    for probe, dtype in (("logit_lens", "bfloat16"), ("relative_contribution", "float32")):
        save_artifact(artifact_path(tmp_path, "gsm8k", "X", probe, 10), result_of(probe, 4), made | {"dtype": dtype})
    runs = provenance_table(Study(tmp_path))
    assert len(runs) == 2 and set(runs.Run) == {"X, gsm8k"}
    assert re.search(r"logit_lens: Qwen/X @ abc; bfloat16; 10 prompts \(hub\); .*torch", " ".join(runs["Made from"]))


def test_the_command_ends_with_one_line_where_there_is_nothing(tmp_path):
    with pytest.raises(SystemExit, match="^no artifacts: .*nowhere is not there; give the folder of a study"):
        report.main([str(tmp_path / "nowhere")])
