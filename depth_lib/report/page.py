"""One page to hand to a colleague: what the numbers say, the tables, every figure, and where they come from."""

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path

import jinja2
import matplotlib
import pandas as pd
from markupsafe import Markup, escape
from PIL import Image

from ..effective_depth.coverage import COMMAND, measured_coverage
from ..effective_depth.rules import PAPER_METRICS
from ..effective_depth.tables import ALL_METRICS
from ..figures.grids import save_figures
from ..figures.kinds import KINDS
from ..figures.paper import save_paper_figures
from ..figures.proxies import CAPTION as PROXIES
from ..figures.summary import SUMMARIES, save_summary_figures
from ..files import write_together
from ..results.meta import made_from
from ..results.schemas import ARTIFACTS
from ..results.study import Study
from .conclusions import conclusions
from .explore import explored
from .tables import Tables
from .workbook import DESCRIPTION, MISSING, VERDICTS

_CSS_PIXELS = 96  # an inch


def write_report(study: Study, tables: Tables, drawn: Iterable[Path] = ()) -> Path:
    """Write `folder/report.html`, which needs nothing beside it; drawn: the figures that `draw_figures` has written."""
    folder = Path(__file__).parent
    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page.filters |= {"breakable": _breakable, "whole": _whole, "decimal": _decimal, "colour": _colour}
    page.globals |= {"span": _span, "dash": MISSING}
    text = page.get_template("report.html.jinja").render(
        css=(folder / "report.css").read_text(),
        script=(folder / "explore.js").read_text(),
        **_contents(study, tables, set(drawn)),
    )
    write_together({study.folder / "report.html": text.encode()})
    return study.folder / "report.html"


def draw_figures(study: Study, tables: Tables) -> list[Path]:
    """Write every figure there can be to `folder/figures`, `figures/summary` and `figures/paper`; the paths written."""
    return [
        *save_figures(study),
        *save_summary_figures(study, tables.intervals, tables.thresholds),
        *save_paper_figures(study),
    ]


def provenance(study: Study) -> pd.DataFrame:
    """Columns "Run" (model, dataset) and "Made from": model id and revision, dtype, prompts, where, when, versions.

    One row for all probes of a run that were made alike; probes that were not are named. Files without `meta` say so.
    """
    made: dict[tuple[str, str], list[str]] = {}
    for dataset, model, probe in study:
        if result := study.get((dataset, model, probe)):
            made.setdefault((f"{model}, {dataset}", made_from(result["meta"])), []).append(probe)
    rows = [(run, f"{', '.join(probes)}: {text}") for (run, text), probes in made.items()]
    return pd.DataFrame(rows, columns=["Run", "Made from"])


def _contents(study: Study, tables: Tables, drawn: set[Path]) -> dict:
    """All that the template shows."""
    figures, measured = study.folder / "figures", measured_coverage()
    captions = {name: row.caption for name, row in SUMMARIES.items()} | {"proxies": PROXIES}
    summaries = _figures(drawn, {figures / "summary" / f"{name}.png": text for name, text in captions.items()})
    coverage = measured.pivot_table("coverage", "n_prompts", "metric", aggfunc=["mean", "min"])
    return {
        "title": f"Effective depth of {len(study.models)} model{'s' * (len(study.models) != 1)}",
        "models": study.models,
        "datasets": study.datasets,
        "with_depths": study.with_depths,
        "conclusions": conclusions(tables.intervals, tables.beside_the_paper),
        "descriptions": DESCRIPTION,
        "metrics": PAPER_METRICS,
        "all_metrics": sorted(tables.five_probes.metric.unique(), key=_as_listed),
        "depths": _by_value(tables.intervals),
        "probes": _by_value(tables.five_probes),
        "runs": list(tables.five_probes[["model", "dataset"]].drop_duplicates().itertuples(index=False, name=None)),
        "intervals": list(tables.intervals.itertuples()),
        "published": list(tables.beside_the_paper.itertuples()),
        "verdicts": tables.beside_the_paper.verdict.value_counts().to_dict(),
        "verdict_colours": VERDICTS,
        "interval_figure": summaries[:1],
        "questions": summaries[1:],
        "difficulty": _answers(tables.by_difficulty),
        "thresholds": _figures(
            drawn,
            {
                figures
                / "summary"
                / f"thresholds_{name}.png": f"Ratio over thresholds, {name}; dotted: the papers' own."
                for name in study.datasets
            },
        ),
        "explored": explored(study, tables.intervals),
        "panels": _figures(drawn, _panels(figures, study.pairs)),
        "coverage": [(n, [(row["mean", m], row["min", m]) for m in PAPER_METRICS]) for n, row in coverage.iterrows()],
        "repeats": int(measured.repeats.min()),
        "command": COMMAND,
        "provenance": list(provenance(study).itertuples(index=False, name=None)),
        "files": ", ".join(schema.file for schema in ARTIFACTS.values()),
    }


def _answers(by_difficulty: pd.DataFrame) -> list[tuple[str, str, list[str]]]:
    """(model, dataset, a sentence by each effect: whether harder questions use more depth) of each run."""
    if by_difficulty.empty:
        return []
    runs = by_difficulty.groupby(["model", "dataset"], sort=False)
    return [(*run, list(rows.answer.unique())) for run, rows in runs]


def _panels(figures: Path, pairs: Iterable[str]) -> dict[Path, str]:
    """Every figure of a kind and its caption; those about other questions than the papers' stand behind the papers'."""
    return {
        figures / f"{name}{f'_{pair}' if pair else ''}.png": kind.caption
        for name, kind in KINDS.items()
        for pair in ("", *(pairs if kind.of_question else ()))
    }


def _as_listed(metric: str) -> tuple[str, int]:
    name, _, pair = metric.partition(":")
    return pair, list(ALL_METRICS).index(name)


def _by_value(frame: pd.DataFrame) -> dict:
    return {(row.model, row.dataset, row.metric): row for row in frame.itertuples()}


def _figures(drawn: set[Path], captions: Mapping[Path, str]) -> list[dict]:
    """Those images that were drawn, as data, with their printed width in CSS pixels, which letters are made for."""
    shown = []
    for path, caption in captions.items():
        if path in drawn:
            with Image.open(path) as image:
                width = round(image.width / image.info.get("dpi", (_CSS_PIXELS,))[0] * _CSS_PIXELS)
            data = base64.b64encode(path.read_bytes()).decode()
            shown.append({"id": f"figure-{path.stem}", "caption": caption, "width": width, "data": data})
    return shown


def _breakable(name: str) -> Markup:
    """A name that may break after its hyphens."""
    return escape(name).replace("-", Markup("-<wbr>"))


def _whole(value: object) -> str:
    return MISSING if pd.isna(value) else str(int(value))


def _decimal(value: object, places: int = 2) -> str:
    return MISSING if pd.isna(value) else f"{value:.{places}f}"


def _colour(share: float) -> str:
    """The workbook's scale, paler: red 0, yellow 0.5, green 1."""
    red, green, blue, _ = matplotlib.colormaps["RdYlGn"](0.1 + 0.8 * share, bytes=True)
    return f"rgb({red},{green},{blue},.55)"


def _span(low: object, high: object) -> str:
    if pd.isna(low) and pd.isna(high):
        return MISSING
    if not pd.isna(low) and not pd.isna(high) and low == high:
        return str(low)
    return f"{'none' if pd.isna(low) else low} to {'none' if pd.isna(high) else high}"
