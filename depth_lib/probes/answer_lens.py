"""The answer's tokens under the lens of each layer, at the positions that predict them.

The obvious loop (tests/oracles/lenses.py):

    for each l in 0..L and place p of an answer's token:
        z = unembed(norm(A_l h_l[p − 1] + b_l)), with A_l = 1 and b_l = 0 without a lens and for l = L
        answer_log_probs = log_softmax(z)[token]      answer_ranks = 1 + how many of z exceed z[token]
        answer_kl = KL(softmax(z) ‖ y)
"""

import torch
from nnsight import TransformersModel

from ..data.tokens import answer_span
from ..lenses.files import Lens, translators
from ..models.check import verified_arch
from ..residual.residual_stream import inputs
from ..residual.stream import read_residuals
from ..residual.unembedding import lens as unembed
from ..residual.unembedding import translated
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run


@with_origin
def answer_lens(
    llm: TransformersModel, question: str, answer: str, lens: Lens | str | None = None, remote: bool | str = False
) -> Result:
    """The rank and log-probability of each token of the answer at every layer, and the five most likely tokens there.

    >>> llm = dl.load_model("toy-4l")
    >>> dl.answer_lens(llm, "5 + 7 = ", "12")["answer_ranks"].shape
    torch.Size([5, 2])

    At the position before each token, z_l = unembed(norm(A_l h_l + b_l)). answer_log_probs = log softmax(z_l)[token],
    and answer_ranks = 1 + the number of entries of z_l above z_l[token].

    - llm: from `load_model`
    - question, answer: strings, tokenised together; for a whole text, pass its first word as the question and the rest
      as the answer
    - lens: from `load_lens` or `fit_lens`, or its path; by default the logit lens
    - remote: True for NDIF, or the address of a server

    Returns, with row l for the input of block l and row L for the output:

    - answer_log_probs [L + 1, A]: nats
    - answer_ranks [L + 1, A]: 1 is the most likely
    - answer_kl [L + 1, A]: KL(softmax(z_l) ‖ output), nats
    - answer_top [L + 1, A, 5]: ids of the five most likely tokens; `top_tokens` has them as strings
    - tokens: A strings

    Raises ValueError if the answer adds no token to the question. Raises LensError for a lens that belongs to a
    different model or, on a server, is larger than half a GiB.
    Source: nostalgebraist 2020; Gupta et al. 2025 (arXiv 2510.18871).
    Cost: one pass, and L + 1 unembeddings of A tokens.
    """
    arch, (ids, positions, tokens) = verified_arch(llm), answer_span(llm, question, answer)
    gives = "L+1 A: answer_log_probs answer_ranks answer_kl; L+1 A 5: answer_top"
    result = run(
        measure_answer_lens, llm, arch, ids, positions, translators(llm, lens, remote), remote=remote, gives=gives
    )
    if not result["answer_kl"].isfinite().all():  # a log-probability may be −inf, where a bias excludes the token
        raise ValueError("answer_lens: answer_kl is not finite; weights are damaged, or numbers overflow in the lens")
    top = [[llm.tokenizer.batch_decode(k[:, None]) for k in of_layer] for of_layer in result["answer_top"].int()]
    result |= {"top_tokens": top, "tokens": [tokens[position] for position in positions]}
    return Result("answer_lens", result, llm)


def measure_answer_lens(llm, arch, ids, answer, lens=None):
    """The answer's tokens under the lens at every layer.

    - answer_log_probs, answer_ranks [L + 1, A]: of the answer's tokens at each h_l
    - answer_kl [L + 1, A]: from the model's output, which is row L
    - answer_top [L + 1, A, 5]: ids of the five most likely tokens

    ids: the T token ids of question and answer. answer: the places of the answer's A tokens. lens: `A`
    [L, d, d] and `b` [L, d], by which h_0..h_{L − 1} are translated, or None.
    """
    predicting = [place - 1 for place in answer]
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            h = [x[predicting] for x in read_residuals(llm, arch)]
            translation = translated(lens, h)  # h_L stays as it is
            logits = [unembed(llm, arch, x.to(h[-1].device)).cpu() for x in translation]
    true, log_p = torch.tensor([ids[place] for place in answer])[:, None], torch.stack(logits).log_softmax(-1)
    of_true = log_p.gather(2, true.expand(len(log_p), -1, 1))
    finite = log_p.clamp_min(-1e3)  # −inf where a bias excludes a token: 0 · inf is NaN
    return {
        "answer_log_probs": of_true[..., 0],
        "answer_ranks": 1 + (log_p > of_true).sum(2).float(),
        "answer_kl": (log_p.exp() * (finite - finite[-1])).sum(2),
        "answer_top": log_p.topk(5).indices.float(),
    }
