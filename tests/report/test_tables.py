"""The table: the paper's own numbers come back, and every format says the same."""

import re
import shutil
import subprocess
import warnings

import openpyxl
import pandas as pd
import pytest
import torch

from depth_lib.effective_depth.rules import PAPER_METRICS
from depth_lib.figures.grids import grid
from depth_lib.report.tables import effective_depth_table, read_tables, summary_lines, write_tables
from depth_lib.results import files as storage
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import MissingArtifact, artifact_path
from depth_lib.results.study import Study, in_order
from depth_lib.results.tidy import load_results
from tests.synthetic import DATASETS, curves_with_depths, write_run

# Hu et al. 2025, Table 1: layers, and for each dataset ED(ratio) by cosine, kl and overlap.
PUBLISHED = {
    "DeepSeek-R1-Distill-Qwen-1.5B": (
        28,
        ("17(0.64) 20(0.75) 23(0.86)", "16(0.61) 1(0.07) 23(0.86)", "17(0.64) 24(0.89) 24(0.89)"),
    ),
    "Qwen2.5-1.5B-Instruct": (
        28,
        ("16(0.61) 21(0.79) 23(0.86)", "20(0.75) 22(0.82) 23(0.86)", "19(0.71) 23(0.86) 23(0.86)"),
    ),
    "Qwen2.5-Math-1.5B": (
        28,
        ("16(0.61) 20(0.75) 23(0.86)", "16(0.61) 22(0.82) 23(0.86)", "16(0.61) 23(0.86) 23(0.86)"),
    ),
    "DeepSeek-R1-Distill-Qwen-7B": (
        28,
        ("16(0.61) 24(0.89) 25(0.93)", "16(0.61) 24(0.89) 25(0.93)", "16(0.61) 24(0.89) 24(0.89)"),
    ),
    "Qwen2.5-7B-Instruct": (
        28,
        ("17(0.64) 25(0.93) 26(0.96)", "20(0.75) 25(0.93) 26(0.96)", "18(0.68) 25(0.93) 26(0.96)"),
    ),
    "Qwen2.5-Math-7B": (28, ("16(0.61) 23(0.86) 24(0.89)", "11(0.43) 23(0.86) 24(0.89)", "16(0.61) 23(0.86) 24(0.89)")),
    "DeepSeek-R1-Distill-Qwen-14B": (
        48,
        ("26(0.56) 40(0.85) 44(0.94)", "30(0.65) 39(0.83) 44(0.94)", "30(0.65) 41(0.88) 44(0.94)"),
    ),
    "Qwen2.5-14B-Instruct": (
        48,
        ("27(0.58) 40(0.85) 45(0.96)", "32(0.69) 41(0.88) 45(0.96)", "30(0.65) 42(0.90) 45(0.96)"),
    ),
    "Qwen2.5-14B": (48, ("27(0.58) 40(0.85) 45(0.96)", "30(0.65) 40(0.85) 45(0.96)", "30(0.65) 42(0.90) 45(0.96)")),
    "DeepSeek-R1-Distill-Qwen-32B": (
        64,
        ("42(0.67) 58(0.92) 61(0.97)", "42(0.67) 55(0.88) 58(0.92)", "46(0.73) 57(0.91) 58(0.92)"),
    ),
    "Qwen2.5-32B-Instruct": (
        64,
        ("43(0.69) 60(0.95) 61(0.97)", "46(0.73) 58(0.92) 60(0.95)", "43(0.69) 58(0.92) 60(0.95)"),
    ),
    "Qwen2.5-32B": (64, ("43(0.69) 60(0.95) 61(0.97)", "46(0.73) 57(0.91) 59(0.94)", "46(0.73) 59(0.94) 60(0.95)")),
}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(storage.os, "fsync", lambda descriptor: None)


def table_of(folder, models=None, datasets=DATASETS):
    return effective_depth_table(Study(folder, models, datasets))


def write_depths(out, dataset, model, n_layers, cosine, kl, overlap):
    for probe, result in curves_with_depths(n_layers, cosine, kl, overlap).items():
        save_artifact(artifact_path(out, dataset, model, probe, 10), result, {})


