"""What crosses the socket of NDIF's sandbox, where code and model are two processes, computed from shapes.

What the code reads goes there and, as it may have been edited, back; what it caches goes there only.
"""

import torch

from ..probes.packing import packs
from ..probes.residual_stream import bytes_of_a_token, tokens_in

PER_SECOND = 1e9  # bytes that are pickled, sent and read again; a guess that no server has confirmed
TOO_MANY = 3600 * PER_SECOND


def crossing(probe: str, arguments: dict, vocabulary: int) -> tuple[int, int]:
    """Bytes and reads of a job, in all: both directions, without what a message adds to its tensor.

    probe: its function's name; arguments: what it is called with; vocabulary: rows of the unembedding, which crosses
    once. (0, 0) for a probe that is not known here. Numbers are bfloat16.
    """
    if probe not in ("relative_contribution", "logit_lens", "layer_effects", "local_effects", "residual_erasure"):
        return 0, 0
    arch = arguments["arch"]
    n_layers, width = arch["n_layers"], arch["width"]
    if probe in ("relative_contribution", "logit_lens"):
        per_block = 6 if probe == "relative_contribution" else 4
        tokens = sum(map(len, arguments["prompts"]))
        head = vocabulary * width if probe == "logit_lens" else 0
        reads = len(arguments["prompts"]) * n_layers * (3 if probe == "relative_contribution" else 1)
        return 2 * (per_block * n_layers * tokens * width + head), reads
    if probe in ("layer_effects", "local_effects"):
        of_prompts = [(packs(starts, len(ids), arch), len(ids)) for ids, starts in arguments["work"]]
        clean, each = (6, 3) if probe == "local_effects" else (2, 4)
    else:
        answer = arguments["answer"][-1]
        of_prompts, clean, each = [(packs(range(answer), answer, arch), answer)], 2, 2
    sent = reads = 0
    for of_prompt, n_tokens in of_prompts:
        sent += clean * n_layers * n_tokens
        for order, *_ in of_prompt:
            rows, blocks = _rows(n_layers, tokens_in(2**32, bytes_of_a_token(width, torch.bfloat16)) // len(order) - 2)
            sent += each * rows * len(order)
            reads += blocks
    return 2 * (sent + vocabulary) * width, reads


def _rows(n_layers, size):
    """Rows summed over the blocks that run, and these blocks, for a row of each block in passes of `size` rows."""
    runs = [range(n_layers)[k : k + max(1, size)] for k in range(0, n_layers, max(1, size))]
    blocks = [(l, some) for some in runs for l in range(some.start, n_layers)]
    return sum(2 + min(l - some.start + 1, len(some)) for l, some in blocks), len(blocks)
