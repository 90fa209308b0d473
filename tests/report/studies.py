"""Small studies whose effective depths are known, those of the papers' table among them, and their tables."""

import warnings

import openpyxl

from depth_lib.effective_depth.published import published_depths
from depth_lib.effective_depth.rules import PAPER_METRICS
from depth_lib.report.table import effective_depth_table, read_tables, write_tables
from depth_lib.results.study import Study
from tests.synthetic import DATASETS, curves_with_depths, save


def write_depths(out, dataset, model, n_layers, cosine, kl, overlap):
    for probe, result in curves_with_depths(n_layers, cosine, kl, overlap).items():
        save(out, model, probe, dataset=dataset, result=result)


def write_published(out):
    """Results whose effective depths are the published ones."""
    for (model, dataset), rows in published_depths().groupby(["model", "dataset"]):
        write_depths(out, dataset, model, rows.layers.iloc[0], *rows.set_index("metric").ed[list(PAPER_METRICS)])
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
