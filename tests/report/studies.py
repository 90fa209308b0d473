"""Small studies whose effective depths are known, those of the papers' table among them, and their tables."""

import re
import warnings

import openpyxl

from depth_lib.report.table import effective_depth_table, read_tables, write_tables
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import DATASETS, curves_with_depths

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


def write_depths(out, dataset, model, n_layers, cosine, kl, overlap):
    for probe, result in curves_with_depths(n_layers, cosine, kl, overlap).items():
        save_artifact(artifact_path(out, dataset, model, probe, 10), result, {})


def write_published(out):
    """Results whose effective depths are the published ones."""
    for model, (n_layers, cells) in PUBLISHED.items():
        for dataset, cell in zip(DATASETS, cells, strict=True):
            write_depths(out, dataset, model, n_layers, *(int(ed) for ed in re.findall(r"(\d+)\(", cell)))
    return out


def table_of(folder, models=None, datasets=DATASETS):
    return effective_depth_table(Study(folder, models, datasets))


def tables_of(study, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {path.name: _content(path) for path in write_tables(read_tables(study), folder)}


def _content(path):
    """The bytes of a file; of a workbook, which has the time of its making in it, every sheet's cells."""
    if path.suffix != ".xlsx":
        return path.read_bytes()
    return {sheet.title: list(sheet.iter_rows(values_only=True)) for sheet in openpyxl.load_workbook(path)}
