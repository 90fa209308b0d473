"""The probes as the published scripts run them: nnsight traces, one full forward pass for every single intervention.

What those scripts pay is kept on purpose: every pass runs from the embeddings to the logits of all tokens, residuals
and probabilities of whole prompts are copied to the CPU, the lens holds the logits of all blocks and one-hot matrices
over the vocabulary, integrated gradients takes 256 left-end steps (16 a pass) and fills a gradient for every weight.
Their slips (a dropped batch axis, a mean over features, an answer tokenised alone) are not kept, so that the numbers
can be compared. Only for families whose attention and MLP outputs are what is added.
"""

from functools import wraps

import nnsight
import torch
from torch.nn import functional as F

STEPS, STEPS_A_PASS = 256, 16


def in_session(probe):
    """The probe with all of its traces in one session."""

    @wraps(probe)
    def run(llm, *args):
        with llm.session():
            result = nnsight.save(probe(llm, *args))
        return result

    return run


def block_output(layer):
    return layer.output


@torch.no_grad()
@in_session
def relative_contribution(llm, prompts, read=block_output):
    """Six curves [L]: norm ratios and cosines of what attention, MLP and block add."""
    totals, n_tokens = {}, 0
    for prompt in prompts:
        curves = {}
        with llm.trace(prompt):
            for layer in llm.model.layers:
                h = layer.input.detach()
                a = layer.self_attn.output[0].detach()
                m = layer.mlp.output.detach()
                after = read(layer).detach()
                for name, added, base in (("att", a, h), ("mlp", m, h + a), ("layer", after - h, h)):
                    ratio = added.norm(dim=-1).float() / base.norm(dim=-1).float().clamp(min=1e-6)
                    cosine = F.cosine_similarity(added, base, dim=-1, eps=1e-6)
                    curves.setdefault(f"rc_{name}", []).append(ratio.sum(1).cpu())
                    curves.setdefault(f"{name}_cos", []).append(cosine.sum(1).cpu().float())
            n_tokens += after.shape[1]
        for key, curve in curves.items():
            totals[key] = totals.get(key, 0) + torch.cat(curve)
    return {key: total / n_tokens for key, total in totals.items()}


@torch.no_grad()
@in_session
def logit_lens(llm, prompts, k=5):
    """`res_kl_divs` and `res_overlaps` [L] from the logits of all blocks at once, overlaps from one-hot products."""
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


@torch.no_grad()
@in_session
def layer_effects(llm, prompts, positions, read=block_output):
    """Maxima over prompts and positions, for later layers [L, L] and the output [L, 1]."""
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
                changes, out_change = _skip(llm, prompt, skipped, t, c, y, read)
                rows.append(changes)
                out_rows.append(out_change)
            layers, out = torch.maximum(layers, torch.stack(rows)), torch.maximum(out, torch.stack(out_rows))
    return {"max_future_layer": layers, "max_future_out": out}


def _skip(llm, prompt, skipped, t, c, y, read):
    """Changes of every contribution [L] and of the output [1] in one forward pass that skips one block."""
    with llm.trace(prompt):
        changed = []
        for i, layer in enumerate(llm.model.layers):
            h = layer.input
            if i == skipped:
                computed = read(layer)
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


@torch.no_grad()
@in_session
def residual_erasure(llm, prompt, span, baseline_prompts, layers=None):
    """Effects [rows, T], all L + 1 rows or those in `layers`; span: (first, last + 1) of the answer's tokens."""
    u = _mean_residuals(llm, baseline_prompts)
    predicting = slice(span[0] - 1, span[1] - 1)
    with llm.trace(prompt):
        logits = llm.output.logits.detach()
    y, n_tokens = logits[:, predicting].float().softmax(-1), logits.shape[1]
    rows = []
    for l in range(len(llm.model.layers) + 1) if layers is None else layers:
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
    return {"erasure_effect": torch.stack(rows)}


@in_session
def integrated_gradients(llm, prompt, span, layers=None):
    """`igrads` [rows, T] by 256 left-end steps, 16 a pass, every weight with a gradient; all L rows or `layers`."""
    rows, module = [], llm._module.requires_grad_(True)
    for l in range(len(llm.model.layers)) if layers is None else layers:
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
    module.requires_grad_(False)
    module.zero_grad(set_to_none=True)
    return {"igrads": torch.stack(rows)}
