"""The time that early exit would save."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..results.result import fitting
from .deep_thinking import of_responses
from .rules import as_array


def early_exit(generated: Mapping, most: int = 8) -> pd.DataFrame:
    """For each exit layer, the share of tokens that stay the same, and the best speed-up of self-speculative decoding.

    >>> llm = dl.load_model("toy-4l")
    >>> lens = dl.logit_lens(llm, ["5 + 7 = "], generate=4)
    >>> lens["generated"]
    ['12<|endoftext|>']
    >>> dl.early_exit(lens).loc[1:, "speedup"].idxmax()
    2

    α_l = `res_top1`, after l of L blocks. With k drafts by l blocks and one pass that verifies them, the speed-up over
    plain generation is (1 − α^{k+1}) / (1 − α) / (k l / L + 1). The formula assumes that tokens are independent and
    that a pass over k + 1 tokens takes as long as a pass over one. LayerSkip's own runs reach 86 to 92% of this
    speed-up.

    - generated: from `logit_lens` with generate= or answers=. α is the share of positions at which h_l and the whole
      model have the same top token, even if a stored answer has a different one
    - most: the largest k, up to 100

    Returns a DataFrame by layer:

    - stay: α
    - drafts: the best k
    - speedup: the speed-up with this k; one more column for each k

    Raises ValueError for a result without responses, a model of one block, or `most` outside 1 to 100.
    Source: Elhoushi et al. 2024 (LayerSkip, arXiv 2404.16710); Leviathan et al. 2023 (2211.17192).
    Cost: no forward pass.
    """
    if "res_top1" not in fitting(generated) or not of_responses(generated):
        raise ValueError("early_exit needs a logit_lens result for responses: dl.logit_lens(llm, prompts, generate=64)")
    n_layers = len(generated["res_top1"])
    if not 1 <= most <= 100:
        raise ValueError(f"most must be from 1 to 100, got {most}")
    if n_layers < 2:
        raise ValueError(f"the model has only {n_layers} block; early exit needs at least two")
    stay = as_array(generated["res_top1"]).astype(float)
    k = np.arange(1, most + 1)
    speedups = (1 + np.cumsum(stay[:, None] ** k, axis=1)) / (k * np.arange(n_layers)[:, None] / n_layers + 1)
    best, drafts = speedups.max(1), speedups.argmax(1) + 1
    frame = pd.DataFrame({"stay": stay, "drafts": drafts, "speedup": best})
    frame[k.tolist()] = speedups
    return frame.rename_axis("layer")
