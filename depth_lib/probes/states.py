"""The residual streams, or contributions, of chosen layers for pieces of text: what maps between models read."""

import torch

from .residual_stream import clean_run, residuals


def states(llm, arch, sequences, layers, what, fetch):
    """h_l (what = "residual", l = 0..L) or a_l + m_l ("contribution", l = 0..L − 1) at every token of the sequences.

    sequences: token ids, one list per sequence; layers: the wanted l, ascending, after the last of which no block runs;
    fetch: whether to move the values to the CPU, as a server must. Returns `states` [len(layers), tokens of all
    sequences, d] in the model's dtype (contributions: float32).
    """
    results = []
    for ids in sequences:
        if what == "contribution":
            _, values = clean_run(llm, arch, ids, last=layers[-1])
        else:
            values = residuals(llm, arch, ids, last=layers[-1])
        rows = torch.stack([values[l].to(values[layers[0]].device) for l in layers])
        results.append(rows.cpu() if fetch else rows)
    return {"states": torch.cat(results, 1)}


def states_of_blocks(llm, arch, blocks, layers, what):
    """`states` of several blocks of sequences, as a server returns them: `blocks`, a list of tensors on the CPU."""
    return {"blocks": [states(llm, arch, ids, layers, what, True)["states"] for ids in blocks]}
