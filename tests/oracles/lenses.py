"""Translated lenses by their definitions: plain autograd, normal equations and gradient descent."""

import torch

from tests.oracles.streams import block_states, first, hooks, lens, places, replacing, run

SKIPPED = 16


def jacobian(model, ids):
    """A [L, d, d]: mean over t of the sum over t' of the derivatives of h_L[t'] by h_l[t], both without 16 and last."""
    h, _ = block_states(model, ids)
    blocks = places(model)[0]
    inside, result = slice(SKIPPED, len(ids) - 1), []
    for layer in range(len(blocks)):

        def summed(h_l, layer=layer):
            kept = []
            last = blocks[-1].register_forward_hook(lambda _, args, output: kept.append(first(output)))
            with hooks(replacing(model, layer, h_l[None]), last):
                run(model, ids)
            return kept[0][0, inside].sum(0)

        by_token = torch.autograd.functional.jacobian(summed, h[layer])  # [d, T, d]
        result.append(by_token[:, inside].mean(1))
    return torch.stack(result)


def translated(model, ids, A, b):
    """z [L + 1, T, V]: the model's logits of A_l h_l + b_l at each l, and its own."""
    h, logits = block_states(model, ids)
    return torch.stack([*(lens(model, x @ A_l.T + b_l) for x, A_l, b_l in zip(h, A, b, strict=False)), logits])


def kl_and_overlap(z):
    """KL(p_l ‖ y) and |top5(p_l) ∩ top5(y)| / 5 [L], means over tokens, of what `translated` returns."""
    *log_p, log_y = z.log_softmax(-1)
    kl = [(p.exp() * (p - log_y)).sum(-1).mean() for p in log_p]
    shared = [(p.topk(5).indices[:, :, None] == log_y.topk(5).indices[:, None]).sum((1, 2)) for p in log_p]
    return torch.stack(kl), torch.stack([n.double().mean() / 5 for n in shared])


def ridge(states, strength):
    """A and b of one layer in float64: normal equations of (h_L − h_l) on h_l, each token weighted by 1 / ‖h_L‖².

    states: [texts] of (h_l, h_L), each [n, d]; strength: λ in units of the mean eigenvalue of the centred moments.
    """
    x, y = (torch.cat(of_texts).double() for of_texts in zip(*states, strict=True))
    w = 1 / y.norm(dim=1, keepdim=True) ** 2
    mean_x, mean_y = (w * x).sum(0) / w.sum(), (w * (y - x)).sum(0) / w.sum()
    x, residual = x - mean_x, y - x - mean_y
    gram = x.T @ (w * x)
    penalty = strength * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    W = torch.linalg.solve(gram + penalty, x.T @ (w * residual)).T
    return torch.eye(len(W), dtype=torch.float64) + W, mean_y - W @ mean_x


def descended(states, strength, steps=4000):
    """The same A and b by gradient descent on the penalised squares, from the identity."""
    x, y = (torch.cat(of_texts).double() for of_texts in zip(*states, strict=True))
    w = 1 / y.norm(dim=1, keepdim=True) ** 2
    centred = x - (w * x).sum(0) / w.sum()
    penalty = strength * (centred.T @ (w * centred)).diagonal().mean()
    W, b = (torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in ((len(x.T),) * 2, (len(x.T),)))
    optimizer = torch.optim.LBFGS([W, b], max_iter=steps, tolerance_grad=1e-14, tolerance_change=0, history_size=50)

    def loss():
        optimizer.zero_grad()
        value = (w * (x + x @ W.T + b - y) ** 2).sum() + penalty * (W**2).sum()
        value.backward()
        return value

    optimizer.step(loss)
    return torch.eye(len(W)) + W.detach(), b.detach()
