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
def hooked(module, hook):
    """`hook(inputs, output)` sees what the module returns, and what it returns is put in its place."""
    handle = module.register_forward_hook(lambda _, inputs, output: hook(inputs, output))
    try:
        yield
    finally:
        handle.remove()


def hidden_states(model, ids):
    """h_0..h_L, each [1, T, d]: the last without the final norm, which transformers would apply."""
    states = []
    with hooked(model.model.layers[-1], lambda inputs, output: states.append(output)), torch.no_grad():
        before = model.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states[:-1]
    return [*before, *states]


def relative_contribution(model, prompts):
    """Six curves [L], the means over all tokens; prompts: lists of token ids."""
    added, sums, n_tokens = {}, 0, 0
    layers = model.model.layers
    hooks = [(layer.self_attn, ("a", l)) for l, layer in enumerate(layers)]
    hooks += [(layer.mlp, ("m", l)) for l, layer in enumerate(layers)]
    for ids in prompts:
        handles = [
            module.register_forward_hook(
                lambda _, inputs, output, key=key: added.update({key: output[0] if key[0] == "a" else output})
            )
            for module, key in hooks
        ]
        states = hidden_states(model, ids)
        for handle in handles:
            handle.remove()
        rows = []
        for l, h in enumerate(states[:-1]):
            h, a, m = h[0].float(), added["a", l].view_as(h)[0].float(), added["m", l].view_as(h)[0].float()
            pairs = (a, h), (m, h + a), (a + m, h)
            ratios = [(x.norm(dim=-1) / base.norm(dim=-1).clamp_min(1e-6)).sum() for x, base in pairs]
            cosines = [F.cosine_similarity(x, base, dim=-1, eps=1e-6).sum() for x, base in pairs]
            rows.append(torch.stack(ratios + cosines))
        sums, n_tokens = sums + torch.stack(rows, 1), n_tokens + len(ids)
    names = ("rc_att", "rc_mlp", "rc_layer", "att_cos", "mlp_cos", "layer_cos")
    return dict(zip(names, sums / n_tokens, strict=True))


@torch.no_grad()
def logit_lens(model, prompts, k=5):
    """KL divergences and overlaps [L]: one pass with hidden states, which are unembedded layer by layer."""
    sums, n_tokens = 0, 0
    for ids in prompts:
        *states, last = (h[0] for h in hidden_states(model, ids))
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
    """Maxima `layer` [L, L] and `out` [L, 1], and the mean `kl` [L]; for each skipped block one batch
    with a row for every position t."""
    layers = model.model.layers
    effects, outputs, means = torch.zeros(len(layers), len(layers)), torch.zeros(len(layers), 1), []
    for ids, starts in zip(prompts, positions, strict=True):
        states = [h.float() for h in hidden_states(model, ids)]
        clean = [after - before for before, after in zip(states[:-1], states[1:], strict=True)]
        rows, starts = torch.tensor(ids).expand(len(starts), -1), torch.tensor(starts)[:, None]
        place = torch.arange(len(ids))
        skipped, measured = (place >= 1) & (place < starts), place >= starts
        log_y = model.lm_head(model.model.norm(states[-1].to(model.dtype)))[0].float().log_softmax(-1)
        log_y = log_y[place.expand(len(rows), -1)[measured]]  # of each measured token of each row
        y, of_prompt = log_y.exp(), []
        for s, layer in enumerate(layers):
            seen = []

            def skip(inputs, output, skipped=skipped):
                return torch.where(skipped[..., None], inputs[0], output)

            def note(inputs, output, seen=seen):
                seen.append(output.float() - inputs[0].float())

            handles = [layer.register_forward_hook(lambda _, inputs, output, skip=skip: skip(inputs, output))]
            handles += [x.register_forward_hook(lambda _, i, output, n=note: n(i, output)) for x in layers[s + 1 :]]
            last = model.model(rows, use_cache=False).last_hidden_state
            for handle in handles:
                handle.remove()
            for l, c_bar in enumerate(seen, start=s + 1):
                change = (c_bar - clean[l]).norm(dim=-1) / clean[l].norm(dim=-1).clamp_min(1e-6)
                effects[s, l] = torch.maximum(effects[s, l], (change * measured).max())
            log_y_bar = model.lm_head(last[measured]).float().log_softmax(-1)
            outputs[s] = torch.maximum(outputs[s], (log_y_bar.exp() - y).norm(dim=-1).max())
            of_prompt.append((y * (log_y - log_y_bar)).sum(-1).mean())
        means.append(torch.stack(of_prompt))
    return {"layer": effects, "out": outputs, "kl": torch.stack(means).mean(0)}


@torch.no_grad()
def residual_erasure(model, ids, span, baseline, layers=None):
    """`effect` [L + 1, T], or of some layers: batches with a row for each erased token; span: of the answer."""
    predicting = torch.arange(span[0] - 1, span[1] - 1)
    states = [hidden_states(model, prompt) for prompt in baseline]
    u = [torch.cat([h[0].float() for h in of_layer]).mean(0) for of_layer in zip(*states, strict=True)]
    y = model(torch.tensor([ids]), use_cache=False, logits_to_keep=predicting).logits.float().softmax(-1)
    effect = []
    for l in range(len(u)) if layers is None else layers:
        module, mean = model.model.layers[l - 1] if l else model.model.embed_tokens, u[l]
        row = []
        for tokens in torch.arange(len(ids)).split(ROWS):

            def erase(inputs, output, mean=mean, tokens=tokens):
                output = output.clone()
                output[torch.arange(len(tokens)), tokens] = mean.to(output.dtype)
                return output

            with hooked(module, erase):
                rows = torch.tensor(ids).expand(len(tokens), -1)
                y_bar = model(rows, use_cache=False, logits_to_keep=predicting).logits.float().softmax(-1)
            row.append((y_bar - y).norm(dim=-1).amax(1))
        effect.append(torch.cat(row))
    return {"effect": torch.stack(effect)}


def integrated_gradients(model, ids, span, blocks=None, steps=256):
    """`igrads` [L, T], or of some blocks, by the papers' left-end steps; the weights are frozen."""
    predicting = torch.arange(span[0] - 1, span[1] - 1)
    true = torch.tensor(ids[span[0] : span[1]])
    states, igrads = hidden_states(model, ids), []
    for l in range(len(states) - 1) if blocks is None else blocks:
        h = states[l + 1].float()
        b, total = h.mean(1, keepdim=True), 0
        for r in (torch.arange(steps, dtype=torch.float32) / steps).split(ROWS):
            x = (b + r[:, None, None] * (h - b)).requires_grad_()
            rows = torch.tensor(ids).expand(len(r), -1)
            with hooked(model.model.layers[l], lambda inputs, output, x=x: x.to(output.dtype)):
                logits = model(rows, use_cache=False, logits_to_keep=predicting).logits
            y = logits.float().softmax(-1)
            y[:, torch.arange(len(true)), true].sum().backward()
            total = total + (x.grad * (h - b)).sum((0, 2))
        igrads.append(total / steps)
    return {"igrads": torch.stack(igrads)}
