"""The table as csv and TeX says what the table says, and is written whole or not at all."""

import re
import shutil
import subprocess

import pandas as pd
import pytest

from depth_lib.report.tables import read_tables, write_tables
from depth_lib.results import files as storage
from depth_lib.results.study import Study
from tests.report.studies import table_of, write_depths
from tests.synthetic import DATASETS


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


def test_other_files_in_the_folder_are_left_alone(gaps):
    (gaps / "gsm8k" / "toy-4l" / "notes.pt").write_bytes(b"mine")
    (gaps / "gsm8k" / "toy-4l" / "logitlens_10exps.pt.unreadable-1").write_bytes(b"old")
    (gaps / "figures").mkdir()
    assert len(Study(gaps)) == 4
    assert (gaps / "gsm8k" / "toy-4l" / "notes.pt").read_bytes() == b"mine"
