"""What the probes cost on NDIF for Llama-3.1-70B and ten GSM8K prompts, on paper: python -m benchmarks.ndif_cost

Arithmetic is counted from shapes: 2 FLOPs per weight and token, attention, unembedded rows; a backward pass is twice a
forward one. With device_map="auto" one GPU works at a time, here at 200 TFLOP/s.
"""

import re

import depth_lib as dl
from benchmarks.markdown import markdown
from depth_lib.data.tokens import future_positions

L, D, HEADS_WIDTH_KV, MLP, VOCABULARY = 80, 8192, 1024, 28672, 128256
WEIGHTS = 2 * D * D + 2 * D * HEADS_WIDTH_KV + 3 * D * MLP  # of a block
FLOPS = 200e12
NODES = 256  # of integrated gradients: the most per block
STEPS = 16  # of increments
N_ANSWER = 3  # tokens


def block_flops(n_tokens, length):
    """Of one block for n_tokens tokens of sequences of this length."""
    return n_tokens * 2 * (WEIGHTS + length * D)


def unembed_flops(n_rows):
    return 2 * n_rows * D * VOCABULARY


def forward_flops(lengths):
    return sum(L * block_flops(length, length) for length in lengths)


def skip_flops(n_places, n_measured):
    """Skips of every block: a batch of these places that grows from block to block."""
    return sum(block_flops((l + 1) * n_places, n_places) for l in range(L)) + unembed_flops((L + 1) * n_measured)


def future_flops(lengths, positions):
    """Skips at each prompt's drawn positions."""
    return sum(skip_flops(n, n - t) for n, drawn in zip(lengths, positions, strict=True) for t in drawn)


def costs(lengths, question):
    """Per probe: FLOPs, and float32 numbers that come back. question: tokens of question and answer."""
    n, total = len(lengths), sum(lengths)
    forward, future = forward_flops(lengths), future_flops(lengths, future_positions(lengths))
    erasures = (question - 1) * skip_flops(question - 1, N_ANSWER)
    gradients = sum(3 * NODES * block_flops(question, question) * (L - l) for l in range(L))
    moved = STEPS + 1 + 2 * STEPS * (question - 1)  # rows of a block's increments
    every = sum(skip_flops(length, length) for length in lengths)
    return {
        "relative_contribution": (forward, n * (9 * L + (L + 1) ** 2) + total * L),
        "logit_lens": (forward + unembed_flops((L + 1) * total), n * 10 * L),
        "layer_effects, future": (forward + future, n * (L * L + 2 * L)),
        "layer_effects, all": (forward + every, n * (L * L + 2 * L)),
        "residual_erasure": (forward + erasures, (L + 1) * question),
        "integrated_gradients (at most)": (gradients + NODES * L * unembed_flops(3 * N_ANSWER), L * (question + 4)),
        "integrated_gradients, increments": (
            moved * block_flops(question - 1, question - 1) * L * (L - 1) // 2,
            L * question,
        ),
    }


def lines():
    """The table for the ten sample prompts of GSM8K, with a token per word or sign, and the first of them with a short
    answer."""
    lengths = [len(re.findall(r"\w+|[^\w\s]", text)) for text in dl.load_prompts("gsm8k", 10, source="sample")]
    return markdown(
        [
            {"probe": probe, "seconds": f"{flops / FLOPS:,.0f}", "kB downloaded": f"{4 * numbers / 1e3:,.0f}"}
            for probe, (flops, numbers) in costs(lengths, lengths[0]).items()
        ]
    )


if __name__ == "__main__":
    print("\n".join(lines()))
