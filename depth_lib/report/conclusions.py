"""What a study's numbers say: at most six sentences, each an answer, and none where there is none."""

from collections.abc import Mapping
from itertools import groupby
from operator import attrgetter

import pandas as pd

from ..effective_depth.across import Trend, model_ratios, trends
from ..effective_depth.published import published_depths
from ..effective_depth.rules import METRICS
from ..results.study import Study
from .table import NAMES

_SAME = 0.1  # of the depth: an interval within this of zero
_RULES = {"cosine": "cosine", "kl": "KL", "overlap": "overlap"}
_ANSWERS = {  # question -> the sentence and what is counted
    "size": ("Larger models use {} share of their depth: slope per doubling", "sizes"),
    "training": ("With {after} models instead of {before} ones {} share of the depth is used: change", "sizes"),
    "task": ("On {after} instead of {before} {} share of the depth is used: change", "models"),
}


def headline(depths: pd.DataFrame) -> str:
    """The card's sentence: where the prediction forms by the lens's KL divergence, beside the papers' twelve.

    depths: what `effective_depth.tables.depths` returns. Of several datasets a model's median counts.
    """
    kl = depths[depths.metric == "kl"]
    ours, papers = ((100 * model_ratios(frame, "kl")).round().astype(int) for frame in (kl, published_depths()))
    clauses = []
    if len(ours) == 1:
        clauses.append(f"The prediction of {ours.index[0]} forms at {ours.iloc[0]} % of its depth")
    elif len(ours):
        ends = " to ".join(f"{ours[model]} % ({model})" for model in (ours.idxmin(), ours.idxmax()))
        clauses.append(f"Predictions form at {ends} of the depth")
    silent = kl[~kl.model.isin(ours.index)].drop_duplicates("model")
    clauses += [f"{row.model}: – ({row.note or 'no layer satisfies the rule'})" for row in silent[:3].itertuples()]
    if not clauses:
        return "No model here has an effective depth by the logit lens."
    return f"{'; '.join(clauses)}; the papers' twelve: {papers.min()} to {papers.max()} %."


def conclusions(study: Study, depths: pd.DataFrame, published: pd.DataFrame) -> list[str]:
    """Sentences on size, training and task, how sure the cosine rule is, and how the numbers agree with the papers'.

    depths: what `effective_depth.tables.depths` returns of the study; published: what `beside_the_paper` does.
    """
    clauses: dict[str, list[str]] = {question: [] for question in _ANSWERS}
    of_pair = attrgetter("question", "before", "after")
    for (question, *pair), group in groupby(sorted(trends(depths), key=of_pair), of_pair):
        (answer, units), ones = _ANSWERS[question], [*group]
        before, after = (NAMES.get(name, name) for name in pair)
        numbers = ", ".join(f"{_RULES[one.metric]} {one}" for one in ones)
        text = answer.format(_verdict(ones), before=before, after=after)
        clauses[question].append(f"{text} by {numbers}, {min(one.n for one in ones)} {units}.")
    sentences = [" ".join(answers) for answers in clauses.values() if answers]
    most = max(_turns(study), default=0)
    if most > 1:
        sentences.append(
            f"The mean cosine crosses zero upwards up to {most} times; the rule uses the last one, so it is fragile."
        )
    if len(published):
        counts = ", ".join(f"{count} {verdict}" for verdict, count in published.verdict.value_counts().items())
        sentences.append(f"Of {len(published)} depths that the papers have too: {counts}.")
    return sentences


def _verdict(ones: list[Trend]) -> str:
    """What the intervals of all rules say together."""
    if all(-_SAME <= one.low <= 0 <= one.high <= _SAME for one in ones):
        return "the same"
    if all(one.low <= 0 <= one.high for one in ones):
        return "no clearly different"
    if all(one.low > 0 for one in ones):
        return "a larger"
    return "a smaller" if all(one.high < 0 for one in ones) else "by some rules another"


def _turns(study: Mapping) -> list[int]:
    """How often the mean cosine of each run changes from negative to non-negative."""
    rule = METRICS["cosine"]
    return [
        int(rule.crosses(rule.curve([result[key] for key in rule.keys])).sum())
        for (_, _, probe), result in study.items()
        if probe == rule.probe and all(key in result for key in rule.keys)
    ]
