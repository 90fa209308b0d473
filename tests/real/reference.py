"""True integrated gradients of SmolLM2-135M-Instruct on the papers' sum: `python -m tests.real.reference` [blocks].

On some blocks F jumps by 0.1 within a thousandth of the path, where neither 4,096 left-end steps nor 1,024 Gauss nodes
have converged. So panels of 16 Gauss–Legendre nodes are halved until both halves together equal the whole and each
equals F's difference over it. All 30 blocks take about 20 minutes on one core; what comes out is kept beside this file.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

KEPT = Path(__file__).with_name("integrated_gradients.json")


class Along:
    """F and its slopes along the path from the mean residual behind a block to the residuals themselves."""

    def __init__(self, model, ids, places, block):
        self.model, self.behind, self.end = model.model, model.model.layers[block + 1 :], places[-1]
        self.unembed, self.true = model.lm_head, [ids[place] for place in places]
        self.predicting = [place - 1 for place in places]
        kept = []
        hook = model.model.layers[block].register_forward_hook(lambda _, args, h: kept.append(h))
        with torch.no_grad():
            model(torch.tensor([ids]), use_cache=False)
        hook.remove()
        h = kept[0][0]
        self.b, self.step = h.mean(0), (h - h.mean(0))[: self.end]
        self.positions = torch.arange(self.end)[None]
        self.rotary = model.model.rotary_emb(h[None], self.positions)

    def _f(self, x):
        for layer in self.behind:
            x = layer(x, position_embeddings=self.rotary, position_ids=self.positions)
        y = self.unembed(self.model.norm(x[:, self.predicting])).softmax(-1)
        return sum(y[:, k, token] for k, token in enumerate(self.true))

    def f(self, points):
        """F at each point, a list."""
        with torch.no_grad():
            r = torch.tensor(points, dtype=torch.float32)[:, None, None]
            return self._f(self.b + r * self.step).tolist()

    def slopes(self, points):
        """Σ_d (h − b) · ∂F/∂h [R, T'] as float64 array."""
        pieces = []
        for r in torch.tensor(points, dtype=torch.float32).split(32):
            x = (self.b + r[:, None, None] * self.step).requires_grad_()
            (gradient,) = torch.autograd.grad(self._f(x).sum(), x)
            pieces.append((gradient * self.step).sum(-1).double())
        return torch.cat(pieces).numpy()


def integrated_gradients(model, ids, places, block, tolerance=2e-4):
    """igrads [T'] of one block, each panel true to `tolerance` as its halves and F tell."""
    path = Along(model, ids, places, block)
    nodes, weights = np.polynomial.legendre.leggauss(16)

    def integral(start, end):
        points = start + (end - start) * (nodes + 1) / 2
        return (end - start) / 2 * weights @ path.slopes(points.tolist())

    def halved(start, end, whole, f_start, f_end):
        middle = (start + end) / 2
        (f_middle,) = path.f([middle])
        left, right = integral(start, middle), integral(middle, end)
        off = [abs(left.sum() - (f_middle - f_start)), abs(right.sum() - (f_end - f_middle))]
        if (np.abs(left + right - whole).max() < tolerance and max(off) < tolerance / 2) or end - start < 2**-14:
            return left + right
        return halved(start, middle, left, f_start, f_middle) + halved(middle, end, right, f_middle, f_end)

    ends = np.linspace(0, 1, 5).tolist()
    f = path.f(ends)
    return sum(
        halved(a, b, integral(a, b), *f[k : k + 2]) for k, (a, b) in enumerate(zip(ends[:-1], ends[1:], strict=True))
    )


def main(blocks):
    import depth_lib as dl
    from depth_lib.data.prompts import ANSWER, QUESTION
    from tests.oracles import answer_span

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
