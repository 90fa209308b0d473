"""How likely a model finds the endings of a text, as it is and with its blocks in other orders."""

import torch

from ..residual.residual_stream import inputs
from ..residual.stream import Stream
from ..residual.unembedding import lens
from .block_orders import order_damage


def ending_log_probs(llm, arch, texts, orders, budget):
    """Σ log p of each text's ending, by the model as it is and by each of K orders of its blocks [len(texts), 1 + K].

    texts: (token ids, the places of the ending's tokens) each; orders: lists of block numbers; budget: tokens in one
    call of a block, or None.
    """
    sums = []
    for ids, ending in texts:
        predicting = tuple(place - 1 for place in ending)
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids), use_cache=False):
                stream = Stream(llm, arch, ids, budget)
                log_p = lens(llm, arch, stream.h[-1][[*predicting]]).log_softmax(-1)
                of_text = sum(log_p[k, ids[place]] for k, place in enumerate(ending)).cpu()[None]
                if orders:
                    _, _, losses, _ = order_damage(stream, orders, predicting)
                    of_text = torch.cat([of_text, of_text - losses.sum(-1)])
        sums.append(of_text)
    return {"log_probs": torch.stack(sums)}
