"""The report, one HTML page: conclusions, tables, every figure, and provenance."""

import base64
import io
from collections.abc import Iterable
from pathlib import Path

import jinja2
import matplotlib
import pandas as pd
from markupsafe import Markup, escape
from PIL import Image

from ..effective_depth.rules import PAPER_METRICS
from ..embedded import TOYS, prompts_path
from ..figures import COMPARISONS, KINDS, save_comparisons, save_figures, save_paper_figures
from ..files import write_together
from ..results.study import Study
from .conclusions import conclusions
from .definitions import DEFINITIONS, SOURCES
from .table import MISSING, Tables

_LARGEST_WEBP = 16383  # pixels


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
    environment.filters |= {"breakable": _breakable, "colour": _colour, "rows": _rows}
    text = environment.get_template("report.html.jinja").render(
        css=(folder / "report.css").read_text(),
        study=study,
        tables=tables,
        notices=[*study.problems, *notices(study)],
        conclusions=conclusions(study, tables.intervals, tables.beside_the_paper),
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
    """Notices at the top of the page: which prompts and models are this package's own."""
    own_datasets, toys = made_here(study)
    sentences = {
        f"Prompts of {', '.join(own_datasets)} were written for depth_lib in the form of these datasets: they are not "
        "the datasets' own rows, and their numbers are not comparable with published ones.": own_datasets,
        f"{', '.join(toys)}: toy model{'s' * (len(toys) > 1)} of depth_lib's own, trained on sums and short texts, to "
        "show how the probes work; the numbers say nothing about language models.": toys,
    }
    return [sentence for sentence, is_true in sentences.items() if is_true]


def made_here(study: Study) -> tuple[list[str], list[str]]:
    """The datasets whose prompts, and the toy models, that this package's authors made."""
    own_prompts: dict[str, list[bool]] = {}  # of each result on a dataset
    toys = []
    for (dataset, model, _), result in study.items():
        own_prompts.setdefault(dataset, []).append(_is_written_here(dataset, result["meta"].get("source")))
        if result["meta"].get("model_id") in TOYS:
            toys.append(model)
    datasets = [name if all(own) else f"{name} (for some models)" for name, own in own_prompts.items() if any(own)]
    return datasets, list(dict.fromkeys(toys))


def _is_written_here(dataset: str, source: str | None) -> bool:
    """Whether prompts of a dataset from this source are the package's own, not the dataset's first rows."""
    if source == "sample":
        return prompts_path(dataset, published=True).parent.name != "published"
    return source == "embedded"


def _rows(frame: pd.DataFrame) -> list[dict]:
    """A dict per row, None for what is missing."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _image(path: Path) -> str:
    """A figure as a data URL: lossless WebP, half the size of a PNG, or PNG beyond WebP's largest size."""
    content, image = path.read_bytes(), Image.open(path)
    if max(image.size) > _LARGEST_WEBP:
        return f"data:image/png;base64,{base64.b64encode(content).decode()}"
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", lossless=True)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _breakable(name: str) -> Markup:
    """A name that may break after its hyphens."""
    return escape(name).replace("-", Markup("-<wbr>"))


def _colour(ratio: float) -> str:
    """The workbook's scale: the deeper, the darker."""
    red, green, blue, _ = matplotlib.colormaps["Blues"](0.7 * ratio, bytes=True)
    return f"rgb({red},{green},{blue})"