def write_published(out):
    """Results whose effective depths are the published ones."""
    for model, (n_layers, cells) in PUBLISHED.items():
        for dataset, cell in zip(DATASETS, cells, strict=True):
            write_depths(out, dataset, model, n_layers, *(int(ed) for ed in re.findall(r"(\d+)\(", cell)))
    return out


@pytest.fixture
def paper(tmp_path):
    return write_published(tmp_path)


@pytest.fixture
def gaps(tmp_path):
    """toy-4l complete on gsm8k; toy-16l without a kl crossing there, and nothing elsewhere."""
    write_depths(tmp_path, "gsm8k", "toy-16l", 16, 9, None, 12)
    write_depths(tmp_path, "gsm8k", "toy-4l", 4, 0, 1, 2)
    return tmp_path


def test_the_published_table_comes_back_number_for_number(paper):
    lines = summary_lines(table_of(paper, models=PUBLISHED))
    expected = [
        f"{model} @ {dataset} : {cell}"
        for model, (_, cells) in PUBLISHED.items()
        for dataset, cell in zip(DATASETS, cells, strict=True)
    ]
    assert [re.sub(" +", " ", line) for line in lines] == expected
    assert len(lines) == 36 and len({line.index(" : ") for line in lines}) == 1


def test_rows_are_models_and_columns_metric_dataset_value(paper):
    table = table_of(paper)
    assert table.shape == (12, 18)
    assert list(table.columns) == [
        (metric, dataset, value)
        for metric in ("cosine", "kl", "overlap")
        for dataset in DATASETS
        for value in ("ED", "RATIO")
    ]
    assert table.loc["Qwen2.5-Math-7B", ("cosine", "gsm8k", "ED")] == 11
    assert table.loc["Qwen2.5-Math-7B", ("cosine", "gsm8k", "RATIO")] == 12 / 28
    assert [re.search(r"[\d.]+B", model)[0] for model in table.index] == ["1.5B"] * 3 + ["7B"] * 3 + ["14B"] * 3 + [
        "32B"
    ] * 3


def test_missing_results_and_missing_depths_are_missing_values(gaps):
    table = table_of(gaps)
    assert list(table.index) == ["toy-4l", "toy-16l"]
    assert list(table.loc["toy-16l", (slice(None), "gsm8k", "ED")].isna()) == [False, True, False]
    assert list(table.loc["toy-16l", (slice(None), "gsm8k", "RATIO")].isna()) == [False, True, False]
    assert table.loc[:, (slice(None), ["hellaswag", "aime24"], slice(None))].isna().all(axis=None)
    assert summary_lines(table)[1] == "toy-4l  @ gsm8k     :  0(0.25)  1(0.50)  2(0.75)"
    assert summary_lines(table)[4] == "toy-16l @ gsm8k     :  9(0.62)        – 12(0.81)"


def test_models_and_datasets_asked_for_are_the_rows_and_columns_even_where_nothing_is(gaps):
    table = table_of(gaps, models=["Qwen2.5-7B", "toy-4l"], datasets=["gsm8k"])
    assert list(table.index) == ["Qwen2.5-7B", "toy-4l"] and table.shape[1] == 6
    assert table.loc["Qwen2.5-7B"].isna().all() and table.loc["toy-4l"].notna().all()


def test_an_empty_folder_says_what_to_run(tmp_path):
    with pytest.raises(MissingArtifact, match=f"no artifacts under {tmp_path}; run: make sweep OUT={tmp_path}"):
        Study(tmp_path)


def test_a_folder_whose_results_lie_one_deeper_says_where(tmp_path):
    write_run(tmp_path / "demo", "gsm8k", "toy-4l", 4)
    with pytest.raises(MissingArtifact, match=f"there are some under {tmp_path}/demo: make table OUT={tmp_path}/demo"):
        Study(tmp_path)


