"""What people read: one table as HTML, TeX, workbook and csv, and a page of which the first screen answers."""

import base64
import html
import io
import json
import re
import shutil
import subprocess

import nbformat
import openpyxl
import pandas as pd
import pytest
import torch
from PIL import Image

from depth_lib.effective_depth.tables import depths
from depth_lib.figures import KINDS
from depth_lib.report.page import write_page
from depth_lib.report.table import depth_lines, depth_table, made_from, over_models_table, write_tables
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import ARTIFACTS
from depth_lib.results.study import Study
from tests.notebooks import executed_here, printed
from tests.report.studies import write_depths
from tests.synthetic import DATASETS, artifact_path, curves_with_depths, result_of, save

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")

    def saved(model, n_layers, probe, n=4, dataset="gsm8k", **meta):
        """Of the papers' keys only, so that few figures are drawn."""
        result, keys = result_of(probe, n_layers, n), ARTIFACTS[probe].required
        result = {key: value for key, value in result.items() if key.removesuffix("_sums") in (*keys, "n_tokens")}
        save(out, model, probe, n_layers, dataset, n, result, model_id=f"nobody/{model}", n_prompts=n, **meta)
        return result

    for dataset in ("gsm8k", "hellaswag"):
        for probe in ("relative_contribution", "logit_lens"):
            saved("Qwen2.5-7B-Instruct", 28, probe, dataset=dataset)
    saved("toy-8l", 8, "layer_effects")
    flat = saved("<b>&model_$", 4, "logit_lens", dtype="bfloat16")
    of_random = artifact_path(out, "gsm8k", "<b>&model_$", "logit_lens", 4, changed="weights=random")
    save_artifact(of_random, flat | {"res_kl_divs": flat["res_kl_divs"] * 0.01}, {})
    return Study(out, datasets=DATASETS)


@pytest.fixture(scope="module")
def notebook(study):
    return executed_here("effective_depth", OUT=str(study.folder), DATASETS=list(DATASETS))


@pytest.fixture(scope="module")
def page_file(notebook, study):
    nbformat.write(notebook, made := study.folder / "effective_depth.ipynb")
    return write_page(made)


@pytest.fixture(scope="module")
def page(page_file):
    return re.sub("<script.*?</script>|<style.*?</style>", "", page_file.read_text(), flags=re.DOTALL)


def words_of(page):
    return html.unescape(" ".join(re.sub("<[^>]*>", " ", page).split()))


