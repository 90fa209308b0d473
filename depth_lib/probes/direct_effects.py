"""The direct effect of each block's attention and MLP on an answer, past all later blocks.

The obvious loop, for each token k of the answer and the final residual h_L of the token before it:

    for each block l:
        direct_att[l] = log softmax(lens(h_L))[k] − log softmax(lens(h_L − a_l))[k]
        direct_mlp[l] = log softmax(lens(h_L))[k] − log softmax(lens(h_L − m_l))[k]

The final norm reads the changed residual, it is not frozen. In families whose blocks multiply h_l + a_l + m_l by a
number, a_l and m_l are what is left of them in h_L: times the numbers of block l and all later ones.
"""

import torch
from nnsight import TransformersModel

from ..data.tokens import answer_span
from ..models.check import verified_arch
from ..residual.budget import rows_of_logits
from ..residual.residual_stream import inputs, rescaling
from ..residual.stream import read_blocks
from ..residual.unembedding import lens
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run


@with_origin
def direct_effects(llm: TransformersModel, question: str, answer: str, remote: bool | str = False) -> Result:
    """How much the attention and the MLP of each block contribute directly to an answer's log-probability.

    >>> llm = dl.load_model("toy-4l")
    >>> dl.direct_effects(llm, "5 + 7 = ", "12")["direct_mlp"].shape
    torch.Size([4, 2])

    direct[l] = log softmax(lens(h_L))[k] − log softmax(lens(h_L − a_l))[k], and the same for m_l. h is read at the
    position that predicts the answer's token k. If direct is positive, the part makes the token more likely.

    - llm: from `load_model`
    - question, answer: strings, tokenised together
    - remote: True for NDIF, or the address of a server

    Returns a dict of float32 tensors:

    - `direct_att`, `direct_mlp` [L, A]: nats, for each of the answer's A tokens; 0 for a part that a block lacks. Their
      sum over A is the effect on the whole answer
    - `answer_log_prob` [A]: log softmax(lens(h_L))[k], nats
    - `tokens`: A strings

    Raises ValueError if the answer adds no token to the question, or for a model whose attention and MLP cannot be told
    apart.
    Source: direct logit attribution (Elhage et al. 2021) without a frozen norm.
    Cost: one pass, and 2 L + 1 unembeddings of A tokens.
    """
    arch, (ids, places, tokens) = verified_arch(llm), answer_span(llm, question, answer)
    if not arch.parts:
        raise ValueError("attention and MLP cannot be told apart in this model, so it has no direct effects")
    gives = "L A: direct_att direct_mlp; A: answer_log_prob"
    result = run(measure_direct_effects, llm, arch, ids, places, remote=remote, gives=gives)
    if not all(value.isfinite().all() for value in result.values()):
        raise ValueError("direct_effects: a value is not finite; weights are damaged, or numbers overflow")
    return Result("direct_effects", result | {"tokens": [tokens[place] for place in places]}, llm)


def measure_direct_effects(llm, arch, ids, answer):
    """`direct_att` and `direct_mlp` [L, A] and `answer_log_prob` [A], in nats.

    ids: the token ids of question and answer; answer: the places of the answer's A tokens.
    """
    predicting, added = [place - 1 for place in answer], []
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False) as tracer:
            for before, a, m, h in read_blocks(tracer, llm, arch):
                added.append(torch.stack([a[0, predicting], m[0, predicting]]))  # [2, A, d]
                if arch.rescales:  # h_{l+1} = k (h_l + a_l + m_l), so h_L has k a_l of it
                    k = rescaling(before.to(h.device).float() + a + m, h.float())
                    added = [parts * k.to(parts.device) for parts in added]
            final = h[0, predicting]
            changed = [(final.float() - parts.to(final.device)).to(final.dtype) for parts in added]
            rows = torch.cat([final[None], *changed]).flatten(0, 1)
            true = torch.tensor([ids[place] for place in answer]).repeat(len(rows) // len(answer))
            log_p = []
            for few, tokens in zip(rows.split(n := rows_of_logits(llm, final)), true.split(n), strict=True):
                of_few = lens(llm, arch, few).log_softmax(-1)
                log_p.append(of_few.gather(1, tokens.to(of_few.device)[:, None])[:, 0].cpu())
    of_answer, *of_parts = torch.cat(log_p).unflatten(0, (-1, len(answer))).split([1] + [2] * len(added))
    direct = of_answer[0] - torch.stack(of_parts)  # [L, 2, A]
    return {"direct_att": direct[:, 0], "direct_mlp": direct[:, 1], "answer_log_prob": of_answer[0]}
