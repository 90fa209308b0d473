"""How likely a model finds the endings of a text, as it is and with its blocks in other orders."""

import torch

from .block_orders import order_damage
from .clean_run import CleanRun
from .residual_stream import final_residual, inputs, skip_rest
from .unembedding import lens


def ending_log_probs(llm, arch, texts, orders, budget):
    """Σ log p of each text's ending, by the model as it is and by each of K orders of its blocks [len(texts), 1 + K].

    texts: (token ids, the places of the ending's tokens) each; orders: lists of block numbers; budget: tokens in one
    forward pass, or None.
    """
    sums = []
    for ids, ending in texts:
        predicting = tuple(place - 1 for place in ending)
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids), use_cache=False):
                final = final_residual(llm, arch)
                log_p = lens(llm, arch, final[0, [*predicting]]).log_softmax(-1)
                sums.append(sum(log_p[k, ids[place]] for k, place in enumerate(ending)).cpu()[None])
                skip_rest(llm, arch, arch.n_layers, final)
        if orders:
            _, _, losses, _ = order_damage(CleanRun(llm, arch, ids, budget), orders, predicting)
            sums[-1] = torch.cat([sums[-1], sums[-1] - losses.sum(-1)])
    return {"log_probs": torch.stack(sums)}
