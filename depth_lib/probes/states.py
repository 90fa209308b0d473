"""The residual stream, or the contributions, of chosen layers for pieces of text: what maps between models read."""

import torch

from .residual_stream import clean_run


def states(llm, arch, ids, layers, what):
    """h_l (what = "residual", l = 0..L) or a_l + m_l ("contribution", l = 0..L − 1) at every token of a sequence.

    ids: its T token ids; layers: the wanted l, ascending, after the last of which no block runs. Returns `states`
    [len(layers), T, d] in the model's dtype (contributions: float32), where the first of these layers is.
    """
    h, c = clean_run(llm, arch, ids, with_contributions=what == "contribution", last=layers[-1])
    values = c or h
    return {"states": torch.stack([values[l].to(values[layers[0]].device) for l in layers])}


def states_of_sequences(llm, arch, sequences, layers, what):
    """`states` of several sequences, as a server returns them: a list of tensors on the CPU."""
    return {"states": [states(llm, arch, ids, layers, what)["states"].cpu() for ids in sequences]}
