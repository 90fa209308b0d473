"""How likely a model finds the endings of a text, with consecutive blocks removed or not."""

import torch

from .residual_stream import entering, final_residual, inputs, leave, skip_rest
from .unembedding import lens


def ending_log_probs(llm, arch, texts, removed):
    """Σ log p of each text's ending, [len(texts)].

    texts: (token ids, the places of the ending's tokens) each; removed: (s, n), without blocks s..s + n − 1, or None.
    """
    sums = []
    for ids, ending in texts:
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids), use_cache=False):
                if removed:
                    s, n = removed
                    leave(llm, arch, s + n - 1, entering(llm.blocks[s]).clone())
                final = final_residual(llm, arch)
                log_p = lens(llm, arch, final[0, [place - 1 for place in ending]]).log_softmax(-1)
                sums.append(sum(log_p[k, ids[place]] for k, place in enumerate(ending)).cpu())
                skip_rest(llm, arch, arch.n_layers, final)
    return {"log_probs": torch.stack(sums)}
