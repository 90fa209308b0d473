"""One page to hand to a colleague: the table with its intervals, what it rests on, every figure, and where from.

python -m depth_lib.report.page OUT       writes OUT/report.html, which needs nothing beside it
"""

import argparse
import base64
import html
import sys
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from ..disk import write_together
from ..effective_depth.coverage import COMMAND, measured_coverage
from ..figures.grids import save_figures
from ..figures.kinds import KINDS
from ..figures.paper import PAPER_FIGURES, save_paper_figures
from ..figures.summary import save_summary_figures
from ..results.artifacts import ArtifactError
from ..results.study import PAPER_DATASETS, Study, in_order
from .answers import Answers, read_answers
from .page_tables import beside_html, coverage_html, depths_html, five_probes_html, rows_html, stability_html
from .provenance_table import provenance_table

_STYLE = Path(__file__).parent / "report.css"
_SUMMARIES = {
    "ratio_intervals": "Ratio of effective depth with its interval. Arrow: a curve without an effective depth fits the "
    "prompts too. Hollow: no interval.",
    "ratio_by_size": "Model size: does a larger model use a larger share of its depth?",
    "ratio_by_training": "Training: base, instruct and R1-distilled models. Grey lines join models of one size.",
    "ratio_by_task": "Task: from easy to hard, a line a model.",
}
_TEXTS = {
    "depth": "ED, the layer counted from 0, and the ratio (ED + 1) / L of the model's L blocks. Below: the 95 % "
    "interval over prompts, and the share of bootstrap draws with this same ED. A dash: no result, or no "
    "layer that satisfies the rule.",
    "stability": "Between layers: where straight lines between layers cross the threshold. Over thresholds: the lowest "
    "and highest ED at KL thresholds from 0.1 to 0.9 and overlap thresholds from 0.1 to 0.7. Crossings: "
    "every turn of the cosine from below zero; the last is the ED.",
    "probes": "Besides the paper's three metrics: the last skipped layer that changes a later layer by over half the "
    "most seen (future); the last layer at which erasing a question token moves the answer by over half the "
    "most seen (erasure); the layer at which half of all attribution is reached (gradients). ED, ratio and, "
    "for these, the centre of mass in layers.",
    "coverage": "Share of intervals that held the true ED in simulation: mean over made-up populations of prompts and, "
    "in brackets, the lowest of them; {} repeats each; 0.95 is claimed. Measured by: {}. Method: "
    "depth_lib/effective_depth/intervals.py.",
}


def write_report(study: Study) -> Path:
    """Write `folder/report.html` from the results of a study and the figures in it, drawn if they are older."""
    answers = read_answers(study)
    if _are_older(study.folder / "figures", study.paths.values()):
        draw_figures(study, answers)
    page = _page(study.folder, answers, provenance_table(study))
    write_together({study.folder / "report.html": page.encode()})
    return study.folder / "report.html"


def draw_figures(study: Study, answers: Answers) -> list[Path]:
    """Write every figure there can be to `folder/figures`, `figures/summary` and `figures/paper`; the paths written."""
    return [
        *save_figures(study),
        *save_summary_figures(study.folder, answers.stability, answers.thresholds),
        *save_paper_figures(study),
    ]


def _are_older(figures: Path, results: Iterable[Path]) -> bool:
    newest = max(path.stat().st_mtime for path in results)
    return any(
        min((path.stat().st_mtime for path in place.glob("*.png")), default=0) < newest
        for place in (figures, figures / "summary")
    )


def _page(folder: Path, answers: Answers, provenance: pd.DataFrame) -> str:
    figures = folder / "figures"
    models, datasets = list(answers.table.index), list(answers.table.columns.unique("dataset"))
    thresholds = "".join(
        _figure(
            figures / "summary" / f"thresholds_{dataset}.png",
            f"ED ratio over thresholds, {dataset}; dotted: the papers' threshold.",
        )
        for dataset in datasets
    )
    measured = measured_coverage()
    summaries = {name: _figure(figures / "summary" / f"{name}.png", caption) for name, caption in _SUMMARIES.items()}
    sections = [
        (
            "Effective depth",
            _TEXTS["depth"],
            depths_html(answers.stability, models, datasets) + summaries.pop("ratio_intervals"),
        ),
        ("How stable is this?", _TEXTS["stability"], thresholds + stability_html(answers.stability)),
        ("Three questions", "", "".join(summaries.values())),
        ("All five probes", _TEXTS["probes"], five_probes_html(answers.five_probes)),
        ("Beside the paper", "Published values: Hu et al. 2025, Table 1.", beside_html(answers.beside)),
        (
            "The paper's figures",
            "",
            "".join(
                _figure(figures / "paper" / f"{name}.png", KINDS[kind].caption)
                for name, (kind, _) in PAPER_FIGURES.items()
            ),
        ),
        ("All datasets", "", "".join(_figure(figures / f"{name}.png", kind.caption) for name, kind in KINDS.items())),
        (
            "How honest are the intervals?",
            _TEXTS["coverage"].format(int(measured.repeats.min()), COMMAND),
            coverage_html(measured),
        ),
        ("Where from", "", rows_html(provenance)),
    ]
    body = "".join(
        f"<section><h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>{content}</section>"
        for title, text, content in sections
        if content
    )
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Effective depth: {html.escape(folder.name)}</title><style>{_STYLE.read_text()}</style>"
    )
    top = (
        f"<h1>Effective depth of {len(models)} model{'s' * (len(models) != 1)} on {html.escape(', '.join(datasets))}"
        "</h1><p>How much of its depth does a language model use? Rules of Hu, Zhou, Zhang 2025 (arXiv 2512.14064), "
        "curves of Csordás, Manning, Potts 2025 (arXiv 2505.13898), computed by depth_lib.</p>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{top}{body}</body></html>\n'


def _figure(path: Path, caption: str) -> str:
    """The image itself inside the page; a click shows it at full size."""
    if not path.is_file():
        return ""
    image = base64.b64encode(path.read_bytes()).decode()
    name, caption = f"{path.parent.name}-{path.stem}", html.escape(caption)
    return (
        f'<figure><input type="checkbox" id="{name}"><label for="{name}"><img alt="{caption}" '
        f'src="data:image/png;base64,{image}"></label><figcaption>{caption}</figcaption></figure>'
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m depth_lib.report.page", description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--models", nargs="*", default=[], help="those found unless given")
    parser.add_argument("--datasets", nargs="*", default=[], help="the papers' three unless given")
    asked = parser.parse_args(arguments)
    try:
        print(write_report(Study(asked.out, in_order(asked.models) or None, asked.datasets or PAPER_DATASETS)))
    except ArtifactError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