def test_the_first_thing_is_the_summary_and_each_kind_has_one_heading_with_its_datasets_below(page):
    text = words_of(page)
    order = [
        "Effective depth of",
        "One dot per model",
        "the layer (ratio) [95% interval]",
        "How size, training and task",
    ]
    order += ["The figures", KINDS["cosine"].title, KINDS["layer_effects"].title, "Where the numbers come from"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert page.index("<img") < page.index("One dot per model")
    for kind in (KINDS["cosine"], KINDS["lens_kl"]):
        assert text.count(kind.title) == text.count(kind.caption) == 1
        after = page[page.index(kind.title) :].partition("<h3")[0]
        assert after.count("<img") == 2, "of two datasets"


def test_the_page_is_one_file_that_needs_no_network_and_shows_no_code(page, page_file):
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links and all(link.startswith("data:image/png;base64,") for link in links)
    assert not re.findall("<script[^>]* src=|<link[^>]* href=.http", page_file.read_text())
    for words in ("import ", "depth_table(", "make table", "write_tables", "no artifact"):
        assert words not in page, words
    assert "<b>&model" not in page and "&lt;b&gt;&amp;model" in page


def test_the_notebook_tells_what_is_missing_and_writes_every_table_and_figure(notebook, study):
    text = printed(notebook)
    assert "no artifact for hellaswag × toy-8l" in text
    assert {path.suffix for path in study.folder.glob("effective_depth.*")} >= {".xlsx", ".csv", ".tex"}
    assert {path.stem for path in study.folder.glob("figures/*.png")} >= {"gsm8k_cosine", "hellaswag_lens_kl"}


def test_page_csv_tex_and_workbook_are_the_same_frame(study, tmp_path):
    frame = depths(study)
    csv, tex, xlsx = write_tables(frame, tmp_path)
    back = pd.read_csv(csv)
    assert list(back) == list(frame) and back.ed.fillna(-1).tolist() == frame.ed.fillna(-1).tolist()
    row = next(frame.query("rule == 'kl' and dataset == 'gsm8k' and model != 'toy-8l'").itertuples())
    cell = f"{row.ed} ({row.ratio:.2f}) [{row.low}, {row.high}]"
    assert cell in tex.read_text() and cell in depth_table(frame).to_html()
    book = openpyxl.load_workbook(xlsx)
    assert book.sheetnames == ["Effective depth", "Every depth", "Over models"]
    values = [value for line in book["Effective depth"].iter_rows(values_only=True) for value in line]
    assert cell in values
    head, *rows = book["Every depth"].iter_rows(values_only=True)
    assert list(head) == list(frame) and len(rows) == len(frame)


def test_notes_stand_where_a_depth_is_missing_and_the_published_one_beside_ours(study, published):
    shown = html.unescape(depth_table(depths(study)).to_html())
    assert "weights=random" in shown and "– no reliable depth: the lens's largest KL divergence is 0." in shown
    assert "[" in shown and "published " in shown
    whole = depth_table(depths(Study(published)), wide=True).data
    assert whole.shape == (13, 9) and whole.loc["toy-8l", ("Cosine", "gsm8k")] == "–"


def test_the_terminal_has_a_line_for_each_depth_and_each_slope(study, tmp_path):
    lines = depth_lines(study)
    assert len(lines) == len(depths(study)) and any(
        line.startswith("Qwen2.5-7B-Instruct @ gsm8k, kl: ") for line in lines
    )
    save(tmp_path, "toy-8l", "depth_by_difficulty", dataset="sums")
    assert [line.partition(":")[0] for line in depth_lines(Study(tmp_path))] == [
        f"toy-8l @ sums, depth score by effect on {effect}" for effect in ("layer", "output")
    ]


def test_a_line_has_passes_to_two_digits_and_says_why_there_is_no_interval(tmp_path):
    twice = curves_with_depths(12, None, None, 0)["logit_lens"] | {"layer_passes": torch.arange(12.0) // 6}
    save(tmp_path, "six-x2", "logit_lens", result=twice)
    save(tmp_path, "toy-8l", "logit_lens", result=result_of("logit_lens", 8, 2))
    lines = depth_lines(Study(tmp_path))
    assert "six-x2 @ gsm8k, overlap: 0 (0.08), 0.17 passes; no interval: the file has no sums per prompt" in lines
    assert any(
        re.fullmatch(r"toy-8l .*: \d \(0.\d\d\); no interval: at least 3 prompts .* 2", line) for line in lines
    ), lines


def test_over_models_is_a_table_and_what_was_made_alike_is_one_row(study, published):
    table = over_models_table(depths(Study(published)).query("model != 'toy-8l'"))
    assert {*table} == {"question", "rule", "before", "after", "change", "models"} and (table.models >= 3).all()
    assert over_models_table(depths(study)).empty
    made = made_from(study)
    row = made[(made.model == "Qwen2.5-7B-Instruct") & (made.dataset == "gsm8k")]
    assert (
        row.probe.tolist() == ["relative_contribution, logit_lens"]
        and row.model_id.item() == "nobody/Qwen2.5-7B-Instruct"
    )


def test_a_number_of_prompts_is_whole_beside_a_question_that_has_none(tmp_path):
    save(tmp_path, "toy-8l", "logit_lens", n_prompts=10)
    save(tmp_path, "toy-8l", "integrated_gradients")
    shown = made_from(Study(tmp_path)).style.hide().to_html()
    assert ">10</td>" in shown and "10.0" not in shown and "NA" not in shown


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no LaTeX here")
def test_the_tex_compiles(published, tmp_path):
    write_depths(published, "gsm8k", "my_model&co_70%", 4, 0, 1, 2)
    write_tables(depths(Study(published)), tmp_path)
    whole = r"\documentclass{article}\usepackage[table]{xcolor}\usepackage{booktabs,graphicx}\begin{document}"
    (tmp_path / "whole.tex").write_text(whole + r"\resizebox{\textwidth}{!}{\input{effective_depth}}\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "whole.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium")
@pytest.mark.parametrize("width", [500, 1200])
def test_nothing_is_wider_than_the_screen(page_file, width, tmp_path):
    measured = (
        "<script>onload = () => { document.title = JSON.stringify([innerWidth, document.scrollingElement.scrollWidth,"
        "Math.max(...[...document.images].map(image => image.getBoundingClientRect().right))]) }</script>"
    )
    (tmp_path / "page.html").write_text(page_file.read_text().replace("</body>", measured + "</body>"))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    shown = subprocess.run([*command, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=300)
    inner, scrolled, right = json.loads(shown.stdout.partition("<title>")[2].partition("</title>")[0])
    assert scrolled <= inner and right <= inner


def test_pictures_on_the_page_are_whole(page):
    for data in re.findall(r'src="data:image/png;base64,([^"]*)"', page):
        assert Image.open(io.BytesIO(base64.b64decode(data))).size[0] > 300


def test_a_page_without_its_templates_is_named(tmp_path, monkeypatch):
    def no_templates():
        raise ValueError("No template sub-directory with name 'lab' found in the following paths:\n\t/none")

    monkeypatch.setattr("depth_lib.report.page._exporter", no_templates)
    with pytest.raises(ValueError, match=r"report.html was not written: No template .* paths; run: pip install"):
        write_page(tmp_path / "effective_depth.ipynb")
