"""The page: the executed notebook `effective_depth.ipynb` without its code, one file that needs no other."""

import base64
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

import nbformat
import pandas as pd
from PIL import Image

from ..embedded import TOYS, prompts_path
from ..figures import KINDS, save_comparisons, save_figures, save_paper_figures
from ..figures.compare import IN_OVERVIEW
from ..figures.marks import Heat
from ..files import write_together
from ..results.study import TABLE_PROBES, Study
from .definitions import DEFINITIONS
from .table import NAMES, Tables

PLOTLY = "application/vnd.plotly.v1+json"
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Effective depth</title><style>{css}</style>{script}</head><body>
{body}
</body></html>
"""


def write_page(notebook: str | Path) -> Path:
    """Write report.html beside an executed notebook: its text and outputs, without code and cells tagged `not-on-page`.

    plotly.js is in it once if there is a figure that needs it. The file needs no network.
    """
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors import TagRemovePreprocessor

    book = nbformat.read(notebook, as_version=4)
    for cell in (cell for cell in book.cells if cell.cell_type == "code"):
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in (output for output in cell.outputs if "data" in output):
            if PLOTLY in output.data:
                output.data = {"text/html": _as_html(output.data[PLOTLY])}
            if "image/png" in output.data:
                output.data["image/png"] = _small(base64.b64decode(output.data["image/png"]))
    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_output_prompt=True)
    exporter.exclude_anchor_links = True
    exporter.register_preprocessor(TagRemovePreprocessor(remove_cell_tags={"not-on-page"}), enabled=True)
    body, _ = exporter.from_notebook_node(book)
    script = ""
    if "Plotly.newPlot" in body:
        from plotly.offline import get_plotlyjs

        script = f"<script>{get_plotlyjs()}</script>"
    css = Path(__file__).with_name("report.css").read_text()
    path = Path(notebook).with_name("report.html")
    write_together({path: _PAGE.format(css=css, script=script, body=body).encode()})
    return path


def _as_html(figure: dict) -> str:
    """A plotly figure as a part of the page, which fits its width."""
    from plotly.io import to_html

    layout = {name: value for name, value in figure["layout"].items() if name not in ("template", "width")}
    options = {"responsive": True, "displaylogo": False}
    figure = {"data": figure["data"], "layout": layout}
    return to_html(figure, config=options, full_html=False, include_plotlyjs=False, validate=False)


def _small(png: bytes) -> str:
    """A drawing in base64 with 64 colours, a third of its size."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(64).save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def draw_figures(study: Study, tables: Tables) -> list[Path]:
    """Draw every figure there can be into `folder/figures`, `figures/summary` and `figures/paper`; the paths."""
    return [*save_figures(study), *save_comparisons(study, tables.intervals), *save_paper_figures(study)]


def heading(study: Study) -> str:
    """The page's title as HTML."""
    datasets = ", ".join({NAMES.get(dataset) or dataset: None for dataset, _, _ in study})
    models = study.models[0] if len(study.models) == 1 else f"{len(study.models)} models"
    return f"<h1>{escape(f'Effective depth of {models} on {datasets}')}</h1>"


def listed(sentences: Iterable[str], name: str = "") -> str:
    """Sentences as a list in HTML, "" if there are none."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{name}">{items}</ul>' if items else ""


def folded(title: str, html: str) -> str:
    """A part of the page that opens when it is clicked."""
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def heat_maps(study: Study) -> list[str]:
    """The kinds of heat map that a study has."""
    return [
        name
        for name, kind in KINDS.items()
        if isinstance(kind, Heat) and any(kind.can_draw(result) for result in study.of(kind.probe).values())
    ]


def gallery(drawn: Iterable[Path]) -> str:
    """The curves of `draw_figures` that are nowhere else on the page, as HTML: each picture with its caption."""
    parts = []
    for path in drawn:
        name = path.stem if path.stem in KINDS else path.stem.rpartition("_")[0]  # of many runs one for each dataset
        kind = KINDS.get(name)
        if kind and path.suffix == ".png" and name not in IN_OVERVIEW and not isinstance(kind, Heat):
            image, caption = _small(path.read_bytes()), escape(kind.caption)
            parts.append(
                f'<figure><img alt="{caption}" src="data:image/png;base64,{image}">'
                f"<figcaption>{caption}</figcaption></figure>"
            )
    return "".join(parts)


def beside(published: pd.DataFrame) -> str:
    """Own depths beside the published ones as HTML, a sentence if there are none."""
    if published.empty:
        return "<p>None of these models is in the papers.</p>"
    columns = ["model", "dataset", "metric", "published", "ours", "difference", "verdict"]
    shown = published[columns].astype(object)
    shown["difference"] = shown.difference.map("{:+d}".format, na_action="ignore")
    return shown.to_html(index=False, na_rep="–")


def definitions() -> str:
    """Every rule as HTML."""
    return DEFINITIONS.to_html()


def notices(study: Study) -> list[str]:
    """What has to be known before a number is read: mixed settings, prompts and models of this package's own."""
    sentences = [*_mixed(study)]
    own_datasets, toys = made_here(study)
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


def _mixed(study: Study) -> Iterator[str]:
    """A line for each setting in which results of the table differ, with the datasets, models or runs that have it."""
    rows = pd.DataFrame(
        [
            {"dataset": dataset, "model": model, "run": f"{model} on {dataset}"} | result["meta"]
            for (dataset, model, probe), result in study.items()
            if probe in TABLE_PROBES and result["meta"]
        ]
    )
    names = {"n_prompts": "numbers of prompts", "dtype": "dtypes", "quantization": "quantisations"}
    for setting in rows.columns.intersection([*names]):
        values = rows[setting].fillna("none").astype(str)
        if values.nunique() > 1:
            alike = (one for one in ("dataset", "model") if values.groupby(rows[one]).nunique().max() == 1)
            having = rows[next(alike, "run")].groupby(values, sort=False).unique()
            listed = "; ".join(f"{value} ({', '.join(some)})" for value, some in having.items())
            yield f"Mixed {names[setting]}, so that rows are not alike: {listed}."


def made_here(study: Study) -> tuple[list[str], list[str]]:
    """The datasets whose prompts, and the toy models, that this package's authors made."""
    own_prompts = defaultdict(list)  # of the results on a dataset
    for (dataset, _, _), result in study.items():
        own_prompts[dataset].append(_is_written_here(dataset, result["meta"].get("source")))
    datasets = [name if all(own) else f"{name} (for some models)" for name, own in own_prompts.items() if any(own)]
    toys = dict.fromkeys(model for (_, model, _), result in study.items() if result["meta"].get("model_id") in TOYS)
    return datasets, list(toys)


def _is_written_here(dataset: str, source: str | None) -> bool:
    """Whether prompts of a dataset from this source are the package's own, not the dataset's first rows."""
    if source == "sample":
        return prompts_path(dataset, published=True).parent.name != "published"
    return source == "embedded"