def test_a_folder_with_only_the_papers_keys_gives_the_same_table_and_a_warning(tmp_path):
    for folder, theirs in (("ours", False), ("theirs", True)):
        for n, dataset in ((10, "gsm8k"), (5, "aime24")):
            write_run(tmp_path / folder, dataset, "Qwen2.5-7B", 28, n_examples=n, papers_keys_only=theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = table_of(tmp_path / "ours")
    with (
        pytest.warns(UserWarning, match=r"2 of 2 logit_lens results under .*theirs have no meta.*\(on gsm8k, aime24\)"),
        pytest.warns(UserWarning, match="2 of 2 relative_contribution results"),
    ):
        theirs = table_of(tmp_path / "theirs")
    study = Study(tmp_path / "theirs")
    with pytest.warns(UserWarning) as said:
        for _ in range(3):
            read_tables(study)
    assert len({str(warning.message) for warning in said}) == len(said) == 5  # each probe once
    assert theirs.equals(ours) and theirs.notna().to_numpy().sum() == 12


@pytest.mark.filterwarnings("ignore:.*have no meta")
def test_the_papers_files_in_bfloat16_with_gradients_give_tables_figures_and_the_tidy_frame(tmp_path):
    for path in write_run(tmp_path, "gsm8k", "Qwen2.5-7B", 28, papers_keys_only=True):
        stored = torch.load(path, weights_only=True)
        torch.save({key: value.bfloat16().requires_grad_() for key, value in stored.items()}, path)
    study = Study(tmp_path)
    tables = read_tables(study)
    write_tables(tables, tmp_path)
    assert tables.effective_depth.notna().all(axis=None) and set(tables.five_probes.metric) > {"future", "erasure"}
    assert len(grid("layer_effects", study).axes) == 2
    assert load_results(tmp_path).value.dtype == "float64"


def test_an_unreadable_result_is_moved_aside_and_its_cells_are_missing(gaps):
    path = artifact_path(gaps, "gsm8k", "toy-4l", "logit_lens", 10)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.warns(UserWarning, match="moved to logitlens_10exps.pt.unreadable-1; run: make sweep MODELS=toy-4l"):
        table = table_of(gaps)
    assert list(table.loc["toy-4l", (slice(None), "gsm8k", "ED")].isna()) == [False, True, True]
    assert str(Study(gaps).missing()[0]).startswith("no artifact for gsm8k × toy-4l (logit_lens); run: make sweep")


def test_a_curve_with_nan_is_a_missing_value_and_a_warning_that_names_it(gaps):
    path = artifact_path(gaps, "gsm8k", "toy-4l", "logit_lens", 10)
    kl, overlap = torch.tensor([3.0, float("nan"), 1.0, 0.0]), torch.full((4,), 0.5)
    torch.save({"res_kl_divs": kl, "res_overlaps": overlap, "meta": {"seed": 1}}, path)
    with pytest.warns(UserWarning, match="gsm8k × toy-4l has no effective depth: kl is nan at layer 1"):
        table = table_of(gaps)
    assert list(table.loc["toy-4l", (slice(None), "gsm8k", "ED")].isna()) == [False, True, False]


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


def test_the_csv_reads_back_as_the_table_rounded(gaps):
    table = table_of(gaps)
    write_tables(read_tables(Study(gaps, datasets=DATASETS)), gaps)
    path = gaps / "effective_depth.csv"
    back = pd.read_csv(path, header=[0, 1, 2], index_col=0, na_values="–")
    pd.testing.assert_frame_equal(back.astype(float), table.astype(float).round(2), check_names=False)
    assert path.read_text().splitlines()[3].startswith("toy-4l,–,–,0,0.25,–,–,")


def test_the_tex_is_a_whole_booktabs_document_with_a_cell_a_column(gaps):
    write_depths(gaps, "gsm8k", "my_model&co_70%", 4, 0, 1, 2)
    write_tables(read_tables(Study(gaps, datasets=DATASETS)), gaps)
    tex = (gaps / "effective_depth.tex").read_text()
    body = tex[tex.index(r"\midrule") : tex.index(r"\bottomrule")].splitlines()[1:]
    assert [len(re.split(r"(?<!\\)&", line)) for line in body] == [19, 19, 19]
    assert r"my\_model\&co\_70\% & -- & -- & 0 & 0.25 &" in tex
    assert tex.count(r"\begin{") == tex.count(r"\end{") == 2 and r"\usepackage{booktabs}" in tex
    assert r"\cmidrule(lr){2-7}\cmidrule(lr){8-13}\cmidrule(lr){14-19}" in tex
    assert tex.isascii()


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="there is no LaTeX here")
def test_latex_compiles_the_tex(paper):
    write_tables(read_tables(Study(paper, datasets=DATASETS)), paper)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "effective_depth.tex"],
        cwd=paper,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "Overfull" not in done.stdout


