"""The report, one HTML page: conclusions, tables, every figure, and provenance."""

import base64
from collections.abc import Iterable
from pathlib import Path

import jinja2
import pandas as pd

from ..effective_depth.rules import PAPER_METRICS
from ..embedded import TOYS, prompts_path
from ..figures import COMPARISONS, KINDS, save_comparisons, save_figures, save_paper_figures
from ..files import write_together
from ..results.study import Study
from .conclusions import conclusions
from .definitions import DEFINITIONS, SOURCES
from .table import MISSING, Tables


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
    environment.filters["rows"] = _rows
    text = environment.get_template("report.html.jinja").render(
        css=(folder / "report.css").read_text(),
        study=study,
        tables=tables,
        notices=[*study.problems, *notices(study)],
        conclusions=conclusions(study, tables.intervals, tables.beside_the_paper),
        paper_metrics=PAPER_METRICS,
        definitions=DEFINITIONS,
        sources=SOURCES,
        images={
            path.stem: base64.b64encode(path.read_bytes()).decode()
            for path in drawn
            if path.suffix == ".png" and path.parent.name != "paper"
        },
        kinds=KINDS,
        comparisons=COMPARISONS,
        dash=MISSING,
    )
    path = study.folder / "report.html"
    write_together({path: text.encode()})
    return path


def notices(study: Study) -> list[str]:
    """Notices at the top of the page: which prompts and models are this package's own."""
    own_datasets, toys = made_here(study)
    sentences = []
    if own_datasets:
        sentences.append(
            f"Prompts of {', '.join(own_datasets)} were written for depth_lib in the form of these datasets: they are "
            "not the datasets' own rows, and their numbers are not comparable with published ones."
        )
    if toys:
        sentences.append(
            f"Toy models of depth_lib's own, trained on sums and short texts to show how the probes work: "
            f"{', '.join(toys)}. Their numbers say nothing about language models."
        )
    return sentences


def made_here(study: Study) -> tuple[list[str], list[str]]:
    """The datasets whose prompts, and the toy models, that this package's authors made."""
    own_prompts: dict[str, set[bool]] = {}  # of the results on a dataset
    toys = []
    for (dataset, model, _), result in study.items():
        own_prompts.setdefault(dataset, set()).add(_is_written_here(dataset, result["meta"].get("source")))
        if result["meta"].get("model_id") in TOYS and model not in toys:
            toys.append(model)
    datasets = [name if all(own) else f"{name} (for some models)" for name, own in own_prompts.items() if any(own)]
    return datasets, toys


def _is_written_here(dataset: str, source: str | None) -> bool:
    """Whether prompts of a dataset from this source are the package's own, not the dataset's first rows."""
    if source == "sample":
        return prompts_path(dataset, published=True).parent.name != "published"
    return source == "embedded"


def _rows(frame: pd.DataFrame) -> list[dict]:
    """A dict per row, None for what is missing."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")
