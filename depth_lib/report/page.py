"""One page to hand to a colleague: what the numbers say, the tables, every figure, and where they come from."""

import base64
from collections.abc import Iterable
from pathlib import Path

import jinja2
import matplotlib
import pandas as pd
from markupsafe import Markup, escape
from PIL import Image
from plotly.offline import get_plotlyjs

from ..effective_depth.rules import PAPER_METRICS
from ..embedded import TOYS, prompts_path
from ..figures.grids import save_figures
from ..figures.kinds import KINDS
from ..figures.paper import save_paper_figures
from ..figures.proxies import CAPTION as PROXIES
from ..figures.summary import SUMMARIES, save_summary_figures
from ..files import write_together
from ..results.study import Study
from .conclusions import conclusions
from .definitions import DEFINITIONS, SOURCES
from .explore import explorer_json
from .table import MISSING, Tables, provenance

__all__ = ["draw_figures", "provenance", "write_report"]

_CSS_PIXELS = 96  # per inch
_HALF_COLUMN = 560  # CSS pixels: wider figures have a row of their own


def draw_figures(study: Study, tables: Tables) -> list[Path]:
    """Draw every figure there can be into `folder/figures`, `figures/summary` and `figures/paper`; the paths."""
    return [
        *save_figures(study),
        *save_summary_figures(study, tables.intervals, tables.thresholds),
        *save_paper_figures(study),
    ]


def write_report(study: Study, tables: Tables, drawn: Iterable[Path] = ()) -> Path:
    """Write `folder/report.html`, one file that needs no other and no network.

    drawn: the figures that `draw_figures` wrote. Each is placed by its name.
    """
    folder = Path(__file__).parent
    images = {path.stem: path for path in drawn if path.suffix == ".png" and path.parent.name != "paper"}
    explorer = explorer_json(study, tables.intervals)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"breakable": _breakable, "whole": _whole, "decimal": _decimal, "colour": _colour}
    environment.globals |= {"span": _span, "dash": MISSING}
    text = environment.get_template("report.html.jinja").render(
        css=(folder / "report.css").read_text(),
        plotly=get_plotlyjs() if explorer != "[]" else "",
        explorer=explorer,
        title=f"Effective depth of {len(study.models)} model{'s' * (len(study.models) != 1)}",
        study=study,
        tables=tables,
        notices=notices(study),
        conclusions=conclusions(tables.intervals, tables.beside_the_paper),
        definitions=_definitions(tables),
        sources=SOURCES,
        paper_metrics=PAPER_METRICS,
        metrics=list(tables.five_probes.metric.unique()),
        depths={(row.model, row.dataset, row.metric): row for row in tables.intervals.itertuples()},
        probes={(row.model, row.dataset, row.metric): row for row in tables.five_probes.itertuples()},
        runs=tables.five_probes[["model", "dataset"]].drop_duplicates().to_numpy().tolist(),
        verdicts=tables.beside_the_paper.verdict.value_counts().to_dict(),
        answers=_answers(tables.by_difficulty),
        interval_figures=_figures(images, {"ratio_intervals": SUMMARIES["ratio_intervals"].caption}),
        threshold_figures=_figures(images, _threshold_captions(study)),
        question_figures=_figures(images, _question_captions()),
        proxy_figures=_figures(images, {"proxies": PROXIES}),
        panels=_figures(images, _panel_captions(study)),
    )
    path = study.folder / "report.html"
    write_together({path: text.encode()})
    return path


