"""What SmolLM2's erasures change by when layers share a batch with fewer others: `python -m tests.real.batches`.

A line per question: the largest effect, and the largest difference from all layers in one batch of jobs of five layers
each, as a server may be given them, and of passes of one row; in float32 and in bfloat16; and of bfloat16 from float32.
"""

import torch

import depth_lib as dl
from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.data.tokens import answer_span, tokenize
from depth_lib.models.families import describe
from depth_lib.probes.residual_erasure import residual_erasure
from depth_lib.session import run

PAIRS = [(QUESTION, ANSWER), ("2 + 9 + 4 + 6 + 8 + 3 = ", "32"), ("The capital of France is", " Paris")]
WHOLE = 100_000  # tokens: one batch


def erased(llm, question, answer, size, budget):
    """erasure_effect of all layers, `size` of them at a time."""
    (ids, places, _), arch = answer_span(llm, question, answer), describe(llm)
    baseline, n = tokenize(llm, dl.load_prompts("gsm8k", 3, source="sample")), arch.n_layers
    jobs = [list(range(l, min(l + size, n))) for l in range(0, n, size)]
    found = [run(residual_erasure, llm, arch, ids, places, job, baseline, budget, over="layers") for job in jobs]
    return torch.cat([one["erasure_effect"] for one in found])


def main():
    effects = {}
    for dtype in ("float32", "bfloat16"):
        llm = dl.load_model("SmolLM2-135M-Instruct", dtype=dtype)
        for question, answer in PAIRS:
            whole = effects[dtype, question] = erased(llm, question, answer, 1000, WHOLE)
            ways = (erased(llm, question, answer, 5, WHOLE), erased(llm, question, answer, 1000, 1))
            jobs, rows = ((way - whole).abs().max() for way in ways)
            print(f"{dtype}, {question!r}: largest {whole.max():.2f}, jobs {jobs:.1e}, rows {rows:.1e}", flush=True)
    for question, _ in PAIRS:
        off = (effects["float32", question] - effects["bfloat16", question]).abs().max()
        print(f"bfloat16 from float32, {question!r}: {off:.2g}")


if __name__ == "__main__":
    main()
