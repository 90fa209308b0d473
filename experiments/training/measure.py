"""What a toy of the training experiment can do, and where in depth it does it, by number of terms or steps.

One tidy row a quantity and level:

| quantity | value | interval over prompts | level |
|---|---|---|---|
| accuracy | share answered exactly, by greedy decoding | Wilson; of several levels MOVER | a number, "seen", "unseen" |
| cosine, kl, overlap | effective depth, a layer | `effective_depth.intervals` | a number |
| erasure | mean over problems of `erasure_depth`, a layer | Student | a number |
| score layer, score output | depth score, in layers | each prompt left out once | a number |
| slope layer, slope output | of the depth score, layers a term or step | each prompt left out once | "seen", "all" |

Rows of seeds 1 and 2 of the committed measured.csv have percentile intervals of depths, scores and slopes, as an
earlier version computed them: their toys do not ship.

Sources: Wilson 1927; Zou & Donner 2008 (the variance of a sum recovered from its parts' intervals).
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from nnsight import TransformersModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import depth_lib as dl
from depth_lib.data.examples import Example
from depth_lib.effective_depth.difficulty import EFFECTS, depth_scores
from depth_lib.effective_depth.intervals import NORMAL, Estimate, depth_interval, student
from depth_lib.effective_depth.rules import RULES

from .tasks import TASKS, held_out_examples
from .trainer import END

ANSWERED, READ, SKIPPED, ERASED = 300, 30, 20, 12  # problems a level: for accuracy, curves, scores, erasure
COLUMNS = ["task", "quantity", "level", "value", "low", "high", "n"]


@torch.no_grad()
def exact_matches(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Example]
) -> list[bool]:
    """Whether greedy decoding answers each problem exactly and ends there, in the order given.

    It does if every token of the answer, and the end of the text, is the likeliest given those before it.
    """
    by_length, right = {}, {}
    for k, problem in enumerate(problems):
        asked = len(tokenizer(problem.question).input_ids)
        ids = tokenizer(problem.question + problem.answer + END).input_ids
        by_length.setdefault((asked, len(ids)), []).append((k, ids))
    for (asked, _), group in by_length.items():  # problems of one length need no padding
        ids = torch.tensor([ids for _, ids in group], device=next(model.parameters()).device)
        said = model(input_ids=ids, use_cache=False).logits[:, asked - 1 : -1].argmax(-1)
        right |= dict(zip((k for k, _ in group), (said == ids[:, asked:]).all(1).tolist(), strict=True))
    return [right[k] for k in range(len(problems))]


def measure(llm: TransformersModel) -> pd.DataFrame:
    """Everything that the experiment measures on one toy; see this module's docstring. Nested problems have no curves.

    Returns `COLUMNS`; value, low and high are missing where no layer satisfies a rule or an interval is open.
    """
    rows = []
    for name, task in TASKS.items():
        found = [*_accuracies(llm, name), *_scores(llm, name)]
        if name == "sums":
            found += [row for level in (*task.seen, *task.unseen) for row in _depths(llm, name, level)]
        rows += [(name, quantity, level, *estimate, n) for quantity, level, estimate, n in found]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype({"level": str} | dict.fromkeys(("value", "low", "high"), float))


def _accuracies(llm, task):
    found = {}
    for level in (*TASKS[task].seen, *TASKS[task].unseen):
        right = exact_matches(llm._module, llm.tokenizer, held_out_examples(task, [level], ANSWERED))
        found[level] = share(sum(right), len(right))
        yield "accuracy", level, found[level], len(right)
    for name in ("seen", "unseen"):
        levels = getattr(TASKS[task], name)
        n = len(held_out_examples(task, levels, ANSWERED))
        yield "accuracy", name, mean_of([found[level] for level in levels]), n


def _depths(llm, task, level):
    """The papers' three effective depths over the texts of one level, and the mean erasure depth of its problems."""
    problems = held_out_examples(task, [level], READ)
    texts = [problem.question + problem.answer for problem in problems]
    curves = dl.relative_contribution(llm, texts) | dl.logit_lens(llm, texts)
    for name, rule in RULES.items():
        yield name, level, Estimate(rule.depth(curves), *depth_interval(curves, rule)), len(texts)
    baseline = [one.question + one.answer for one in held_out_examples(task, TASKS[task].seen, 2, seed=1)]
    depths = []
    for problem in problems[:ERASED]:
        effect = dl.residual_erasure(llm, problem.question, problem.answer, baseline)["erasure_effect"]
        n_answer = len(llm.tokenizer(problem.answer).input_ids)
        depth = erasure_depth(effect, n_answer)
        if depth is not None:
            depths.append(depth)
    yield "erasure", level, mean_with_interval(depths), len(depths)


def _scores(llm, task):
    """Depth scores of all levels, their slope over all and, from the seen ones alone, over those."""
    seen = TASKS[task].seen
    examples = held_out_examples(task, [*seen, *TASKS[task].unseen], SKIPPED)
    result = dl.depth_by_difficulty(llm, examples)
    of_seen = result["level"] <= seen[-1]
    parts = {"all": result, "seen": {key: result[key][of_seen] for key in ("level", "layer_effect", "output_effect")}}
    scores = {name: depth_scores(part) for name, part in parts.items()}
    for effect in EFFECTS:
        found = {name: rows[rows.effect == effect] for name, rows in scores.items()}
        for row in found["all"].itertuples():
            yield f"score {effect}", row.level, Estimate(row.score, row.low, row.high), row.examples
        for name, rows in found.items():
            slope = rows[["slope", "slope_low", "slope_high"]].iloc[0]
            yield f"slope {effect}", name, Estimate(*map(float, slope)), int(rows.examples.sum())


def erasure_depth(effect: torch.Tensor, n_answer: int) -> int | None:
    """The last layer at which erasing any question token moves the answer by over half of the largest effect."""
    of_layers = effect[:-1, : effect.shape[1] - n_answer - 1].amax(1)
    layers = (of_layers > of_layers.max() / 2).nonzero().flatten()
    return int(layers[-1]) if len(layers) else None


def share(right: int, n: int) -> Estimate:
    """A share of n with Wilson's 95% confidence interval."""
    p, z = right / n, NORMAL
    centre, half = (p + z**2 / (2 * n)) / (1 + z**2 / n), math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    half *= z / (1 + z**2 / n)
    return Estimate(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)))


def mean_of(parts: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates with the interval that theirs give: squared distances to their ends add up."""
    value, low, high = np.array([(part.value, part.low, part.high) for part in parts]).T
    below, above = (np.sqrt(((value - end) ** 2).sum()) / len(parts) for end in (low, high))
    return Estimate(value.mean(), value.mean() - below, value.mean() + above)


def mean_with_interval(values: Sequence[float]) -> Estimate:
    """A mean and its 95% confidence interval by Student's t; nan without values, unbounded for a single one."""
    n = len(values)
    if n < 2:
        return Estimate(float(values[0]) if n else math.nan, math.nan, math.nan)
    half = student(n - 1) * np.std(values, ddof=1) / math.sqrt(n)
    return Estimate(float(np.mean(values)), float(np.mean(values) - half), float(np.mean(values) + half))
