"""One page to hand to a colleague: what the numbers say, the tables, every figure, and where they come from."""

import base64
import io
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
from ..figures import COMPARISONS, KINDS, save_comparisons, save_figures, save_paper_figures
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
        *save_comparisons(study, tables.intervals, tables.thresholds),
        *save_paper_figures(study),
    ]


def write_report(study: Study, tables: Tables, drawn: Iterable[Path] = ()) -> Path:
    """Write `folder/report.html`, one file that needs no other and no network.

    drawn: the figures that `draw_figures` wrote. Each is placed by its name.
    """
    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"breakable": _breakable, "colour": _colour}
    text = environment.get_template("report.html.jinja").render(
        css=(folder / "report.css").read_text(),
        plotly=get_plotlyjs(),
        runs=explorer_json(study),
        study=study,
        notices=notices(study),
        conclusions=conclusions(tables.intervals, tables.beside_the_paper),
        intervals=_rows(tables.intervals),
        depths=_rows(tables.five_probes),
        published=_rows(tables.beside_the_paper),
        verdicts=tables.beside_the_paper.verdict.value_counts().to_dict(),
        difficulty=tables.by_difficulty,
        provenance=_rows(tables.provenance),
        paper_metrics=PAPER_METRICS,
        definitions=DEFINITIONS,
        sources=SOURCES,
        images={path.stem: _image(path) for path in drawn if path.suffix == ".png" and path.parent.name != "paper"},
        kinds=KINDS,
        comparisons=COMPARISONS,
        dash=MISSING,
    )
    path = study.folder / "report.html"
    write_together({path: text.encode()})
    return path


def notices(study: Study) -> list[str]:
    """What a reader has to know before the numbers: prompts that the package's authors wrote, and toy models."""
    metas = {run: (study.get(run) or {}).get("meta", {}) for run in study}
    toys = list(dict.fromkeys(model for (_, model, _), meta in metas.items() if meta.get("model_id") in TOYS))
    written_here = {run for run, meta in metas.items() if _is_written_here(run[0], meta.get("source"))}
    datasets = []
    for dataset in study.datasets:
        runs = {run for run in metas if run[0] == dataset}
        if runs & written_here:
            datasets.append(dataset if runs <= written_here else f"{dataset} (for some models)")
    lines = []
    if datasets:
        lines.append(
            f"Prompts of {', '.join(datasets)} were written for depth_lib in the form of these datasets: they are not "
            "the datasets' own rows, and their numbers are not comparable with published ones."
        )
    if toys:
        lines.append(
            f"{', '.join(toys)}: toy model{'s' * (len(toys) > 1)} of depth_lib's own, trained on sums and short "
            "texts, to show how the probes work; the numbers say nothing about language models."
        )
    return lines


def _is_written_here(dataset: str, source: str | None) -> bool:
    """Whether prompts of a dataset from this source are the package's own, not the dataset's first rows."""
    if source == "sample":
        return prompts_path(dataset, published=True).parent.name != "published"
    return source == "embedded"


def _rows(frame: pd.DataFrame) -> list[dict]:
    """A dict per row, None for what is missing."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _image(path: Path) -> dict:
    """A figure as data, without loss in half the size of a PNG; `wide`: it needs a row of its own."""
    buffer = io.BytesIO()
    with Image.open(path) as image:
        inches = image.width / image.info.get("dpi", (_CSS_PIXELS,))[0]
        image.save(buffer, "WEBP", lossless=True)
    return {"data": base64.b64encode(buffer.getvalue()).decode(), "wide": inches * _CSS_PIXELS > _HALF_COLUMN}


def _breakable(name: str) -> Markup:
    """A name that may break after its hyphens."""
    return escape(name).replace("-", Markup("-<wbr>"))


def _colour(ratio: float) -> str:
    """The workbook's scale, paler: red 0, yellow 0.5, green 1."""
    red, green, blue, _ = matplotlib.colormaps["RdYlGn"](0.1 + 0.8 * ratio, bytes=True)
    return f"rgb({red},{green},{blue},.55)"
