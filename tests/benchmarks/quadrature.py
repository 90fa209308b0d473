"""How many gradients an integral over the path needs, whatever rule a probe uses."""

import numpy as np
import torch

from tests.oracles.streams import block_states


def fewest_nodes(llm, ids, span, tolerance=1e-3, finest=512):
    """For each block the nodes of the coarsest Gauss–Legendre rule (8, 16, 32, …) that meets completeness.

    That is |Σ igrads − (F(h) − F(b))| ≤ tolerance · |F(h) − F(b)|; in half precision rounding alone is more than that,
    and no number of nodes lessens it. ids: tokens of question and answer; span: (first, last + 1) of the answer's.
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

    with torch.no_grad():
        residuals = block_states(model, input_ids[0])[0].float()
    for block, h in zip(model.model.layers, residuals[1:, None], strict=True):
        b = h.mean(1, keepdim=True)
        with torch.no_grad():
            start, end = F(block, torch.cat([b.expand_as(h), h])).tolist()
        n = 4
        while n < finest:
            n *= 2
            x, w = np.polynomial.legendre.leggauss(n)
            r, weights = (torch.tensor(v, dtype=torch.float32, device=h.device) for v in ((x + 1) / 2, w / 2))
            rows = (b + r[:, None, None] * (h - b)).requires_grad_()
            (gradient,) = torch.autograd.grad(F(block, rows).sum(), rows)
            integral = (weights * (gradient * (h - b)).sum((1, 2))).sum().item()
            if abs(integral - (end - start)) <= tolerance * abs(end - start):
                break
        nodes.append(n)
    return nodes