def test_a_table_that_cannot_be_written_leaves_all_old_files(gaps, monkeypatch):
    paths = write_tables(read_tables(Study(gaps, datasets=DATASETS)), gaps)
    before = [path.read_bytes() for path in paths]
    write_depths(gaps, "gsm8k", "toy-8l", 8, 1, 2, 3)
    tables = read_tables(Study(gaps, datasets=DATASETS))

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_tables(tables, gaps)
    assert [path.read_bytes() for path in paths] == before
    assert not list(gaps.glob(".*.part"))


def test_small_models_and_the_papers_datasets_come_first(tmp_path):
    for model in ("toy-16l", "Qwen2.5-32B", "toy-4l", "Qwen2.5-1.5B-Instruct", "gpt2", "Llama-3.1-405B", "toy-8l"):
        write_depths(tmp_path, "addition_6", model, 4, 0, 1, 2)
    for dataset in ("aime24", "hellaswag", "gsm8k"):
        write_depths(tmp_path, dataset, "toy-4l", 4, 0, 1, 2)
    study = Study(tmp_path)
    assert study.models == [
        "Qwen2.5-1.5B-Instruct",
        "toy-4l",
        "toy-8l",
        "toy-16l",
        "Qwen2.5-32B",
        "Llama-3.1-405B",
        "gpt2",
    ]
    assert study.datasets == ["hellaswag", "gsm8k", "aime24", "addition_6"]


def test_models_come_in_the_order_of_the_papers_table(paper):
    assert Study(paper).models == list(PUBLISHED) == in_order(sorted(PUBLISHED))


def test_other_files_in_the_folder_are_left_alone(gaps):
    (gaps / "gsm8k" / "toy-4l" / "notes.pt").write_bytes(b"mine")
    (gaps / "gsm8k" / "toy-4l" / "logitlens_10exps.pt.unreadable-1").write_bytes(b"old")
    (gaps / "figures").mkdir()
    assert len(Study(gaps)) == 4
    assert (gaps / "gsm8k" / "toy-4l" / "notes.pt").read_bytes() == b"mine"


def test_of_several_numbers_of_examples_the_largest_counts_and_the_others_are_named(gaps):
    path = artifact_path(gaps, "gsm8k", "toy-4l", "logit_lens", 9)
    save_artifact(path, curves_with_depths(4, 0, None, None)["logit_lens"], {})
    with pytest.warns(UserWarning, match="reading .*logitlens_10exps.pt, not logitlens_9exps.pt beside it"):
        table = table_of(gaps)
    assert table.loc["toy-4l", ("kl", "gsm8k", "ED")] == 1


def test_missing_runs_name_each_probe_and_the_command_that_makes_it(gaps):
    write_run(gaps, "gsm8k", "toy-8l", 8)
    missing = {(run.dataset, run.model): run for run in Study(gaps, datasets=["gsm8k", "aime24"]).missing()}
    assert missing["gsm8k", "toy-4l"].probes == ("layer_effects", "residual_erasure", "integrated_gradients")
    assert missing["aime24", "toy-8l"].probes == ("relative_contribution", "logit_lens")
    assert ("gsm8k", "toy-8l") not in missing
    assert missing["aime24", "toy-8l"].command == f"make sweep MODELS=toy-8l DATASETS=aime24 OUT={gaps}"
    assert Study(gaps, ["toy-4l"], ["gsm8k"]).missing(["logit_lens"]) == []
    assert [run.model for run in Study(gaps, ["Qwen2.5-7B"], ["gsm8k"]).missing()] == ["Qwen2.5-7B"]