def notices(study: Study) -> list[str]:
    """What a reader has to know before the numbers: prompts that the package's authors wrote, and toy models."""
    models_on: dict[str, set[str]] = {}
    own_on: dict[str, set[str]] = {}
    toys = set()
    for (dataset, model, _), result in study.items():
        meta = result["meta"]
        models_on.setdefault(dataset, set()).add(model)
        if _is_own(dataset, meta.get("source")):
            own_on.setdefault(dataset, set()).add(model)
        if meta.get("model_id") in TOYS:
            toys.add(model)
    lines = []
    if own_on:
        names = [
            dataset if own_on[dataset] == models_on[dataset] else f"{dataset} ({', '.join(sorted(own_on[dataset]))})"
            for dataset in study.datasets
            if dataset in own_on
        ]
        lines.append(
            f"Prompts of {', '.join(names)} were written for depth_lib in the form of these datasets: they are not the "
            "datasets' own rows, and their numbers are not comparable with published ones."
        )
    if toys:
        names = [model for model in study.models if model in toys]
        lines.append(
            f"{', '.join(names)}: toy model{'s' * (len(names) > 1)} of depth_lib's own, trained on sums and short "
            "texts, to show how the probes work; the numbers say nothing about language models."
        )
    return lines


def _is_own(dataset: str, source: str | None) -> bool:
    """Whether prompts of a dataset from this source are the package's own, not the dataset's first rows."""
    if source == "sample":
        return prompts_path(dataset, published=True).parent.name != "published"
    return source == "embedded"


def _definitions(tables: Tables) -> list[tuple[str, str, str, str]]:
    """The definitions of the metrics of these tables, and of what stands in every one."""
    shown = {metric.partition(":")[0] for metric in tables.five_probes.metric} | {*PAPER_METRICS, "ED", "RATIO"}
    if tables.five_probes.score.notna().any():
        shown.add("score")
    return [(name, *texts) for name, texts in DEFINITIONS.items() if name in shown]


def _answers(by_difficulty: pd.DataFrame) -> list[tuple[str, str, list[str]]]:
    """(model, dataset, one sentence per effect: whether harder questions use more depth) per run."""
    if by_difficulty.empty:
        return []
    runs = by_difficulty.groupby(["model", "dataset"], sort=False)
    return [(model, dataset, list(rows.answer.unique())) for (model, dataset), rows in runs]


def _threshold_captions(study: Study) -> dict[str, str]:
    return {f"thresholds_{name}": f"Ratio over thresholds, {name}; dotted: the papers' own." for name in study.datasets}


def _question_captions() -> dict[str, str]:
    return {name: summary.caption for name, summary in SUMMARIES.items() if name != "ratio_intervals"}


def _panel_captions(study: Study) -> dict[str, str]:
    """Name and caption of every figure with one panel per run; those about other questions than the papers' last."""
    captions = {name: kind.caption for name, kind in KINDS.items()}
    for pair in study.pairs:
        captions |= {f"{name}_{pair}": kind.caption for name, kind in KINDS.items() if kind.of_question}
    return captions


def _figures(images: dict[str, Path], captions: dict[str, str]) -> list[dict]:
    """Those of these figures that were drawn, as data; `wide`: with a row of its own."""
    figures = []
    for name, caption in captions.items():
        if name in images:
            with Image.open(images[name]) as image:
                width = image.width / image.info.get("dpi", (_CSS_PIXELS,))[0] * _CSS_PIXELS
            data = base64.b64encode(images[name].read_bytes()).decode()
            figures.append({"name": name, "caption": caption, "wide": width > _HALF_COLUMN, "data": data})
    return figures


def _breakable(name: str) -> Markup:
    """A name that may break after its hyphens."""
    return escape(name).replace("-", Markup("-<wbr>"))


def _whole(value: object) -> str:
    return MISSING if pd.isna(value) else str(int(value))


def _decimal(value: object, places: int = 2) -> str:
    return MISSING if pd.isna(value) else f"{value:.{places}f}"


def _colour(ratio: float) -> str:
    """The workbook's scale, paler: red 0, yellow 0.5, green 1."""
    red, green, blue, _ = matplotlib.colormaps["RdYlGn"](0.1 + 0.8 * ratio, bytes=True)
    return f"rgb({red},{green},{blue},.55)"


def _span(low: object, high: object) -> str:
    """An interval in words, such as "3 to 7", "3", "3 to none"; both ends open is no interval."""
    if pd.isna(low) and pd.isna(high):
        return "no interval"
    ends = ["none" if pd.isna(end) else str(end) for end in (low, high)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)
