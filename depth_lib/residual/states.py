"""The residual stream, or the contributions, of chosen layers for pieces of text: what maps between models read."""

import torch

from .stream import residuals


def states(llm, arch, ids, layers, what):
    """h_l (what = "residual", l = 0..L) or a_l + m_l ("contribution", l = 0..L − 1) at every token of a sequence.

    ids: its T token ids; layers: the wanted l, ascending. Returns `states` [len(layers), T, d] in the model's dtype
    (contributions: float32), where the first of these layers is.
    """
    values = residuals(llm, arch, ids)
    if what == "contribution":
        values = [after.float() - before.to(after).float() for before, after in zip(values, values[1:], strict=False)]
    return {"states": torch.stack([values[l].to(values[layers[0]].device) for l in layers])}


def states_of_sequences(llm, arch, sequences, layers, what):
    """`states` of several sequences, as a server returns them: a list of tensors on the CPU."""
    return {"states": [states(llm, arch, ids, layers, what)["states"].cpu() for ids in sequences]}
