"""True integrated gradients of SmolLM2-135M-Instruct on the papers' sum: `python -m tests.real.reference` [blocks].

On some blocks F jumps by 0.1 within a thousandth of the path, where neither 4,096 left-end steps nor 1,024 Gauss nodes
have converged. So panels of 16 Gauss–Legendre nodes are halved until both halves together equal the whole and each
equals F's difference over it. All 30 blocks take about 20 minutes on one core; what comes out is kept beside this file.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import depth_lib as dl
from depth_lib.data.prompts import ANSWER, QUESTION
from tests.oracles import answer_span
from tests.oracles.removal import without
from tests.oracles.streams import block_states

KEPT = Path(__file__).with_name("integrated_gradients.json")


def integrated_gradients(model, ids, places, block, tolerance=2e-4):
    """igrads [T'] of one block, each panel true to `tolerance` as its halves and F tell."""
    h = block_states(model, ids)[0][block + 1].detach()
    b, step = h.mean(0), (h - h.mean(0))[: places[-1]]
    behind, predicting = without(model, range(block + 1)), torch.tensor(places) - 1
    nodes, weights = np.polynomial.legendre.leggauss(16)

    def F(x):
        y = behind(inputs_embeds=x, use_cache=False, logits_to_keep=predicting).logits.softmax(-1)
        return sum(y[:, k, ids[place]] for k, place in enumerate(places))

    def at(point):
        with torch.no_grad():
            return F((b + point * step)[None]).item()

    def integral(start, end):
        points = torch.tensor(start + (end - start) * (nodes + 1) / 2, dtype=torch.float32)
        x = (b + points[:, None, None] * step).requires_grad_()
        (gradient,) = torch.autograd.grad(F(x).sum(), x)
        return (end - start) / 2 * weights @ (gradient * step).sum(-1).double().numpy()

    def halved(start, end, whole, f_start, f_end):
        middle = (start + end) / 2
        f_middle, left, right = at(middle), integral(start, middle), integral(middle, end)
        off = [abs(left.sum() - (f_middle - f_start)), abs(right.sum() - (f_end - f_middle))]
        if (np.abs(left + right - whole).max() < tolerance and max(off) < tolerance / 2) or end - start < 2**-14:
            return left + right
        return halved(start, middle, left, f_start, f_middle) + halved(middle, end, right, f_middle, f_end)

    panels = pairwise(np.linspace(0, 1, 5).tolist())
    return sum(halved(start, end, integral(start, end), at(start), at(end)) for start, end in panels)


def main(blocks):
    llm = dl.load_model("SmolLM2-135M-Instruct")
    llm._module.requires_grad_(False)
    ids, span = answer_span(llm.tokenizer, QUESTION, ANSWER)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for block in blocks or range(30):
        kept[str(block)] = [round(x, 6) for x in integrated_gradients(llm._module, ids, list(range(*span)), block)]
        lines = [f'"{key}": {json.dumps(kept[key])}' for key in sorted(kept, key=int)]
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main([int(block) for block in sys.argv[1:]])
