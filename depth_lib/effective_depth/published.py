"""The published effective depths, and how far ours are from them."""

import importlib.resources

import pandas as pd


def published_depths() -> pd.DataFrame:
    """The 108 published values: columns model, dataset, metric, ed, ratio (two decimals), layers.

    12 models × 3 datasets × 3 metrics. Source: Hu et al. 2025 (arXiv 2512.14064), Table 1.
    """
    with (importlib.resources.files(__package__) / "table1.csv").open() as file:
        return pd.read_csv(file)


def beside_the_paper(intervals: pd.DataFrame) -> pd.DataFrame:
    """Published and own effective depth of the models and datasets in both, with a verdict; empty if there are none.

    intervals: what `depths_with_intervals` returns. Columns model, dataset, metric, published, ours, difference (ours -
    published, layers), low, high, published_ratio, ratio, verdict: "same"; "within the interval" (the published layer
    is one that our prompts do not rule out); "differs"; "differs, no interval" (no per-prompt sums, or prompts that
    rule out no layer); "no effective depth"; "other depth" (the model here has another number of layers than the
    published one: another model).
    """
    published = published_depths().rename(
        columns={"ed": "published", "ratio": "published_ratio", "layers": "published_layers"}
    )
    both = published.merge(intervals.rename(columns={"ed": "ours"}), on=["model", "dataset", "metric"])
    both["difference"] = both["ours"] - both["published"]
    both["verdict"] = [_verdict(row) for row in both.to_dict("records")]
    order = ["model", "dataset", "metric", "published", "ours", "difference", "low", "high"]
    return both[[*order, "published_ratio", "ratio", "verdict"]]


def _verdict(row: dict) -> str:
    if row["layers"] != row["published_layers"]:
        return "other depth"
    if not pd.isna(row["ours"]) and row["ours"] == row["published"]:
        return "same"
    if pd.isna(row["low"]) and pd.isna(row["high"]):
        return "no effective depth" if pd.isna(row["ours"]) else "differs, no interval"
    above = pd.isna(row["low"]) or row["published"] >= row["low"]
    below = pd.isna(row["high"]) or row["published"] <= row["high"]
    return "within the interval" if above and below else "differs"
