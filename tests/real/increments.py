"""How far increments and gradients are from float32's integral: `python -m tests.real.increments` [model …].

A line per model and block: the largest error of a token relative to the largest attribution, in %, of gradients, of the
papers' 256 left ends and of increments in 4, 8 and 16 steps, in float32 and in bfloat16 (weights rounded from float32).
The truth of SmolLM2 is `tests.real.reference`'s, that of toys made by the same rule here. The sum of the papers;
minutes per block.
"""

import json
import sys

import torch

import depth_lib as dl
from depth_lib.data.prompts import ANSWER, QUESTION
from tests.calls import gradients_of_blocks
from tests.oracles import answer_span
from tests.real import reference

SMOL = "SmolLM2-135M-Instruct"
BLOCKS = {"toy-4l": range(4), "toy-8l": range(8), "toy-16l": range(0, 16, 3), SMOL: (25, 20, 12, 2)}
HOW = {"gradients": (None, "gradients"), "left ends": (256, "gradients")}
HOW |= {f"K = {k}": (k, "increments") for k in (4, 8, 16)}


def main(names):
    print("| model, block |", *(f"{name}, {dtype} |" for dtype in ("float32", "bfloat16") for name in HOW))
    for name in names or BLOCKS:
        models = [dl.load_model(name, dtype=dtype) for dtype in ("float32", "bfloat16")]
        models[0]._module.requires_grad_(False)
        ids, span = answer_span(models[0].tokenizer, QUESTION, ANSWER)
        kept = json.loads(reference.KEPT.read_text()) if name == SMOL else {}
        for l in BLOCKS[name]:
            truth = kept.get(str(l))
            if truth is None:
                truth = reference.integrated_gradients(models[0]._module, ids, list(range(*span)), l)
            truth = torch.tensor(truth, dtype=torch.float32)
            cells = [_off(llm, l, truth, *how) for llm in models for how in HOW.values()]
            print(f"| {name}, {l} |", *(f"{cell} |" for cell in cells), flush=True)


def _off(llm, l, truth, steps, method):
    """The true error and, in parentheses, the stated one, of which left ends have none."""
    found = gradients_of_blocks(llm, QUESTION, ANSWER, [l], steps=steps, method=method)
    off = (found["igrads"][0, : len(truth)] - truth).abs().max() / truth.abs().max()
    stated = f" ({100 * found['error'][0]:.2g})" if "error" in found else ""
    return f"{100 * off:.2g}{stated}"


if __name__ == "__main__":
    main(sys.argv[1:])
