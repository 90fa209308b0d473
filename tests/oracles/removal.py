"""Removal by its definition: transformers' model with blocks deleted from its list, one after the other."""

import torch

from tests.oracles.orders import damage, in_order
from tests.oracles.streams import block_states, first, hooks, norm, places, with_first

KEYS = ("removal_loss", "removal_kl", "removal_top1")


def without(model, removed):
    """A copy of the model, on the same weights, whose list of blocks and config's lists of layers lack these."""
    return in_order(model, [l for l in range(len(places(model)[0])) if l not in removed])


def block_removal(model, prompts, sizes):
    """Loss, KL and top-1 agreement of every s and n, and the scores of Gromov et al. and of ShortGPT."""
    n_blocks = len(places(model)[0])
    damages, angles = torch.full((3, len(sizes), n_blocks), torch.nan), torch.full((len(sizes), n_blocks), torch.nan)
    with torch.no_grad():
        states = [block_states(model, input_ids)[0] for input_ids in prompts]
    for row, n in enumerate(sizes):
        for s in range(n_blocks - n + 1):
            damages[:, row, s] = damage(model, without(model, range(s, s + n)), prompts)
            cosines = torch.stack([_cosine(h[s, -1], h[s + n, -1]) for h in states])
            angles[row, s] = cosines.clamp(-1, 1).arccos().mean() / torch.pi
    influence = torch.stack([1 - _cosine(h[:-1], h[1:]).mean(-1) for h in states]).mean(0)
    return dict(zip(KEYS, damages, strict=True)) | {"angular_distance": angles, "block_influence": influence}


def _cosine(x, y):
    return (x * y).sum(-1) / (norm(x) * norm(y))


def part_removal(model, prompts, part):
    """The order of single losses, and loss, KL and top-1 agreement with one more part removed each time."""
    all_blocks, *paths, _ = places(model)
    shorter, silenced = in_order(model, range(len(all_blocks))), []
    parts = [block.get_submodule(paths[part == "mlp"]) for block in places(shorter)[0]]

    def silent(module, args, output):
        return with_first(output, torch.zeros_like(first(output))) if module in silenced else output

    def of_removed(removed):
        silenced[:] = [parts[l] for l in removed]
        return damage(model, shorter, prompts)

    with hooks(*(module.register_forward_hook(silent) for module in parts)):
        order = torch.stack([of_removed([l])[0] for l in range(len(parts))]).argsort().tolist()
        found = torch.stack([of_removed(order[: k + 1]) for k in range(len(order))], dim=1)
    return order, dict(zip(KEYS, found, strict=True))
