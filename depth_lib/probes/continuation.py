"""How a model continues a prompt: by the token that it finds likeliest, at each step."""

import torch

from ..residual.residual_stream import final_residual, inputs, skip_head
from ..residual.unembedding import lens


def continuation(llm, arch, ids, n, stops):
    """The ids of up to n tokens, each the likeliest after those before it; the last may be one of `stops`.

    The obvious loop:

        while len(new) < n and new[-1] not in stops:  new += [argmax of the logits after ids + new]

    Here `generate`, which keeps what it computed of earlier tokens, proposes all of them at once. A checkpoint's own
    settings, of which it obeys more than anyone can turn off, may propose others than the likeliest, so one pass over
    the proposal decides.
    """
    new = []
    while len(new) < n and not (new and new[-1] in stops):
        proposed = _proposed(llm, arch, ids + new, n - len(new), stops)
        likeliest = _likeliest(llm, arch, ids + new, proposed)
        agree = [ours == theirs for ours, theirs in zip(likeliest, proposed, strict=True)]
        new += likeliest[: (agree + [False]).index(False) + 1]
    return new


def _proposed(llm, arch, ids, n, stops):
    """The tokens that `generate` appends; at least one."""
    plain = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
    plain |= {"min_new_tokens": 0, "use_cache": True, "num_return_sequences": 1, "return_dict_in_generate": False}
    plain |= {"penalty_alpha": None} | ({"eos_token_id": list(stops)} if stops else {})
    with torch.no_grad():
        with llm.generate(inputs(llm, arch, ids), max_new_tokens=n, **plain) as tracer:
            result = tracer.result[0].tolist()
    return result[len(ids) :]


def _likeliest(llm, arch, ids, proposed):
    """The likeliest token after ids, and after each of the proposed ones but the last."""
    read = ids + proposed[:-1]
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, read), use_cache=False):
            final = final_residual(llm, arch)
            found = lens(llm, arch, final[0, len(ids) - 1 :]).argmax(-1).tolist()
            skip_head(llm, arch, final)
    return found
