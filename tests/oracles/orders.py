"""Blocks in another order by its definition: transformers' model with a list of copied blocks in that order."""

import copy

import torch
from torch.nn.functional import log_softmax

from tests.oracles.streams import PLACES, run

OTHERS = {"gpt_neo": ("transformer.h",)}


def in_order(model, order):
    """A copy of the model, on the same weights, whose list has these blocks, a block that repeats once more each time.

    Masks belong to the block: config's lists of layers follow. `layer_idx` stays the block's own: it is where a cache
    would be, and what GPT-2 may scale attention by.
    """
    weights = {id(weight): weight for weight in (*model.parameters(), *model.buffers())}
    changed = copy.deepcopy(model, dict(weights))
    path = PLACES.get(model.config.model_type, OTHERS.get(model.config.model_type, ("model.layers",)))[0]
    parent, name = changed.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
    blocks = getattr(parent, name)
    setattr(parent, name, torch.nn.ModuleList(copy.deepcopy(blocks[l], dict(weights)) for l in order))
    for key in ("layer_types", "mlp_layer_types", "layers_block_type", "attention_layers"):
        if kinds := getattr(changed.config, key, None):
            setattr(changed.config, key, [kinds[l] for l in order])
    changed.config.num_hidden_layers = len(order)
    return changed


@torch.no_grad()
def damage(model, changed, prompts):
    """Loss, KL and top-1 agreement [3] of a changed model, means over tokens, then prompts."""
    of_prompts = []
    for input_ids in prompts:
        log_y, log_y_bar = (log_softmax(run(m, input_ids), -1) for m in (model, changed))
        true = torch.as_tensor(input_ids)[1:, None]
        loss = (log_y - log_y_bar)[:-1].gather(-1, true).sum() / max(1, len(true))
        kl = (log_y.exp() * (log_y - log_y_bar)).sum(-1).mean()
        of_prompts.append(torch.stack([loss, kl, (log_y.argmax(-1) == log_y_bar.argmax(-1)).to(kl).mean()]))
    return torch.stack(of_prompts).mean(0)


def block_orders(model, prompts, orders):
    """Loss, KL and top-1 agreement of every order [3, K]."""
    return torch.stack([damage(model, in_order(model, order), prompts) for order in orders], dim=1)


@torch.no_grad()
def ending_log_prob(model, context, ending):
    """Σ log p of the token ids `ending` after `context`."""
    log_p = run(model, context + ending).log_softmax(-1)[len(context) - 1 : -1]
    return log_p.gather(1, torch.tensor(ending)[:, None]).sum()
