"""What a study's numbers say: a few sentences, each an answer, and none where there is none."""

from collections.abc import Mapping

import pandas as pd

from ..effective_depth.across import Trend, model_ratios, trends
from ..effective_depth.published import published_depths
from ..effective_depth.rules import METRICS
from ..results.study import Study
from .table import NAMES, by_lens

_NUMBERS = "no one two three four five six seven eight nine ten eleven twelve".split()
_SAME = 0.1  # of the depth: an interval within this of zero
_RULES = {"cosine": "cosine", "kl": "KL", "overlap": "overlap"}


def headline(depths: pd.DataFrame) -> str:
    """The card's sentence: where the prediction forms by the lens's KL divergence, beside the papers' twelve.

    depths: what `effective_depth.tables.depths` returns. Of several datasets a model's median counts.
    """
    kl = depths[depths.metric == "kl"]
    ours, papers = (model_ratios(frame, "kl") for frame in (kl, published_depths()))
    clauses = []
    if len(ours) == 1:
        clauses.append(f"The prediction of {ours.index[0]} forms at {ours.iloc[0]:.0%} of its depth".replace("%", " %"))
    elif len(ours):
        ends = " to ".join(f"{ours[model]:.0%} ({model})" for model in (ours.idxmin(), ours.idxmax()))
        clauses.append(f"Predictions form at {ends} of the depth".replace("%", " %"))
    silent = kl[~kl.model.isin(ours.index)].drop_duplicates("model")
    clauses += [f"{row.model}: – ({row.note or 'no layer satisfies the rule'})" for row in silent.itertuples()][:3]
    if not clauses:
        return "No model here has an effective depth by the logit lens."
    return f"{'; '.join(clauses)}; the papers' twelve: {_range(papers)}."


def conclusions(study: Study, depths: pd.DataFrame, published: pd.DataFrame) -> list[str]:
    """Sentences on size, training and task, how sure the cosine rule is, and how the numbers agree with the papers'.

    depths: what `effective_depth.tables.depths` returns of the study; published: what `beside_the_paper` does.
    """
    found = trends(depths)
    questions = {
        "size": ("Larger models use {} share of their depth", "slope per doubling", "sizes"),
        "training": ("With {after} models instead of {before} ones {} share of the depth is used", "change", "sizes"),
        "task": ("On {after} instead of {before} {} share of the depth is used", "change", "models"),
    }
    sentences = []
    for question, (answer, what, units) in questions.items():
        by_pair: dict[tuple, list[Trend]] = {}
        for one in found:
            if one.question == question:
                by_pair.setdefault((one.before, one.after), []).append(one)
        clauses = []
        for (before, after), ones in by_pair.items():
            numbers = ", ".join(f"{_RULES[one.metric]} {one}" for one in ones)
            n = _in_words(min(one.n for one in ones))
            names = {"before": NAMES.get(before, before), "after": NAMES.get(after, after)}
            text = answer.format(_verdict(ones), **names)
            clauses.append(f"{text}: {what} by {numbers}, {n} {units}")
        if clauses:
            sentences.append("; ".join([clauses[0], *(clause[0].lower() + clause[1:] for clause in clauses[1:])]) + ".")
    sentences += [f"{line}." for line in by_lens(depths)]
    if turns := _turns(study):
        times = f"{_in_words(min(turns))} to {_in_words(max(turns))} times"
        if len({*turns}) == 1:
            times = "once" if turns[0] == 1 else f"{_in_words(turns[0])} times"
        ending = ", so it is fragile" if max(turns) > 1 else ""
        sentences.append(f"The mean cosine crosses zero upwards {times}; the rule uses the last crossing{ending}.")
    if len(published):
        counts = published.verdict.value_counts()
        text = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        sentences.append(f"Of {len(published)} depths that the papers have too: {text}.")
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
    """How often the mean cosine of each run changes from negative to non-negative, where it does."""
    rule, counts = METRICS["cosine"], []
    for (_, _, probe), result in study.items():
        if probe == rule.probe and all(key in result for key in rule.keys):
            counts.append(int(rule.crosses(rule.curve([result[key] for key in rule.keys])).sum()))
    return [count for count in counts if count]


def _range(values: pd.Series) -> str:
    low, high = (f"{100 * value:.0f}" for value in (values.min(), values.max()))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _in_words(number: int) -> str:
    return _NUMBERS[number] if number < len(_NUMBERS) else str(number)
