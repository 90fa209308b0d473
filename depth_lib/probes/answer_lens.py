"""What each layer would answer: the answer's tokens under the lens, read where the token before predicts them.

The obvious loop (tests/oracles/lenses.py):

    for each l in 0..L and place p of an answer's token:
        z = lens(h_l[p − 1])
        answer_log_probs = log_softmax(z)[token]      answer_ranks = 1 + how many of z exceed z[token]
        answer_kl = KL(softmax(z) ‖ y)
"""

import torch

from .residual_stream import first_residual, inputs, read_stream, skip_rest
from .unembedding import lens as unembed
from .unembedding import translated


def answer_lens(llm, arch, ids, answer, lens=None):
    """`answer_log_probs` and `answer_ranks` [L + 1, A] of the answer's true tokens at each h_l, `answer_kl` [L + 1, A]
    from the model's own output, which is row L, and `answer_top`, the ids of the five likeliest tokens [L + 1, A, 5],
    most likely first.

    ids: the T token ids of question and answer; answer: the places of the answer's A tokens; lens: as for `logit_lens`.
    """
    predicting, of_layers = [place - 1 for place in answer], []
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            h, _ = read_stream(llm, arch, first_residual(llm))
            log_y = unembed(llm, arch, h[-1][predicting]).log_softmax(-1).clamp_min(-1e3)  # a bias may take a token out
            for x in translated(lens, [x[predicting] for x in h]):
                z = unembed(llm, arch, x.to(h[-1].device))
                true = torch.tensor([ids[place] for place in answer], device=z.device)[:, None]
                rank = 1 + (z > z.gather(1, true)).sum(1)
                log_p = z.log_softmax(-1)
                kl = (log_p.exp() * (log_p.clamp_min(-1e3) - log_y)).sum(1)
                numbers = [log_p.gather(1, true), rank[:, None], kl[:, None], z.topk(5).indices]
                of_layers.append(torch.cat([x.float() for x in numbers], 1).cpu())
            skip_rest(llm, arch, arch.n_layers, h[-1][None])
    log_probs, ranks, kl, *top = torch.stack(of_layers).unbind(-1)
    return {"answer_log_probs": log_probs, "answer_ranks": ranks, "answer_kl": kl, "answer_top": torch.stack(top, -1)}
