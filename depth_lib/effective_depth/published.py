"""The published effective depths, and how far ours are from them."""

from pathlib import Path

import numpy as np
import pandas as pd


def published_depths() -> pd.DataFrame:
    """The 108 published values: columns model, dataset, metric, ed, ratio (two decimals), layers.

    12 models × 3 datasets × 3 metrics. Source: Hu et al. 2025 (arXiv 2512.14064), Table 1.
    """
    return pd.read_csv(Path(__file__).with_name("table1.csv"))


def beside_the_paper(intervals: pd.DataFrame) -> pd.DataFrame:
    """Published and own effective depth of the models and datasets in both, with a verdict; empty if there are none.

    intervals: rows of `depths`. Columns model, dataset, metric, published, ours, difference (ours -
    published, layers), low, high, published_ratio, ratio, verdict: "same"; "within the interval" (the published layer
    is in ours, 95 % over prompts); "differs"; "differs, no interval" (no per-prompt sums); "undecided" (the prompts
    rule out no layer); "no effective depth" of ours; "other depth" (the model here has another number of
    layers than the published one: another model).
    """
    published = published_depths().rename(
        columns={"ed": "published", "ratio": "published_ratio", "layers": "published_layers"}
    )
    both = published.merge(intervals.rename(columns={"ed": "ours"}), on=["model", "dataset", "metric"])
    both["difference"] = both["ours"] - both["published"]
    no_interval = both["low"].isna() & both["high"].isna()
    verdicts = {
        "other depth": both["layers"] != both["published_layers"],
        "same": both["difference"] == 0,
        "no effective depth": both["ours"].isna(),
        "differs, no interval": no_interval & both["prompts"].isna(),
        "undecided": no_interval,
        "within the interval": both["published"].between(both["low"].fillna(0), both["high"].fillna(both["layers"])),
    }
    both["verdict"] = np.select([x.fillna(False).astype(bool) for x in verdicts.values()], list(verdicts), "differs")
    order = ["model", "dataset", "metric", "published", "ours", "difference", "low", "high"]
    return both[[*order, "published_ratio", "ratio", "verdict"]]
