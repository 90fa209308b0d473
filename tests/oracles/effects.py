"""Effects of skipping by their definitions: a loop around a full forward for every single skip."""

import random

import torch
from torch.nn.functional import log_softmax

from tests.oracles.answers import answer_span
from tests.oracles.streams import block_states, first, hooks, norm, places, replacing, with_first

TINY = 1e-6


def effect_positions(lengths):
    """For each prompt length the positions t of future mode, drawn by one generator through all prompts."""
    generator = random.Random(123)
    drawn = []
    for T in lengths:
        positions = list(range(8, T - 4, 8))
        generator.shuffle(positions)
        drawn.append(positions[:4])
    return drawn


@torch.no_grad()
def layer_effects(model, prompts, mode, positions=None, part="layer", skips=None):
    """Largest change of later contributions and of the output when a block, or its attention or MLP, is skipped;
    `mode` is "future", "all" or "remove". And the mean KL(y || y_bar).

    `positions`: one list of t for each prompt, instead of the drawn ones; `skips`: only these rows, the others are 0.
    """
    if positions is None:
        positions = effect_positions([len(input_ids) for input_ids in prompts])
    if mode == "future" and not any(positions):
        raise ValueError("no prompt has 13 tokens or more")
    n_blocks = len(places(model)[0])
    layers, out = torch.zeros(n_blocks, n_blocks), torch.zeros(n_blocks, 1)
    divergences = []
    for input_ids, drawn in zip(prompts, positions, strict=True):
        h, logits = block_states(model, input_ids)
        layers, out = layers.to(h), out.to(h)
        log_y = log_softmax(logits, -1)
        y = log_y.exp()
        T = len(input_ids)
        kl = [[] for _ in range(n_blocks)]
        for t in drawn if mode == "future" else [None]:
            skipped = {"future": range(1, t or 0), "all": range(1, T), "remove": range(T)}[mode]
            measured = range(t, T) if mode == "future" else range(T)
            for s in range(n_blocks) if skips is None else skips:
                h_bar, logits_bar = _skipping(model, input_ids, s, list(skipped), part)
                c, c_bar = h[1:] - h[:-1], h_bar[1:] - h_bar[:-1]
                change = norm(c - c_bar) / norm(c).clamp(min=TINY)
                log_y_bar = log_softmax(logits_bar, -1)
                layers[s] = layers[s].maximum(change[:, list(measured)].amax(dim=1))
                out[s, 0] = out[s, 0].maximum(norm(y - log_y_bar.exp())[list(measured)].max())
                kl[s] += (y * (log_y - log_y_bar)).sum(-1)[measured.start :].tolist()
        if mode != "future" or drawn:
            divergences.append([sum(x) / max(len(x), 1) for x in kl])
    return {f"max_{mode}_layer": layers, f"max_{mode}_out": out, f"{mode}_kl": torch.tensor(divergences).mean(dim=0)}


def difficulty_positions(spans):
    """For each (first, last + 1 of the answer's tokens, whether measured within it): the positions t."""
    generator, drawn = random.Random(123), []
    for first_token, end, within in spans:
        if not within:
            drawn.append([first_token - 1])
            continue
        A = end - first_token
        places_within = list(range(0, A - 4, 4))
        generator.shuffle(places_within)
        drawn.append([first_token + place for place in places_within[:4]] or [first_token])
    return drawn


def depth_by_difficulty(model, tokenizer, examples):
    """D [E, L, L] and o [E, L] of (level, question, answer, within)."""
    found = [answer_span(tokenizer, question, answer) for _, question, answer, _ in examples]
    positions = difficulty_positions([(*span, one[3]) for (_, span), one in zip(found, examples, strict=True)])
    effects = [
        layer_effects(model, [torch.tensor(ids)], "future", positions=[drawn])
        for (ids, _), drawn in zip(found, positions, strict=True)
    ]
    D = torch.stack([effect["max_future_layer"] for effect in effects])
    return D, torch.stack([effect["max_future_out"][:, 0] for effect in effects])


def _skipping(model, input_ids, s, tokens, part="layer"):
    """(h, logits) of a run in which block `s`, or its attention or MLP alone, adds nothing to `tokens`."""
    all_blocks, attention, mlp, _ = places(model)
    block = all_blocks[s]
    if part != "layer":

        def silent(_, args, output):
            hidden = first(output).clone()
            hidden.view(len(input_ids), -1)[tokens] = 0
            return with_first(output, hidden)

        with hooks(block.get_submodule(attention if part == "attention" else mlp).register_forward_hook(silent)):
            return block_states(model, input_ids)
    entered = []

    def entering(_, args, kwargs):
        entered.append((args[0] if args else kwargs["hidden_states"]).clone())

    def leaving(_, args, output):
        hidden = first(output).clone()
        hidden[:, tokens] = entered[-1][:, tokens]
        return with_first(output, hidden)

    pre = block.register_forward_pre_hook(entering, with_kwargs=True)
    with hooks(pre, block.register_forward_hook(leaving)):
        return block_states(model, input_ids)


@torch.no_grad()
def local_effects(model, prompts, mode, positions=None):
    """Largest change of what block l adds when it alone reads h_l − c_s at the skipped tokens: [L, L]."""
    if positions is None:
        positions = effect_positions([len(input_ids) for input_ids in prompts])
    blocks = places(model)[0]
    local = torch.zeros(len(blocks), len(blocks))
    for input_ids, drawn in zip(prompts, positions, strict=True):
        h, _ = block_states(model, input_ids)
        c, local, T = h[1:] - h[:-1], local.to(h), len(input_ids)
        for t in drawn if mode == "future" else [T]:
            for s in range(len(blocks)):
                for l in range(s + 1, len(blocks)):
                    without = h[l].clone()
                    without[1:t] -= c[s, 1:t]
                    with hooks(replacing(model, l, without[None])):
                        h_bar, _ = block_states(model, input_ids)
                    # what leaves block l less what was put in front of it
                    change = norm(h_bar[l + 1] - without - c[l]) / norm(c[l]).clamp(min=TINY)
                    measured = slice(t, T) if mode == "future" else slice(0, T)
                    local[s, l] = local[s, l].maximum(change[measured].max())
    return {f"max_{mode}_local": local}
