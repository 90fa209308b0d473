"""What the probes cost on NDIF for Llama-3.1-70B and ten GSM8K prompts, on paper: python -m tests.benchmarks.ndif_cost

Arithmetic is counted from shapes: 2 FLOPs per weight and token, attention, unembedded rows; a backward pass is twice a
forward one. With device_map="auto" one GPU works at a time, here at 200 TFLOP/s. Memory is what stands beside the
weights on the fullest GPU: a pass within the token budget, the clean residuals of one prompt, and half a GB of logits.
Bytes up are the bound that tests/remote holds a request with ten such prompts to. What crosses the socket of the
sandbox, where the jobs of ordinary keys run, is computed by depth_lib/remote/crossing.py; minutes: at 1 GB/s, a guess,
and of increments what they are computed in.
"""

import re

import depth_lib as dl
from depth_lib.data.tokens import future_positions
from depth_lib.probes.packing import packs
from depth_lib.remote.crossing import crossing, seconds
from depth_lib.session import PROMPT_BLOCKS_PER_JOB

L, D, HEADS_WIDTH_KV, MLP, VOCABULARY = 80, 8192, 1024, 28672, 128256
FLOPS = 200e12
REQUEST_BYTES = 20_000
BUDGET_BYTES, LOGITS_BYTES = 2**32, 2**29
ARCH = {"packs": True, "window": None, "width": D, "n_layers": L}
NODES = 256  # of integrated gradients: the most per block
STEPS = 16  # of increments


def block_flops(n_tokens, length):
    """Of one block for n_tokens tokens of sequences of this length."""
    weights = 2 * D * D + 2 * D * HEADS_WIDTH_KV + 3 * D * MLP
    return n_tokens * (2 * weights + 2 * length * D)


def unembed_flops(n_rows):
    return 2 * n_rows * D * VOCABULARY


def forward(lengths):
    return sum(L * block_flops(length, length) for length in lengths)


def effects(packed, measured):
    """Skips of every block: a batch that grows from block to block; `packed` places and `measured` rows per prompt."""
    flops = 0
    for places, rows in zip(packed, measured, strict=True):
        flops += sum(block_flops((l + 1) * places, places) for l in range(L)) + unembed_flops((L + 1) * rows)
    return flops


def future_packs(lengths):
    """Places and measured rows of each prompt, over the packs that its drawn positions make."""
    places, rows = [], []
    for length, starts in zip(lengths, future_positions(lengths), strict=True):
        chosen = packs(starts, length, ARCH)
        places.append(sum(pack.n_places for pack in chosen))
        rows.append(sum(length - t for t in starts))
    return places, rows


def costs(lengths, question, n_answer):
    """Per probe: FLOPs and float32 numbers that come back. question: tokens of question and answer."""
    erased = packs(range(question - 1), question, ARCH)
    erased_flops = sum(effects([pack.n_places], [n_answer * len(pack.suffixes)]) for pack in erased)
    moved = STEPS + 1 + 2 * STEPS * (question - 1)  # rows of a block's increments
    gradients = sum(3 * NODES * block_flops(question, question) * (L - l) for l in range(L))
    n, total = len(lengths), sum(lengths)
    return {
        "relative_contribution": (forward(lengths), n * (9 * L + (L + 1) ** 2) + total * L),
        "logit_lens": (forward(lengths) + unembed_flops((L + 1) * total), n * 10 * L),
        "layer_effects, future": (forward(lengths) + effects(*future_packs(lengths)), n * (L * L + 2 * L)),
        "layer_effects, all": (forward(lengths) + effects(lengths, lengths), n * (L * L + 2 * L)),
        "residual_erasure": (forward(lengths) + erased_flops, (L + 1) * question),
        "integrated_gradients (at most)": (gradients + NODES * L * unembed_flops(3 * n_answer), L * (question + 4)),
        "increments": (moved * block_flops(question - 1, question - 1) * L * (L - 1) // 2, L * question),
    }


def crossings(lengths, question, n_answer):
    """Per probe, bytes that cross the sandbox's socket, and tokens computed. Gradients cannot be had there."""
    prompts = [range(length) for length in lengths]
    future, whole = future_positions(lengths), [[length] for length in lengths]
    work = {
        "relative_contribution": {"prompts": prompts},
        "logit_lens": {"prompts": prompts},
        "layer_effects, future": {"work": list(zip(prompts, future, strict=True))},
        "layer_effects, all": {"work": list(zip(prompts, whole, strict=True))},
        "residual_erasure": {"answer": [question - 1]},
        "increments": {"ids": range(question), "answer": range(question - n_answer, question), "layers": range(L)}
        | {"steps": STEPS, "method": "increments"},
    }
    return {name: crossing(name.split(",")[0], found | {"arch": ARCH}, VOCABULARY) for name, found in work.items()}


def table(lengths, question, n_answer):
    """The lines of a Markdown table."""
    jobs = -(-len(lengths) // (PROMPT_BLOCKS_PER_JOB // L))
    clean = (L + 1) * max(lengths) * D * 2
    lines = [
        "| probe | jobs | seconds | kB up, at most | kB down | GB beside the weights | sandbox: GB | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    crossed = crossings(lengths, question, n_answer)
    for probe, (flops, numbers) in costs(lengths, question, n_answer).items():
        n_jobs = 1 if probe.startswith(("integrated", "increments", "residual")) else jobs
        up = REQUEST_BYTES / 1e3
        memory = (BUDGET_BYTES + LOGITS_BYTES + clean) / 1e9
        lines.append(
            f"| {probe} | {n_jobs} | {flops / FLOPS:,.0f} | {up:.0f} | {4 * numbers / 1e3:,.0f} | {memory:.1f} |"
            f" {_sandboxed(*crossed[probe]) if probe in crossed else '– | –'} |"
        )
    return lines


def _sandboxed(n_bytes, n_tokens):
    weights = block_flops(1, 0) / 2
    return f"{n_bytes / 1e9:,.0f} | {seconds(n_bytes, n_tokens, weights) / 60:,.1f}"


def lines():
    """For the ten sample prompts of GSM8K, with a token per word or sign, and the first of them with a short answer."""
    lengths = [len(re.findall(r"\w+|[^\w\s]", text)) for text in dl.load_prompts("gsm8k", 10, source="sample")]
    return table(lengths, lengths[0], 3)


if __name__ == "__main__":
    print("\n".join(lines()))
