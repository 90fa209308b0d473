"""What a study's numbers say: at most six sentences, each an answer, and none where there is none."""

from collections import defaultdict
from collections.abc import Mapping

import pandas as pd

from ..effective_depth.across import Trend, model_ratios, trends
from ..effective_depth.published import published_depths
from ..effective_depth.rules import METRICS
from ..results.study import Study
from .table import NAMES

_SAME = 0.1  # of the depth: an interval within this of zero
_RULES = {"cosine": "cosine", "kl": "KL", "overlap": "overlap"}
_ANSWERS = {  # question -> the sentence and what is counted
    "size": ("With each doubling of their size models use {} share of their depth", "sizes"),
    "training": ("Compared with {before} models, {after} models use {} share of their depth", "sizes"),
    "task": ("Compared with {before}, models use {} share of their depth on {after}", "models"),
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
    for row in silent[:3].itertuples():
        why = row.note if row.note and not row.note.startswith("no interval") else "no layer satisfies the rule"
        clauses.append(f"{row.model}: – ({why})")
    if len(silent) > 3:
        clauses.append(f"{len(silent) - 3} more have none")
    if not clauses:
        return "No model here has an effective depth by the logit lens."
    return f"{'; '.join(clauses)}; the papers' twelve: {papers.min()} to {papers.max()} %."


def conclusions(study: Study, depths: pd.DataFrame, published: pd.DataFrame) -> list[str]:
    """Sentences on size, training and task, how sure the cosine rule is, and how the numbers agree with the papers'.

    depths: what `effective_depth.tables.depths` returns of the study; published: what `beside_the_paper` does.
    """
    clauses, of_pair = defaultdict(list), defaultdict(list)
    for one in trends(depths):
        of_pair[one.question, one.before, one.after].append(one)
    for (question, *pair), ones in of_pair.items():
        answer, units = _ANSWERS[question]
        before, after = (NAMES.get(name, name) for name in pair)
        verdict, rules = _verdict(ones)
        text = answer.format(verdict, before=before, after=after) + (f", by {' and '.join(rules)}" if rules else "")
        numbers = ", ".join(f"{_RULES[one.metric]} {one}" for one in ones)
        clauses[question].append(f"{text}: {numbers}; {min(one.n for one in ones)} {units}.")
    sentences = [" ".join(clauses[question]) for question in _ANSWERS if question in clauses]
    turns = _turns(study)
    most = max(turns, default=0)
    if most > 1:
        times = f"{'up to ' * (min(turns) < most)}{most} times"
        sentences.append(f"The mean cosine crosses zero upwards {times}; the rule uses the last one, so it is fragile.")
    if n := len(published):
        counts = ", ".join(f"{count} {verdict}" for verdict, count in published.verdict.value_counts().items())
        sentences.append(f"Of {n} depth{'s' * (n > 1)} that the papers have too: {counts}.")
    return sentences


def _verdict(ones: list[Trend]) -> tuple[str, list[str]]:
    """What the intervals of all rules say together, and the rules that say it where others do not."""
    same = _SAME / 4 if ones[0].question == "size" else _SAME  # four doublings are 2B to 32B
    if all(-same <= one.low <= 0 <= one.high <= same for one in ones):
        return "the same", []
    said = {_RULES[one.metric]: one.change > 0 for one in ones if not one.low <= 0 <= one.high}
    if not said:
        return "no clearly different", []
    verdict = "another" if len({*said.values()}) > 1 else "a larger" if any(said.values()) else "a smaller"
    return verdict, [*said] if len(said) < len(ones) else []


def _turns(study: Mapping) -> list[int]:
    """How often the mean cosine of each run changes from negative to non-negative."""
    rule = METRICS["cosine"]
    return [
        int(rule.crosses(rule.curve([result[key] for key in rule.keys])).sum())
        for (_, _, probe), result in study.items()
        if probe == rule.probe and rule.reads(result)
    ]
