"""The five probes as one writes them with transformers and forward hooks alone: `model` is the plain module.

What somebody who knows PyTorch does without being told: no gradients where none are needed, logits only where they are
read, several interventions in one batch. Every pass still runs from the embeddings on, since hooks can replace what a
block returns but not skip it. For families of Llama's layout, whose blocks add what attention and MLP return.
"""

from contextlib import contextmanager

import torch
from torch.nn import functional as F

ROWS = 32  # of a batch: twice as many are no faster on a CPU


@contextmanager
def hooked(modules, hook):
    """`hook(inputs, output)` sees what the modules return, and what it returns is put in its place."""
    handles = [module.register_forward_hook(lambda _, inputs, output: hook(inputs, output)) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def hidden_states(model, ids):
    """h_0..h_L [L + 1, T, d]: the last without the final norm, which transformers would apply."""
    last = []
    with hooked(model.model.layers[-1:], lambda inputs, output: last.append(output)), torch.no_grad():
        before = model.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states[:-1]
    return torch.cat([*before, *last])


def relative_contribution(model, prompts):
    """Six curves [L], the means over all tokens; prompts: lists of token ids."""
    sums, n_tokens, layers = 0, 0, model.model.layers
    for ids in prompts:
        attended, computed = [], []
        with (
            hooked([layer.self_attn for layer in layers], lambda inputs, output, kept=attended: kept.append(output[0])),
            hooked([layer.mlp for layer in layers], lambda inputs, output, kept=computed: kept.append(output)),
        ):
            h = hidden_states(model, ids)[:-1].float()
        a, m = torch.cat(attended).float(), torch.cat(computed).float()
        pairs = (a, h), (m, h + a), (a + m, h)
        ratios = [(x.norm(dim=-1) / base.norm(dim=-1).clamp_min(1e-6)).sum(1) for x, base in pairs]
        cosines = [F.cosine_similarity(x, base, dim=-1, eps=1e-6).sum(1) for x, base in pairs]
        sums, n_tokens = sums + torch.stack(ratios + cosines), n_tokens + len(ids)
    names = ("rc_att", "rc_mlp", "rc_layer", "att_cos", "mlp_cos", "layer_cos")
    return dict(zip(names, sums / n_tokens, strict=True))


@torch.no_grad()
def logit_lens(model, prompts, k=5):
    """KL divergences and overlaps [L]: one pass with hidden states, which are unembedded layer by layer."""
    sums, n_tokens = 0, 0
    for ids in prompts:
        *states, last = hidden_states(model, ids)
        log_y = model.lm_head(model.model.norm(last)).float().log_softmax(-1)
        top_y, rows = log_y.topk(k).indices, []
        for h in states:
            log_p = model.lm_head(model.model.norm(h)).float().log_softmax(-1)
            kl = (log_p.exp() * (log_p - log_y)).sum(-1)
            overlap = (log_p.topk(k).indices[:, :, None] == top_y[:, None]).sum((1, 2)) / k
            rows.append(torch.stack([kl.sum(), overlap.sum()]))
        sums, n_tokens = sums + torch.stack(rows, 1), n_tokens + len(ids)
    return dict(zip(("res_kl_divs", "res_overlaps"), sums / n_tokens, strict=True))


@torch.no_grad()
def layer_effects(model, prompts, positions):
    """Maxima for later layers [L, L] and the output [L, 1], and the mean KL divergence [L]; for each skipped block one
    batch with a row for every position t."""
    layers = model.model.layers
    effects, outputs = torch.zeros(len(layers), len(layers)), torch.zeros(len(layers), 1)
    divergences = torch.zeros(len(prompts), len(layers))
    for p, (ids, starts) in enumerate(zip(prompts, positions, strict=True)):
        states = hidden_states(model, ids)
        clean = states.float().diff(dim=0)
        rows, starts = torch.tensor(ids).expand(len(starts), -1), torch.tensor(starts)[:, None]
        place = torch.arange(len(ids))
        skipped, measured = (place >= 1) & (place < starts), place >= starts
        log_y = model.lm_head(model.model.norm(states[-1])).float().log_softmax(-1)
        log_y = log_y[place.expand(len(rows), -1)[measured]]  # of each measured token of each row
        for s in range(len(layers)):
            added = []

            def skip(inputs, output, skipped=skipped):
                return torch.where(skipped[..., None], inputs[0], output)

            def note(inputs, output, added=added):
                added.append(output.float() - inputs[0].float())

            with hooked(layers[s : s + 1], skip), hooked(layers[s + 1 :], note):
                last = model.model(rows, use_cache=False).last_hidden_state
            for l, c_bar in enumerate(added, start=s + 1):
                change = (c_bar - clean[l]).norm(dim=-1) / clean[l].norm(dim=-1).clamp_min(1e-6)
                effects[s, l] = torch.maximum(effects[s, l], (change * measured).max())
            log_y_bar = model.lm_head(last[measured]).float().log_softmax(-1)
            outputs[s] = torch.maximum(outputs[s], (log_y_bar.exp() - log_y.exp()).norm(dim=-1).max())
            divergences[p, s] = (log_y.exp() * (log_y - log_y_bar)).sum(-1).mean()
    return {"max_future_layer": effects, "max_future_out": outputs, "future_kl": divergences.mean(0)}


@torch.no_grad()
def residual_erasure(model, ids, span, baseline, layers=None):
    """Effects [L + 1, T], or of some layers: batches with a row for each erased token; span: of the answer."""
    predicting = torch.arange(span[0] - 1, span[1] - 1)
    u = torch.cat([hidden_states(model, prompt) for prompt in baseline], dim=1).float().mean(1)
    y = model(torch.tensor([ids]), use_cache=False, logits_to_keep=predicting).logits.float().softmax(-1)
    modules, effects = [model.model.embed_tokens, *model.model.layers], []
    for l in range(len(u)) if layers is None else layers:
        row = []
        for tokens in torch.arange(len(ids)).split(ROWS):

            def erase(inputs, output, mean=u[l], tokens=tokens):
                output = output.clone()
                output[torch.arange(len(tokens)), tokens] = mean.to(output.dtype)
                return output

            with hooked([modules[l]], erase):
                rows = torch.tensor(ids).expand(len(tokens), -1)
                y_bar = model(rows, use_cache=False, logits_to_keep=predicting).logits.float().softmax(-1)
            row.append((y_bar - y).norm(dim=-1).amax(1))
        effects.append(torch.cat(row))
    return {"erasure_effect": torch.stack(effects)}


def integrated_gradients(model, ids, span, blocks=None, steps=256):
    """`igrads` [L, T], or of some blocks, by the papers' left-end steps; the weights are frozen."""
    predicting = torch.arange(span[0] - 1, span[1] - 1)
    true = torch.tensor(ids[span[0] : span[1]])
    states, igrads = hidden_states(model, ids).float(), []
    for l in range(len(states) - 1) if blocks is None else blocks:
        h = states[l + 1]
        b, total = h.mean(0), 0
        for r in (torch.arange(steps, dtype=torch.float32) / steps).split(ROWS):
            x = (b + r[:, None, None] * (h - b)).requires_grad_()
            rows = torch.tensor(ids).expand(len(r), -1)
            with hooked([model.model.layers[l]], lambda inputs, output, x=x: x.to(output.dtype)):
                logits = model(rows, use_cache=False, logits_to_keep=predicting).logits
            y = logits.float().softmax(-1)
            y[:, torch.arange(len(true)), true].sum().backward()
            total = total + (x.grad * (h - b)).sum((0, 2))
        igrads.append(total / steps)
    return {"igrads": torch.stack(igrads)}
