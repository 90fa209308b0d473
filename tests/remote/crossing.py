"""Estimates from shapes how long a job takes in NDIF's sandbox, where code and model are two processes.

Values that the code reads cross the socket between them, and back, as they may have been edited; cached values cross
once.
"""

PER_SECOND = 1e9  # bytes that are pickled, sent and read again: a guess that no server has confirmed
FLOPS = 200e12  # of the server's GPU, a guess too

# How many residuals cross for each block and token: of the prompt as it is, and of each changed row; and how many
# tokens the rows have that measure rounding: rows, and tokens of each at most.
_EFFECTS = {"layer_effects": (2, 4, 9, 24), "local_effects": (6, 3, 9, 24), "residual_erasure": (2, 2, 25, 64)}


def crossing(probe: str, arguments: dict, vocabulary: int, ranks: int = 1) -> tuple[int, int]:
    """The bytes of a job that cross the socket, both directions, in bfloat16; and of increments, of which the server
    computes longer than it sends, how many tokens run through a block, all blocks together.

    probe: its function's name; arguments: what it is called with; vocabulary: rows of the unembedding, which crosses
    once; ranks: of tensor parallelism, of which the first sends what is read, and each is sent what comes back. (0, 0)
    for a probe that is not known here.
    """
    arch, n_tokens = arguments.get("arch"), 0
    if probe in ("relative_contribution", "logit_lens"):
        n_residuals = 4 * arch.n_layers * sum(map(len, arguments["prompts"]))
    elif probe in ("layer_effects", "local_effects"):
        n_residuals = sum(_of_effects(probe, arch, len(positions), len(ids)) for ids, positions in arguments["work"])
    elif probe == "residual_erasure":
        end = arguments["answer"][-1]
        n_residuals = _of_effects(probe, arch, end, end)
    elif arguments.get("method") == "increments":
        n_residuals, n_tokens = _of_increments(**arguments)
    else:
        return 0, 0
    head = 0 if probe == "relative_contribution" else vocabulary
    return (1 + ranks) * (n_residuals + head) * arch.width, n_tokens


def seconds(n_bytes: int, n_tokens: int, weights: int) -> float:
    """What a job takes in the sandbox by the two guesses above. weights: of a block; others as from `crossing`."""
    return n_bytes / PER_SECOND + 2 * weights * n_tokens / FLOPS


def _of_effects(probe, arch, n_positions, n_tokens):
    """For each position, row l, whose block l is changed, joins the batch there: block l runs l + 1 rows of each
    position, and one that is unmodified for all that share a pass, which are taken to be all."""
    of_prompt, of_row, n_rounding, most = _EFFECTS[probe]
    n_layers = arch.n_layers
    changed = (n_positions * n_layers * (n_layers + 1) // 2 + n_layers) * n_tokens
    return of_prompt * n_layers * n_tokens + of_row * (changed + n_rounding * n_layers * min(most, n_tokens))


def _of_increments(arch, ids, answer, layers, steps, **_):
    """A row for each point of the path, and two for each token and step; after the last block, none."""
    end, rows = answer[-1], steps + 1 + 2 * steps * answer[-1]
    blocks_after = [arch.n_layers - 1 - l for l in layers]
    sent = sum(n > 0 for n in blocks_after) * rows * (3 * end + 2 * len(answer))
    return sent + 2 * len(layers) * len(ids), rows * end * sum(blocks_after)
