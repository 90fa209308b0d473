"""Numbers of README and docs are those that a command has written, or the published ones."""

import re
from pathlib import Path

import pandas as pd
import pytest

from depth_lib.effective_depth.tables import published_depths
from tests.real.depths import DATASETS

ROOT = Path(__file__).parents[2]
QWEN = pd.read_csv(ROOT / "docs" / "qwen" / "depths.csv").set_index(["rule", "dataset"])


def row(page, metric):
    (line,) = [line for line in (ROOT / page).read_text().splitlines() if line.startswith(f"| {metric} |")]
    return line


def cells(found, metric):
    """A depth with its interval of each data set."""
    rows = [found.loc[metric, dataset] for dataset in DATASETS]
    return [f"{one.ed:.0f} [{one.low:.0f}, {one.high:.0f}]" for one in rows]


@pytest.mark.parametrize("metric", ["cosine", "kl", "overlap"])
def test_the_tables_have_the_depths_and_intervals_of_every_dataset_and_the_papers_range(metric):
    assert " | ".join(cells(QWEN, metric)) in row("README.md", metric)
    siblings = ["Qwen2.5-Math-1.5B", "Qwen2.5-1.5B-Instruct", "DeepSeek-R1-Distill-Qwen-1.5B"]
    for dataset, name in zip(DATASETS, ("GSM8K", "HellaSwag", "AIME24"), strict=True):
        of_cell = published_depths().query("dataset == @dataset and rule == @metric").set_index("model").ed
        (ours,) = [one for one, d in zip(cells(QWEN, metric), DATASETS, strict=True) if d == dataset]
        assert (
            row("docs/oracles.md", f"{name}, {metric}")
            == " | ".join([f"| {name}, {metric}", ours, *(str(of_cell[sibling]) for sibling in siblings)]) + " |"
        )
    published = published_depths().query("dataset == 'gsm8k' and rule == @metric")
    papers = (published.ed + 1) / published.layers  # their ratios are rounded, and a median would be twice
    usual = papers[papers > 0.1]
    text = f"{usual.min():.2f} – {usual.max():.2f}"
    text += "".join(f", except for one model at {ratio:.2f}" for ratio in papers[papers <= 0.1])
    assert row("README.md", metric).endswith(f"| {text} |")


def test_the_page_on_speed_says_what_its_table_says():
    page = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    measured = re.search("<!-- measured -->(.*)<!-- end -->", page, re.DOTALL)[1]
    lines = [line for line in measured.splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    unavoidable = sorted(float(row[head.index("ours / unavoidable")]) for row in rows)
    assert f"the probes above took {unavoidable[0]:g} to {unavoidable[-1]:g} times as long" in page
