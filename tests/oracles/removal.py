"""Removal by its definition: transformers' model with blocks deleted from its list, one after the other."""

import copy

import torch
from torch.nn.functional import log_softmax

from tests.oracles.orders import in_order
from tests.oracles.streams import block_states, first, hooks, norm, places, with_first


def without(model, removed):
    """A copy of the model, on the same weights, whose list of blocks and config's lists of layers lack these."""
    return in_order(model, [l for l in range(len(places(model)[0])) if l not in removed])


@torch.no_grad()
def _damage(model, shorter, input_ids):
    batch = torch.as_tensor(input_ids)[None]
    log_y, log_y_bar = (log_softmax(m(batch, use_cache=False).logits[0], -1) for m in (model, shorter))
    loss = (log_y - log_y_bar)[:-1].gather(-1, batch[0, 1:, None]).sum() / max(1, len(input_ids) - 1)
    kl = (log_y.exp() * (log_y - log_y_bar)).sum(-1).mean()
    return torch.stack([loss, kl, (log_y.argmax(-1) == log_y_bar.argmax(-1)).to(kl).mean()])


def block_removal(model, prompts, sizes):
    """Loss, KL and top-1 agreement of every s and n, and the scores of Gromov et al. and of ShortGPT."""
    n_blocks, damages, angles, influences = len(places(model)[0]), [], [], []
    for input_ids in prompts:
        h, _ = block_states(model, input_ids)
        damage = torch.full((3, len(sizes), n_blocks), torch.nan).to(h)
        angle = damage[0].clone()
        for row, n in enumerate(sizes):
            for s in range(n_blocks - n + 1):
                damage[:, row, s] = _damage(model, without(model, range(s, s + n)), input_ids)
                x, y = h[s, -1], h[s + n, -1]
                angle[row, s] = torch.arccos((x @ y / (norm(x) * norm(y))).clamp(-1, 1)) / torch.pi
        damages.append(damage)
        angles.append(angle)
        influences.append(1 - ((h[:-1] * h[1:]).sum(-1) / (norm(h[:-1]) * norm(h[1:]))).mean(-1))
    found = dict(zip(("removal_loss", "removal_kl", "removal_top1"), torch.stack(damages, dim=1), strict=True))
    found |= {"angular_distance": torch.stack(angles), "block_influence": torch.stack(influences)}
    return {key: value.mean(0) for key, value in found.items()}


def part_removal(model, prompts, part):
    """The order of single losses, and loss, KL and top-1 agreement with one more part removed each time."""
    all_blocks, attention, mlp, _ = places(model)

    def silent(_, args, output):
        return with_first(output, torch.zeros_like(first(output)))

    @torch.no_grad()
    def damage(removed):
        path = attention if part == "attention" else mlp
        rows = []
        for input_ids in prompts:
            clean = copy.deepcopy(model)
            with hooks(*(all_blocks[l].get_submodule(path).register_forward_hook(silent) for l in removed)):
                rows.append(_damage(clean, model, input_ids))
        return torch.stack(rows).mean(0)

    single = torch.stack([damage([l]) for l in range(len(all_blocks))])[:, 0]
    order = single.argsort().tolist()
    found = torch.stack([damage(order[: k + 1]) for k in range(len(order))], dim=1)
    return order, dict(zip(("removal_loss", "removal_kl", "removal_top1"), found, strict=True))
