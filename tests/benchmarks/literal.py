"""The probes as the published scripts run them: nnsight traces, one full forward pass for every single intervention.

What those scripts pay is kept on purpose: every pass runs from the embeddings to the logits of all tokens, residuals
and probabilities of whole prompts are copied to the CPU, the lens holds the logits of all blocks and one-hot matrices
over the vocabulary, integrated gradients takes 256 left-end steps (16 a pass) and fills a gradient for every weight.
Their slips (a dropped batch axis, a mean over features, an answer tokenised alone) are not kept, so that the numbers
can be compared. Only for families whose attention and MLP outputs are what is added.
"""

import nnsight
import torch
from torch.nn import functional as F

STEPS, STEPS_A_PASS = 256, 16


def _in_session(llm, probe, *args):
    with torch.no_grad():
        with llm.session():
            result = nnsight.save(probe(llm, *args))
    return result


def relative_contribution(llm, prompts):
    """Six curves [L]: norm ratios and cosines of what attention, MLP and block add."""
    return _in_session(llm, _relative_contribution, prompts)


def _relative_contribution(llm, prompts):
    totals, n_tokens = {}, 0
    for prompt in prompts:
        curves = {}
        with llm.trace(prompt):
            for layer in llm.model.layers:
                h = layer.input.detach()
                a = layer.self_attn.output[0].detach()
                read = h + a
                m = layer.mlp.output.detach()
                change = layer.output.detach() - h
                for name, added, base in (("att", a, h), ("mlp", m, read), ("layer", change, h)):
                    ratio = added.norm(dim=-1).float() / base.norm(dim=-1).float().clamp(min=1e-6)
                    cosine = F.cosine_similarity(added, base, dim=-1, eps=1e-6)
                    curves.setdefault(f"rc_{name}", []).append(ratio.sum(1).cpu())
                    curves.setdefault(f"{name}_cos", []).append(cosine.sum(1).cpu().float())
            n_tokens += llm.output.logits.shape[1]
        for key, curve in curves.items():
            totals[key] = totals.get(key, 0) + torch.cat(curve)
    return {key: total / n_tokens for key, total in totals.items()}


def logit_lens(llm, prompts, k=5):
    """`res_kl_divs` and `res_overlaps` [L] from the logits of all blocks at once, overlaps from one-hot products."""
    return _in_session(llm, _logit_lens, prompts, k)


def _logit_lens(llm, prompts, k):
    kl_total, overlap_total, n_tokens = 0, 0, 0
    for prompt in prompts:
        layer_logits = []
        with llm.trace(prompt):
            for layer in llm.model.layers:
                layer_logits.append(llm.lm_head(llm.model.norm(layer.input)).detach().float())
            logits = llm.output.logits
        log_y = logits.float().log_softmax(-1)
        vocabulary = log_y.shape[-1]
        top_y = F.one_hot(log_y.topk(k, dim=-1).indices, vocabulary).sum(-2)
        kl, overlap = [], []
        for l in range(len(layer_logits)):
            log_p = layer_logits[l].log_softmax(-1)
            kl.append((log_p.exp() * (log_p - log_y)).sum().cpu())
            top_p = F.one_hot(log_p.topk(k, dim=-1).indices, vocabulary).sum(-2)
            overlap.append((top_p.unsqueeze(-2).float() @ top_y.unsqueeze(-1).float() / k).sum().cpu())
        kl_total, overlap_total = kl_total + torch.stack(kl), overlap_total + torch.stack(overlap)
        n_tokens += logits.shape[1]
    return {"res_kl_divs": kl_total / n_tokens, "res_overlaps": overlap_total / n_tokens}


def layer_effects(llm, prompts, positions):
    """`layer` [L, L] and `out` [L, 1], maxima over prompts and positions."""
    return _in_session(llm, _layer_effects, prompts, positions)


def _layer_effects(llm, prompts, positions):
    layers, out = torch.zeros(1), torch.zeros(1)
    for prompt, starts in zip(prompts, positions, strict=True):
        clean = []
        with llm.trace(prompt):
            for layer in llm.model.layers:
                h = layer.input.detach().cpu().float()
                clean.append(layer.output.detach().cpu().float() - h)
            y = llm.output.logits.detach().float().softmax(-1).cpu()
        c = torch.cat(clean)
        for t in starts:
            rows, out_rows = [], []
            for skipped in range(len(llm.model.layers)):
                changes, out_change = _skip(llm, prompt, skipped, t, c, y)
                rows.append(changes)
                out_rows.append(out_change)
            layers, out = torch.maximum(layers, torch.stack(rows)), torch.maximum(out, torch.stack(out_rows))
    return {"layer": layers, "out": out}


