"""The residual stream of a piece of text, or the contributions to it: what lenses and maps are fitted to."""

import torch

from .stream import residuals


def states(llm, arch, ids, what):
    """h_l (what = "residual", l = 0..L) or a_l + m_l ("contribution", l = 0..L − 1) at every token of a sequence.

    ids: its T token ids. Returns `states` [L + 1 or L, T, d] in the model's dtype (contributions: float32), on the CPU.
    """
    values = residuals(llm, arch, ids)
    if what == "contribution":
        values = [after.float() - before.to(after).float() for before, after in zip(values, values[1:], strict=False)]
    return {"states": torch.stack([value.cpu() for value in values])}
