"""How many gradients an integral over the path needs, whatever rule a probe uses."""

import numpy as np
import torch

from tests.oracles.streams import block_states


def fewest_nodes(llm, ids, span, tolerance=0.01, finest=256):
    """For each block the nodes of the coarsest Gauss–Legendre rule (8, 16, 32, …, `finest`) that is good enough.

    That is: no token's attribution differs from the next finer rule's by more than tolerance · the largest; in half
    precision rounding alone is more than that, and no number of nodes lessens it. ids: tokens of question and answer;
    span: (first, last + 1) of the answer's.
    """
    tolerance = max(tolerance, 4 * torch.finfo(llm.dtype).eps)
    model, nodes = llm._module, []
    input_ids = torch.tensor([ids], device=model.device)
    predicting = torch.arange(span[0] - 1, span[1] - 1, device=model.device)
    true = input_ids[:, span[0] : span[1], None]

    def F(block, rows):
        """F [R] when `rows` [R, T, d] leave the block."""
        hook = block.register_forward_hook(lambda module, arguments, output: rows.to(output.dtype))
        try:
            logits = model(input_ids=input_ids, use_cache=False, logits_to_keep=predicting).logits
        finally:
            hook.remove()
        return logits.float().softmax(-1).gather(-1, true.expand(len(rows), -1, -1)).sum((1, 2))

    def igrads(block, h, n):
        """Attributions [T] of the residuals h [1, T, d] that leave the block, with n nodes, 32 a pass."""
        x, w = np.polynomial.legendre.leggauss(n)
        b, total = h.mean(1, keepdim=True), 0
        for some, weights in zip(torch.tensor((x + 1) / 2).split(32), torch.tensor(w / 2).split(32), strict=True):
            r, weights = (v.to(h)[:, None, None] for v in (some, weights))
            rows = (b + r * (h - b)).requires_grad_()
            (gradient,) = torch.autograd.grad(F(block, rows).sum(), rows)
            total = total + (weights * gradient * (h - b)).sum((0, 2))
        return total

    with torch.no_grad():
        residuals = block_states(model, input_ids[0])[0].float()
    for block, h in zip(model.model.layers, residuals[1:, None], strict=True):
        n, found = 8, igrads(block, h, 8)
        while n < finest:
            finer = igrads(block, h, 2 * n)
            if (finer - found).abs().max() <= tolerance * finer.abs().max():
                break
            n, found = 2 * n, finer
        nodes.append(n)
    return nodes
