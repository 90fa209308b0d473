"""What a study's numbers say about the papers' three questions; conclusions.txt.jinja has the sentences."""

import importlib.resources

import jinja2
import numpy as np
import pandas as pd

from ..effective_depth.rules import PAPER_METRICS
from ..results.study import TRAINING, facts_of

_MOST_NAMES = 3  # of models or datasets in one sentence; more are counted


def conclusions(intervals: pd.DataFrame, published: pd.DataFrame) -> list[str]:
    """A sentence each: how much depth is used; by size, training, task; how sure that is; beside the paper.

    intervals: what `depths_with_intervals` returns; published: what `beside_the_paper` does. Groups of runs are
    compared on what both have, with an interval over prompts; where they have nothing in common, the sentence says so.
    """
    facts = [facts_of(model) for model in intervals.model]
    runs = intervals.assign(training=[row.training for row in facts], billions=[row.billions for row in facts])
    runs = runs.astype(dict.fromkeys(("ratio", "ratio_low", "ratio_high"), float))
    by_parameters = runs.billions.notna().all()
    runs["size"] = runs.billions if by_parameters else runs.layers.astype(int)
    sizes = runs.dropna(subset="ratio")["size"]
    if sizes.empty:
        return ["No model has an effective depth here."]
    trainings = [name for name in reversed(TRAINING) if name in set(runs.training) - {"unknown"}]
    datasets = runs.dataset.unique()
    pairs = [("Size", "size", sizes.min(), sizes.max(), ["dataset", "training"])]
    pairs += [("Training", "training", trainings[0], other, ["dataset", "size"]) for other in trainings[1:]]
    pairs += [("Task", "dataset", datasets[0], other, ["model"]) for other in datasets[1:]]
    questions = [
        {"name": name, "before": before, "after": after, "same": same}
        | {"unit": (" billion parameters" if by_parameters else " blocks") if column == "size" else ""}
        | {"changes": mean_changes(runs, column, (before, after), same)}
        for name, column, before, after, same in pairs
        if before != after
    ]
    width = runs.high - runs.low
    certainty = {
        "known to within a layer": (width <= 1).sum(),
        "known less well": (width > 1).sum(),
        "without a closed interval": width.isna().sum(),
        "without an effective depth": runs.ed.isna().sum(),
    }
    template = importlib.resources.files(__package__).joinpath("conclusions.txt.jinja").read_text()
    text = jinja2.Template(template, trim_blocks=True, lstrip_blocks=True).render(
        ratios={metric: runs[runs.metric == metric].ratio for metric in PAPER_METRICS},
        questions=questions,
        n_depths=len(runs),
        certainty=certainty,
        verdicts=published.verdict.value_counts().to_dict(),
    )
    return [line for line in text.splitlines() if line]


def mean_changes(runs: pd.DataFrame, column: str, groups: tuple, same: list[str]) -> list[dict]:
    """How the mean ratio changes from one group of runs to another by each metric: change, low, high, and where.

    groups: two values of `column`; same: columns on whose values both groups are compared, each with the same weight.
    The interval adds up the squared distances to the ends of the runs' own (Zou & Donner 2008); None if one is open.
    """
    runs = runs.dropna(subset="ratio")
    down, up = (runs.ratio - runs.ratio_low) ** 2, (runs.ratio_high - runs.ratio) ** 2
    cells = runs.assign(down=down.fillna(np.inf), up=up.fillna(np.inf)).groupby([column, "metric", *same])
    means = cells[["ratio", "down", "up"]].mean()
    means[["down", "up"]] = means[["down", "up"]].div(cells.size(), axis=0)
    before, after = (means[means.index.get_level_values(0) == group].droplevel(0) for group in groups)
    both = before.merge(after, left_index=True, right_index=True, suffixes=("_before", "_after"))
    changes = []
    for metric in PAPER_METRICS:
        rows = both[both.index.get_level_values("metric") == metric]
        if rows.empty:
            continue
        change = (rows.ratio_after - rows.ratio_before).mean()
        low = change - np.sqrt((rows.down_after + rows.up_before).sum()) / len(rows)
        high = change + np.sqrt((rows.up_after + rows.down_before).sum()) / len(rows)
        names = rows.index.get_level_values(same[0]).unique()
        where = ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} {same[0]}s"
        if not np.isfinite(high - low):
            low = high = None
        changes.append({"metric": metric, "change": change, "low": low, "high": high, "where": where})
    return changes
