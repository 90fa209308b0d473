"""The share of a response's tokens that settle late, and its correlation with right answers."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..results.result import fitting
from .intervals import NORMAL, student
from .rules import as_array

SETTLED, LATE = 0.5, 0.85  # g in bits and ρ of the paper


def deep_thinking_ratio(
    result: Mapping, g: float = SETTLED, rho: float = LATE, correct: Sequence | None = None
) -> pd.DataFrame:
    """For each response, the share of tokens whose prediction settles only in the last layers.

    >>> llm = dl.load_model("toy-4l")
    >>> lens = dl.logit_lens(llm, ["5 + 7 = ", "1 + 2 = "], generate=3)
    >>> lens["generated"]
    ['12<|endoftext|>', '3<|endoftext|>']
    >>> dl.deep_thinking_ratio(lens).tokens.tolist()
    [3, 2]

    c_t = min{ l : min_{j ≤ l} JSD(p_{t,j}, y_t) ≤ g }, L if there is none; a token is deep-thinking if c_t ≥ ⌈ρ L⌉.
    The embeddings, j = 0, count as a layer too.

    - result: from `logit_lens` with generate= or answers=, one response per prompt
    - g: from 0 to 1 bit; values other than 0.5 need a result from logit_lens(…, per_token=True)
    - rho: ρ, the fraction of the layers after which a token must settle to be deep-thinking
    - correct: one number or boolean per response that says whether it is right

    Returns a frame with a row per response: `tokens` (the number of its tokens), `ratio`, and `correct` if given. Its
    `attrs`:

    - `mean`, `low`, `high`: the mean over responses with its 95% confidence interval (Student's t)
    - `correlation`, `correlation_low`, `correlation_high`: Spearman's, with correct, and its interval (Bonett and
      Wright 2000). NaN for fewer than four responses, or if all have the same ratio or the same `correct`

    Raises ValueError for a result without responses or settling layers, and for a `g` outside 0 to 1, or other than 0.5
    without `jsd`. `correct` must have one finite value per response.
    `dl.plot("late_tokens", result | {"correct": correct})` draws the ratio of each response, and the means of right and
    wrong ones.
    Source: Chen et al. 2026 (arXiv 2602.13517). Cost: no forward pass.
    """
    if not {"settling", "res_settled"} <= result.keys() or not of_responses(result):
        raise ValueError(
            "deep_thinking_ratio needs a logit_lens result for responses, computed with all_measures=True: "
            "dl.logit_lens(llm, prompts, generate=64)"
        )
    if not 0 < rho <= 1:
        raise ValueError(f"rho must be a fraction between 0 and 1, such as {LATE}, got {rho}")
    if not 0 <= g <= 1:
        raise ValueError(f"g must be between 0 and 1 bit, the largest divergence, got {g}")
    n_layers, settling = len(fitting(result)["res_settled"]), [as_array(layers) for layers in result["settling"]]
    if g != SETTLED:
        if "jsd" not in result:
            raise ValueError(f"g={g} needs the divergence of each token; use a result of logit_lens(…, per_token=True)")
        least = (np.minimum.accumulate(as_array(jsd).astype(float), axis=1) for jsd in result["jsd"])
        settling = [(of_response > g).sum(1) for of_response in least]
    late = math.ceil(rho * n_layers - 1e-9)
    frame = pd.DataFrame(
        {"tokens": [len(layers) for layers in settling], "ratio": [float((c >= late).mean()) for c in settling]}
    ).rename_axis("response")
    frame.attrs |= dict(zip(("mean", "low", "high"), mean_with_interval(frame.ratio), strict=True))
    if correct is not None:
        right = as_array(correct).astype(float)
        if right.shape != (len(frame),):
            raise ValueError(f"correct must have one value per response, shape ({len(frame)},), got {right.shape}")
        if not np.isfinite(right).all():
            raise ValueError(f"correct is {right[~np.isfinite(right)][0]:g} for a response; leave that response out")
        frame["correct"] = right
        names = ("correlation", "correlation_low", "correlation_high")
        frame.attrs |= dict(zip(names, _correlation(frame.ratio, frame.correct), strict=True))
    return frame


def of_responses(result: Mapping) -> bool:
    """Whether a logit lens measured responses, generated or stored."""
    meta = result.get("meta", {})
    return "generated" in result or bool(meta.get("responses")) or "answers" in meta.get("settings", {})


def mean_with_interval(values: pd.Series) -> tuple[float, float, float]:
    """The mean of shares and the ends of its interval; NaN ends for a single value."""
    n, mean = len(values), float(values.mean())
    half = student(n - 1) * float(values.to_numpy().std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return mean, max(mean - half, 0.0), min(mean + half, 1.0)  # NaN stays


def _correlation(x, y):
    """Spearman's correlation and the ends of its interval."""
    if len(x) < 4 or x.nunique() < 2 or y.nunique() < 2:
        return math.nan, math.nan, math.nan
    r = float(x.rank().corr(y.rank()))
    half = NORMAL * math.sqrt((1 + r**2 / 2) / (len(x) - 3))
    z = math.atanh(min(max(r, -1 + 1e-12), 1 - 1e-12))
    return r, math.tanh(z - half), math.tanh(z + half)
