"""The depths in README and docs/real_model.md are those that `make real` writes, and the published ones."""

from pathlib import Path

import pandas as pd
import pytest

from depth_lib.effective_depth.published import published_depths

ROOT = Path(__file__).parents[2]
FOUND = pd.read_csv(ROOT / "tests/real/depths.csv", comment="#").set_index(["metric", "dataset"])
DATASETS = ["gsm8k", "hellaswag", "aime24"]


def row(page, metric):
    (line,) = [line for line in (ROOT / page).read_text().splitlines() if line.startswith(f"| {metric} |")]
    return line


@pytest.mark.parametrize("metric", ["cosine", "kl", "overlap"])
def test_the_tables_have_the_depths_and_intervals_of_every_dataset_and_the_papers_range(metric):
    found = [FOUND.loc[metric, dataset] for dataset in DATASETS]
    depths = [f"{one.ed:.0f} [{one.low:.0f}, {one.high:.0f}]" for one in found]
    assert " | ".join(depths) in row("README.md", metric)
    assert " | ".join(f"{text} ({one.ratio:.2f})" for text, one in zip(depths, found, strict=True)) in row(
        "docs/real_model.md", metric
    )
    papers = published_depths().query("dataset == 'gsm8k' and metric == @metric").ratio
    usual = papers[papers > 0.1]
    text = f"{usual.min():.2f} – {usual.max():.2f}"
    text += f" ({papers.median():.2f})" + "".join(f", one {ratio:.2f}" for ratio in papers[papers <= 0.1])
    assert row("docs/real_model.md", metric).endswith(f"| {text} |")
    assert row("README.md", metric).endswith(f"| {text.replace(f' ({papers.median():.2f})', '')} |")
