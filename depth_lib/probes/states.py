"""The residual streams, or contributions, of chosen layers for pieces of text: what maps between models read."""

import torch

from .residual_stream import added, entering, inputs, last_block, leaving


def states(llm, arch, sequences, layers, what, fetch):
    """h_l (what = "residual", l = 0..L) or a_l + m_l ("contribution", l = 0..L − 1) at every token of the sequences.

    sequences: token ids, one list per sequence; layers: the wanted l, ascending, after the last of which no block runs;
    fetch: whether to move the values to the CPU, as a server must. Returns `states` [len(layers), tokens of all
    sequences, d] in the model's dtype (contributions: float32).
    """
    blocks = llm.blocks[: min(layers[-1] + 1, arch["n_layers"])]
    results = []
    for ids in sequences:
        with torch.no_grad():
            with llm.trace(inputs(ids), use_cache=False) as tracer:
                if what == "contribution":
                    rows = [added(block, arch)[0] for l, block in enumerate(blocks) if l in layers]
                else:  # clones, since some families add in place
                    rows = [entering(block)[0].clone() for l, block in enumerate(blocks) if l in layers]
                    if layers[-1] == arch["n_layers"]:
                        rows.append(leaving(last_block(llm, arch))[0].clone())
                rows = torch.stack([row.to(rows[0].device) for row in rows])
                tracer.stop()
        results.append(rows.cpu() if fetch else rows)
    return {"states": torch.cat(results, 1)}


def states_of_blocks(llm, arch, blocks, layers, what):
    """`states` of several blocks of sequences, as a server returns them: `blocks`, a list of tensors on the CPU."""
    return {"blocks": [states(llm, arch, ids, layers, what, True)["states"] for ids in blocks]}
