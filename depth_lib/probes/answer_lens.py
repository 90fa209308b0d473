"""What each layer would answer: the answer's tokens under the lens, read where the token before predicts them.

The obvious loop (tests/oracles/lenses.py):

    for each l in 0..L and place p of an answer's token:
        z = lens(h_l[p − 1])
        answer_log_probs = log_softmax(z)[token]      answer_ranks = 1 + how many of z exceed z[token]
        answer_kl = KL(softmax(z) ‖ y)
"""

import torch

from ..residual.residual_stream import inputs
from ..residual.stream import Stream
from ..residual.unembedding import lens as unembed
from ..residual.unembedding import translated


def answer_lens(llm, arch, ids, answer, lens=None):
    """`answer_log_probs` and `answer_ranks` [L + 1, A] of the answer's true tokens at each h_l, `answer_kl` [L + 1, A]
    from the model's own output, which is row L, and `answer_top`, the ids of the five likeliest tokens [L + 1, A, 5],
    most likely first.

    ids: the T token ids of question and answer; answer: the places of the answer's A tokens; lens: as for `logit_lens`.
    """
    predicting = [place - 1 for place in answer]
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            h = [x[predicting] for x in Stream(llm, arch, ids, budget=1).h]
            logits = [unembed(llm, arch, x.to(h[-1].device)).cpu() for x in translated(lens, h)]
    true, log_p = torch.tensor([ids[place] for place in answer])[:, None], torch.stack(logits).log_softmax(-1)
    of_true, finite = (log_p.gather(2, true.expand(len(log_p), -1, 1)), log_p.clamp_min(-1e3))  # a bias may exclude one
    return {
        "answer_log_probs": of_true[..., 0],
        "answer_ranks": 1 + (log_p > of_true).sum(2).float(),
        "answer_kl": (log_p.exp() * (finite - finite[-1])).sum(2),
        "answer_top": log_p.topk(5).indices.float(),
    }
