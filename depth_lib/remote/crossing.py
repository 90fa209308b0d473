"""Bytes that cross the socket of NDIF's sandbox, where code and model are two processes, computed from shapes.

Values that the code reads are sent to it and back, as they may have been edited; cached values are sent once.
"""

import torch

from ..probes.budget import bytes_of_a_token, tokens_in
from ..probes.packing import packs

PER_SECOND = 1e9  # bytes that are pickled, sent and read again: a guess that no server has confirmed
FLOPS = 200e12  # of the server's GPU, a guess too
TOO_LONG = 3600  # seconds


def crossing(probe: str, arguments: dict, vocabulary: int) -> tuple[int, int, int]:
    """Bytes and reads of a job, in all: both directions, without what a message adds to its tensor; and of increments,
    of which the server computes longer than it sends, how many tokens run through a block, all blocks together.

    probe: its function's name; arguments: what it is called with; vocabulary: rows of the unembedding, which crosses
    once. (0, 0, 0) for a probe that is not known here. Numbers are bfloat16.
    """
    if probe not in ("relative_contribution", "logit_lens", "layer_effects", "local_effects", "residual_erasure"):
        return _of_increments(arguments, vocabulary) if arguments.get("method") == "increments" else (0, 0, 0)
    arch = arguments["arch"]
    n_layers, width = arch["n_layers"], arch["width"]
    if probe in ("relative_contribution", "logit_lens"):
        head = vocabulary * width if probe == "logit_lens" else 0  # else a and m, which are cached
        reads = len(arguments["prompts"]) * n_layers
        return 2 * (4 * n_layers * sum(map(len, arguments["prompts"])) * width + head), reads, 0
    if probe in ("layer_effects", "local_effects"):
        of_prompts = [(packs(starts, len(ids), arch), len(ids)) for ids, starts in arguments["work"]]
        clean, each, (n_floor, of_floor) = (6, 3, (9, 24)) if probe == "local_effects" else (2, 4, (9, 24))
    else:
        answer = arguments["answer"][-1]
        of_prompts, clean, each, (n_floor, of_floor) = [(packs(range(answer), answer, arch), answer)], 2, 2, (25, 64)
    sent = reads = 0
    for of_prompt, n_tokens in of_prompts:
        sent += clean * n_layers * n_tokens
        for pack in of_prompt:
            rows, blocks = _rows(n_layers, _tokens_in_a_pass(width) // pack.n_places - 1)
            sent += each * rows * pack.n_places
            reads += blocks
        sent, reads = sent + n_floor * each * n_layers * min(of_floor, n_tokens), reads + n_layers
    return 2 * (sent + vocabulary) * width, reads, 0


def seconds(n_bytes: int, n_tokens: int, weights: int) -> float:
    """What a job takes in the sandbox by the two guesses above. weights: of a block; others as from `crossing`."""
    return n_bytes / PER_SECOND + 2 * weights * n_tokens / FLOPS


def _of_increments(arguments, vocabulary):
    """Of each point on the path, a row, its residuals are sent, and the last ones read; after the last block none."""
    arch, n_places, end = arguments["arch"], len(arguments["answer"]), arguments["answer"][-1]
    n_layers, width, steps = arch["n_layers"], arch["width"], arguments["steps"]
    rows, before_last = steps + 1 + 2 * steps * end, [l for l in arguments["layers"] if l + 1 < n_layers]
    sent = len(before_last) * rows * (3 * end + 2 * n_places) + 2 * len(arguments["layers"]) * len(arguments["ids"])
    passes = len(before_last) * -(-rows // max(1, _tokens_in_a_pass(width) // end))
    n_tokens = rows * end * sum(n_layers - l - 1 for l in before_last)
    return 2 * (sent + vocabulary) * width, passes, n_tokens


def _tokens_in_a_pass(width):
    return tokens_in(2**32, bytes_of_a_token(width, torch.bfloat16))


def _rows(n_layers, size):
    """Rows summed over the blocks that run, and these blocks, for a row of each block in passes of `size` rows."""
    runs = [range(n_layers)[k : k + max(1, size)] for k in range(0, n_layers, max(1, size))]
    blocks = [(l, some) for some in runs for l in range(some.start, n_layers)]
    return sum(1 + min(l - some.start + 1, len(some)) for l, some in blocks), len(blocks)
