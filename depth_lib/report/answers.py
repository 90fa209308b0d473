"""All that a folder of results says about effective depth, in one place and in files."""

import io
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ..disk import write_together
from ..effective_depth.published import beside_the_paper
from ..effective_depth.tables import depths, depths_by_threshold, depths_with_intervals
from ..results.study import Study
from .sheets import add_sheet, paint_verdicts
from .spreadsheet import workbook
from .tables import effective_depth_table, write_table


@dataclass(frozen=True)
class Answers:
    """The tables of one folder: the paper's, and what `depths_with_intervals`, `depths_by_threshold`, `depths` and
    `beside_the_paper` return."""

    table: pd.DataFrame
    stability: pd.DataFrame
    thresholds: pd.DataFrame
    five_probes: pd.DataFrame
    beside: pd.DataFrame


def read_answers(study: Study) -> Answers:
    """Every table of a study, from one reading of its results."""
    found = depths(study)
    stability = depths_with_intervals(study, found)
    return Answers(
        effective_depth_table(study, found),
        stability,
        depths_by_threshold(study, found),
        found.drop(columns="note"),
        beside_the_paper(stability),
    )


def write_answers(answers: Answers, folder: str | Path) -> list[Path]:
    """Write the paper's table as `write_table` does, with a sheet for each other table in the workbook, and as csv.

    Files: effective_depth.xlsx, .csv, .tex; effective_depth_intervals.csv, _thresholds.csv, _five_probes.csv and, where
    a model is one of the paper's, _beside_the_paper.csv.
    """
    folder = Path(folder)
    paths = write_table(answers.table, folder)
    book = workbook(answers.table)
    frames = {
        "intervals": answers.stability,
        "thresholds": answers.thresholds,
        "five_probes": answers.five_probes,
        "beside_the_paper": answers.beside,
    }
    contents = {}
    for name, frame in frames.items():
        if len(frame):
            sheet = add_sheet(book, name, frame)
            if name == "beside_the_paper":
                paint_verdicts(sheet, frame)
            contents[folder / f"effective_depth_{name}.csv"] = frame.to_csv(index=False, float_format="%.4f").encode()
    buffer = io.BytesIO()
    book.move_sheet("Description", len(book.sheetnames))
    book.save(buffer)
    contents[folder / "effective_depth.xlsx"] = buffer.getvalue()
    write_together(contents)
    return paths + [path for path in contents if path not in paths]
