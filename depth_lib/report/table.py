"""The table of effective depths: one Styler, written as HTML, TeX and a workbook; and where the numbers come from."""

import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ..effective_depth.difficulty import depth_scores
from ..effective_depth.intervals import Estimate
from ..effective_depth.over_models import over_models
from ..effective_depth.rules import RULES
from ..effective_depth.tables import depths as depths_of
from ..files import write_again
from ..results.study import Study

MISSING = "–"


def depth_table(depths: pd.DataFrame, wide: bool = False) -> Any:
    """17 (0.64) [16, 18]: the depth, its ratio and its interval. The darker, the deeper.

    A row per model and data set, a column per rule; wide: a row per model, as in the papers.
    depths: what `effective_depth.tables.depths` returned.
    """
    names = {name: rule.title for name, rule in RULES.items()}
    rows = depths.assign(rule=depths.rule.map(names), model=(depths.model + ", " + depths.variant).str.rstrip(", "))
    rows["text"] = [_cell(row, wide) for row in rows.itertuples()]
    text, ratios = (
        rows.pivot(index=["model", "dataset"], columns="rule", values=values).reindex(
            pd.MultiIndex.from_frame(rows[["model", "dataset"]].drop_duplicates()), columns=[*names.values()]
        )
        for values in ("text", "ratio")
    )
    if wide:
        text, ratios = text.unstack(sort=False), ratios.unstack(sort=False)
    text = text.fillna(MISSING if wide else f"{MISSING} not measured")
    text.columns.names = [None] * text.columns.nlevels
    return text.style.background_gradient(
        "Blues",
        axis=None,
        gmap=ratios.fillna(0).to_numpy(),  # pyright: ignore[reportArgumentType] (an array is right)
        vmin=0,
        vmax=1.6,
    )


def _cell(row, wide: bool = False) -> str:
    if pd.isna(row.ed):
        return MISSING if wide else f"{MISSING} {row.note}".strip()
    ends = ["open" if pd.isna(end) else str(end) for end in (row.low, row.high)]
    interval = "" if ends == ["open", "open"] else f" [{', '.join(ends)}]"
    published = "" if wide or pd.isna(row.published) else f", published {row.published}"
    passes = float(getattr(row, "passes", "nan"))
    passes = "" if wide or math.isnan(passes) else f", {round(passes, 2):g} passes"
    return f"{row.ed} ({row.ratio:.2f}){interval}{passes}{published}"


def rows_of(frame: pd.DataFrame) -> list[Any]:
    """The rows, with columns as attributes."""
    return [*frame.itertuples()]


def write_tables(depths: pd.DataFrame, folder: str | Path) -> list[Path]:
    """Write effective_depth.csv (a row per depth), .tex (for booktabs and xcolor) and .xlsx (both, and `over_models`).

    Without any depth, only the first is written. Other files of these names are renamed to `<name>.replaced-1`.
    """
    csv, tex, xlsx = (Path(folder) / f"effective_depth.{ending}" for ending in ("csv", "tex", "xlsx"))
    contents = {csv: depths.to_csv(index=False).encode()}
    if not depths.empty:
        contents |= {tex: _tex(depths).encode(), xlsx: _workbook(depths)}
    write_again(contents)
    return [*contents]


def _tex(depths: pd.DataFrame) -> str:
    wide = depth_table(depths, wide=True)
    escaped = wide.format(escape="latex").format_index(escape="latex", axis=0).format_index(escape="latex", axis=1)
    return escaped.to_latex(hrules=True, convert_css=True, multicol_align="c")


def _workbook(depths: pd.DataFrame) -> bytes:
    book = io.BytesIO()
    with pd.ExcelWriter(book) as sheets:
        depth_table(depths, wide=True).to_excel(sheets, sheet_name="Effective depth")
        depths.to_excel(sheets, sheet_name="Every depth", index=False)
        over_models(depths).to_excel(sheets, sheet_name="Over models", index=False)
    return book.getvalue()


def over_models_table(depths: pd.DataFrame) -> pd.DataFrame:
    """What size, training and task change, as text; empty where there are too few models."""
    frame = over_models(depths)
    change = [
        f"{row.estimate:+.2f}" + ("" if pd.isna(row.low) else f" [{row.low:+.2f}, {row.high:+.2f}]")
        for row in rows_of(frame)
    ]
    return frame.assign(change=change)[["question", "rule", "before", "after", "change", "models"]]


def made_from(study: Study) -> pd.DataFrame:
    """The model, prompts and precision of each result: a row for every group of probes that share them."""
    settings = ["model_id", "commit", "dtype", "quantization", "source", "n_prompts", "prompts_hash"]
    rows = pd.DataFrame(
        [
            {"model": model, "dataset": dataset, "probe": probe} | {name: result["meta"].get(name) for name in settings}
            for (dataset, model, probe), result in study.items()
        ]
    ).dropna(axis="columns", how="all")
    alike = [name for name in rows if name != "probe"]
    made = rows.groupby(alike, sort=False, dropna=False).probe.agg(", ".join).reset_index()
    return made.convert_dtypes().astype(object).fillna("")  # a question has no prompts; other numbers stay whole


def depth_lines(study: Study) -> list[str]:
    """The effective depths of a study for a terminal: a line for each depth, and for each slope over difficulty."""
    lines = []
    for row in rows_of(depths_of(study)):
        cell = _cell(row)
        why = "" if pd.isna(row.ed) or "[" in cell else f"; {row.note}"
        lines += [f"{row.model} @ {row.dataset}, {' '.join(filter(None, [row.rule, row.variant]))}: {cell}{why}"]
    return lines + [line for run, result in study.of("depth_by_difficulty").items() for line in _slopes(run, result)]


def _slopes(run: tuple[str, str], result: Mapping) -> Iterator[str]:
    for row in rows_of(depth_scores(result).drop_duplicates("effect")):
        slope = Estimate(row.slope, row.slope_low, row.slope_high)
        yield f"{run[1]} @ {run[0]}, depth score by effect on {row.effect}: {slope} layers per level"