def _skip(llm, prompt, skipped, t, c, y):
    """Changes of every contribution [L] and of the output [1] in one forward pass that skips one block."""
    with llm.trace(prompt):
        changed = []
        for i, layer in enumerate(llm.model.layers):
            h = layer.input
            if i == skipped:
                computed = layer.output
                layer.output = torch.cat([computed[:, :1], h[:, 1:t], computed[:, t:]], dim=1)
            changed.append(layer.output.detach().cpu().float() - h.detach().cpu().float())
        c_bar = torch.cat(changed)
        y_bar = llm.output.logits.detach().float().softmax(-1).cpu()
        change = (c[:, t:] - c_bar[:, t:]).norm(dim=-1) / c[:, t:].norm(dim=-1).clamp(min=1e-6)
        changes = change.max(dim=-1).values
        out_change = (y_bar[:, t:] - y[:, t:]).norm(dim=-1).max(dim=-1).values
    return changes, out_change


def _mean_residuals(llm, baseline_prompts):
    n_layers, n_tokens = len(llm.model.layers), 0
    sums = [0] * (n_layers + 1)
    for baseline in baseline_prompts:
        with llm.trace(baseline):
            sums[0] += llm.model.layers[0].input[0].detach().sum(dim=0).cpu().float()
            for l in range(n_layers):
                sums[l + 1] += llm.model.layers[l].output[0].detach().sum(dim=0).cpu().float()
            n_tokens += llm.output.logits.shape[1]
    return [total / n_tokens for total in sums]


def residual_erasure(llm, prompt, span, baseline_prompts, layers=None):
    """`effect` [rows, T], all L + 1 rows or those in `layers`; span: (first, last + 1) of the answer's tokens."""
    layers = range(len(llm.model.layers) + 1) if layers is None else layers
    return {"effect": _in_session(llm, _residual_erasure, prompt, span, baseline_prompts, layers)}


def _residual_erasure(llm, prompt, span, baseline_prompts, layers):
    u = _mean_residuals(llm, baseline_prompts)
    predicting = slice(span[0] - 1, span[1] - 1)
    with llm.trace(prompt):
        logits = llm.output.logits.detach()
    y, n_tokens = logits[:, predicting].float().softmax(-1), logits.shape[1]
    rows = []
    for l in layers:
        row = []
        for t in range(n_tokens):
            with llm.trace(prompt):
                if l == 0:
                    llm.model.layers[0].input[:, t] = u[0].to(logits)
                else:
                    llm.model.layers[l - 1].output[:, t] = u[l].to(logits)
                y_bar = llm.output.logits[:, predicting].detach().float().softmax(-1)
                row.append((y - y_bar).norm(dim=-1).max(dim=1).values.cpu())
        rows.append(torch.cat(row))
    return torch.stack(rows)


def integrated_gradients(llm, prompt, span, layers=None):
    """`igrads` [rows, T] by 256 left-end steps, 16 a pass, every weight with a gradient; all L rows or `layers`."""
    layers = range(len(llm.model.layers)) if layers is None else layers
    module = llm._module.requires_grad_(True)
    try:
        with llm.session():
            igrads = nnsight.save(_integrated_gradients(llm, prompt, span, layers))
    finally:
        module.requires_grad_(False)
        module.zero_grad(set_to_none=True)
    return {"igrads": igrads}


def _integrated_gradients(llm, prompt, span, layers):
    rows = []
    for l in layers:
        total = 0
        for begin in range(0, STEPS, STEPS_A_PASS):
            with llm.trace(prompt):
                ids = llm.model.embed_tokens.input[0]
                h = llm.model.layers[l].output.clone().detach()
                b = h.mean(dim=1, keepdim=True)
                r = torch.arange(begin, begin + STEPS_A_PASS, device=h.device, dtype=h.dtype)[:, None, None] / STEPS
                target = (h * r + b * (1 - r)).requires_grad_()
                llm.model.layers[l].output = target
                y = llm.output.logits[:, :-1].softmax(-1)
                true = y.gather(-1, ids[1:].repeat(len(y), 1).unsqueeze(-1))
                torch.autograd.backward(true[:, span[0] - 1 : span[1] - 1].sum())
                total = total + (target.grad * (h - b)).detach().cpu().float().sum(0)
        rows.append(total.sum(-1) / STEPS)
    return torch.stack(rows)
