"""The five probes by their definitions: a loop around a full forward for every single intervention."""

import random

import numpy as np
import torch
from torch.nn.functional import cosine_similarity, log_softmax, softmax

from tests.oracles.streams import block_states, first, hooks, is_parallel, lens, places, residuals, run, with_first

TINY = 1e-6


def norm(x):
    return x.norm(dim=-1)


@torch.no_grad()
def relative_contribution(model, prompts):
    """Norm ratios and cosines of what attention, MLP and block add, mean over all tokens of `prompts`, lists of ids."""
    sums, n_tokens, maxima, last = {}, 0, {}, []
    for input_ids in prompts:
        h, a, m, _ = residuals(model, input_ids)
        before = h[:-1]
        mlp_reads = before if is_parallel(model) else before + a
        per_token = {
            "rc_att": norm(a) / norm(before).clamp(min=TINY),
            "rc_mlp": norm(m) / norm(mlp_reads).clamp(min=TINY),
            "rc_layer": norm(a + m) / norm(before).clamp(min=TINY),
            "att_cos": cosine_similarity(a, before, dim=-1, eps=TINY),
            "mlp_cos": cosine_similarity(m, mlp_reads, dim=-1, eps=TINY),
            "layer_cos": cosine_similarity(a + m, before, dim=-1, eps=TINY),
            "io_cos": cosine_similarity(before, h[1:], dim=-1, eps=TINY),
            "norm_att": norm(a),
            "norm_mlp": norm(m),
            "norm_residual": norm(h),
        }
        for key in ("norm_att", "norm_mlp", "norm_residual", "rc_att", "rc_mlp"):
            largest = per_token[key].amax(dim=-1)
            maxima[f"max_{key}"] = torch.maximum(largest, maxima.get(f"max_{key}", largest))
        per_token["angular"] = torch.stack([torch.stack([_angle(x, y) for y in h]) for x in h])
        per_token["turn"] = torch.stack([_angle(y - x, z - y) for x, y, z in zip(h, h[1:], h[2:], strict=False)])
        whole = h[-1] - h[0]
        per_token["progress"] = ((h - h[0]) * whole).sum(dim=-1) / (whole * whole).sum(dim=-1)
        last.append(per_token["angular"][:, :, -1])
        for key, value in per_token.items():
            sums[key] = sums.get(key, 0) + value.sum(dim=-1)
        n_tokens += len(input_ids)
    first_change = 1 - cosine_similarity(
        *(x for h in [residuals(model, prompts[0])[0]] for x in (h[:-1], h[1:])), dim=-1
    )
    further = {"angular_last": torch.stack(last).mean(dim=0), "first_change": first_change}
    return {key: total / n_tokens for key, total in sums.items()} | maxima | further


def _angle(x, y):
    """Angle between vectors in units of pi, by the formula that keeps its digits when they are nearly parallel."""
    x, y = (v / norm(v).clamp(min=1e-30)[..., None] for v in (x, y))
    return 2 * torch.atan2(norm(x - y), norm(x + y)) / torch.pi


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
    `mode` is "future", "all" or "remove". And the mean damage: KL(y || y_bar), rise of the loss, top tokens kept.

    `positions`: one list of t for each prompt, instead of the drawn ones; `skips`: only these rows, the others are 0.
    """
    if positions is None:
        positions = effect_positions([len(input_ids) for input_ids in prompts])
    if mode == "future" and not any(positions):
        raise ValueError("no prompt has 13 tokens or more")
    n_blocks = len(places(model)[0])
    layers, out = torch.zeros(n_blocks, n_blocks), torch.zeros(n_blocks, 1)
    damages = []
    for input_ids, drawn in zip(prompts, positions, strict=True):
        h, logits = block_states(model, input_ids)
        layers, out = layers.to(h), out.to(h)
        log_y = log_softmax(logits, -1)
        y = log_y.exp()
        T = len(input_ids)
        damage = {key: [[] for _ in range(n_blocks)] for key in ("kl", "loss", "top1")}
        target = torch.as_tensor(input_ids)[1:, None]
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
                per_token = {
                    "kl": (y * (log_y - log_y_bar)).sum(-1),
                    "loss": (log_y - log_y_bar)[:-1].gather(-1, target)[:, 0],
                    "top1": (log_y.argmax(-1) == log_y_bar.argmax(-1)).to(h),
                }
                for key, values in per_token.items():
                    damage[key][s] += values[measured.start :].tolist()
        if mode != "future" or drawn:
            damages.append({key: [sum(x) / max(len(x), 1) for x in rows] for key, rows in damage.items()})
    found = {f"{mode}_{key}": torch.tensor([d[key] for d in damages]).mean(dim=0) for key in damages[0]}
    return {f"max_{mode}_layer": layers, f"max_{mode}_out": out} | found


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
                    with hooks(_replacing(model, l, without[None])):
                        h_bar, _ = block_states(model, input_ids)
                    # what leaves block l less what was put in front of it
                    change = norm(h_bar[l + 1] - without - c[l]) / norm(c[l]).clamp(min=TINY)
                    measured = slice(t, T) if mode == "future" else slice(0, T)
                    local[s, l] = local[s, l].maximum(change[measured].max())
    return {f"max_{mode}_local": local}


@torch.no_grad()
def logit_lens(model, prompts):
    """How far the lens at each block's input is from the final distribution, mean over all tokens of `prompts`."""
    sums, n_tokens = {}, 0
    for input_ids in prompts:
        h, logits = block_states(model, input_ids)
        log_y = log_softmax(logits, -1)
        y, top = log_y.exp(), log_y.argmax(-1, keepdim=True)
        settled = torch.zeros(len(input_ids), dtype=torch.bool)
        for layer in range(len(h) - 1):
            log_p = log_softmax(lens(model, h[layer]), -1)
            p = log_p.exp()
            rank = 1 + (log_p > log_p.gather(-1, top)).sum(-1)
            log_mean = (p / 2 + y / 2).log()
            jsd = ((p * (log_p - log_mean)).sum(-1) + (y * (log_y - log_mean)).sum(-1)) / 2 / np.log(2)
            settled = settled | (jsd <= 0.5)
            five, true_five = (x.topk(5).indices.tolist() for x in (log_p, log_y))
            per_token = {
                "res_kl_divs": (p * (log_p - log_y)).sum(-1),
                "res_overlaps": torch.tensor([len(set(a) & set(b)) / 5 for a, b in zip(five, true_five, strict=True)]),
                "top1_agreement": log_p.argmax(-1) == top[:, 0],
                "reciprocal_rank": 1 / rank,
                "res_in_top3": rank <= 3,
                "res_in_top5": rank <= 5,
                "res_in_top10": rank <= 10,
                "res_entropy": -(p * log_p).sum(-1),
                "res_jsd": jsd,
                "res_settled": settled,
            }
            for key, values in per_token.items():
                sums.setdefault(key, torch.zeros(len(h) - 1).to(h))[layer] += values.to(h).sum()
        n_tokens += len(input_ids)
    return {key: total / n_tokens for key, total in sums.items()}


def answer_span(tokenizer, question, answer):
    """(input ids of question + answer, first and last + 1 of the tokens that spell any of the answer's characters)."""
    encoded = tokenizer(question + answer, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    spelling = [i for i, (start, stop) in enumerate(offsets) if stop > start and stop > len(question)]
    if spelling[0] == 0:
        raise ValueError("nothing stands before the answer, so nothing predicts it")
    return encoded["input_ids"], (spelling[0], spelling[-1] + 1)


def _replacing(model, layer, h_l):
    """A hook that puts h_l [rows, T, d] in the place of residual l: what enters block 0 or leaves block `layer` − 1."""
    blocks = places(model)[0]
    if layer > 0:
        return blocks[layer - 1].register_forward_hook(lambda _, args, output: with_first(output, h_l))

    def entering(_, args, kwargs):
        return ((h_l, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": h_l})

    return blocks[0].register_forward_pre_hook(entering, with_kwargs=True)


@torch.no_grad()
def residual_erasure(model, input_ids, span, baseline_prompts, layers=None):
    """erasure_effect [L+1, T]: change of the answer's distributions when residual l of token t becomes the mean u_l.

    `span`: (first, last + 1) of the answer's tokens; `baseline_prompts`: lists of ids; `layers`: only these rows, the
    others are 0.
    """
    u = torch.cat([block_states(model, ids)[0] for ids in baseline_prompts], dim=1).mean(dim=1)
    h, logits = block_states(model, input_ids)
    predicting = slice(span[0] - 1, span[1] - 1)
    y = softmax(logits, -1)[predicting]
    effect = torch.zeros(h.shape[:2]).to(h)
    for layer in range(h.shape[0]) if layers is None else layers:
        y_bar = _erased(model, input_ids, layer, h[layer], u[layer], [[t] for t in range(h.shape[1])])
        effect[layer] = norm(y - y_bar[:, predicting]).amax(dim=1)
    return {"erasure_effect": effect}


def _erased(model, input_ids, layer, h_l, u_l, tokens):
    """Output distributions [rows, T, V] of runs in which residual l of these tokens, a list for each run, is the mean;
    the runs are rows of one batch."""
    rows = h_l.repeat(len(tokens), 1, 1)
    for row, erased in zip(rows, tokens, strict=True):
        row[erased] = u_l
    ids = torch.as_tensor(input_ids).repeat(len(tokens), 1)
    with hooks(_replacing(model, layer, rows)):
        return softmax(model(input_ids=ids, use_cache=False).logits, -1)


@torch.no_grad()
def future_erasure(model, input_ids, baseline_prompts):
    """future_erasure and past_erasure [L+1, T]: change of later outputs when residual l of token t, or of all tokens
    1..t−1, becomes the mean."""
    u = torch.cat([block_states(model, ids)[0] for ids in baseline_prompts], dim=1).mean(dim=1)
    h, logits = block_states(model, input_ids)
    y = softmax(logits, -1)
    alone, together = torch.zeros(h.shape[:2]).to(h), torch.zeros(h.shape[:2]).to(h)
    T = h.shape[1]
    for layer in range(h.shape[0]):
        for effect, erased, first_read in (
            (alone, [[t] for t in range(T)], [t + 1 for t in range(T)]),
            (together, [list(range(1, t)) for t in range(T)], list(range(T))),
        ):
            change = norm(y - _erased(model, input_ids, layer, h[layer], u[layer], erased))
            for t in range(T):
                if erased[t] and first_read[t] < T:
                    effect[layer, t] = change[t, first_read[t] :].max()
    return {"future_erasure": alone, "past_erasure": together}


def integrated_gradients(model, input_ids, span, quadrature="gauss", nodes=64, layers=None, at="block"):
    """igrads [L, T] and completeness [L]; "riemann" takes `nodes` left ends (256 in the papers), "gauss" as many nodes.

    `layers`: only these rows, the others are 0. at: "block", or "attention" or "mlp": what that part's module returns
    moves in place of the block's output.
    """
    input_ids = torch.as_tensor(input_ids)
    with torch.no_grad():
        x = block_states(model, input_ids)[0][1:] if at == "block" else _returned(model, input_ids, at)
    if quadrature == "gauss":
        points, weights = np.polynomial.legendre.leggauss(nodes)
        points, weights = (points + 1) / 2, weights / 2
    else:
        points, weights = np.arange(nodes) / nodes, np.full(nodes, 1 / nodes)

    def F(layer, rows):
        if at == "block":
            hook = _replacing(model, layer + 1, rows)
        else:
            hook = _part(model, layer, at).register_forward_hook(
                lambda _, args, output: with_first(output, rows.clone().reshape(first(output).shape))
            )
        with hooks(hook):
            y = softmax(model(input_ids=input_ids.repeat(len(rows), 1), use_cache=False).logits, -1)
        return sum(y[:, i - 1, input_ids[i]] for i in range(*span))

    igrads = torch.zeros(len(x), len(input_ids)).to(x)
    completeness = torch.zeros(len(x)).to(x)
    r, weights = (torch.as_tensor(values).to(x)[:, None, None] for values in (points, weights))
    for layer in range(len(x)) if layers is None else layers:
        b = x[layer].mean(dim=0, keepdim=True)
        gradient = torch.zeros_like(x[layer])
        for some, weight in zip(r.split(64), weights.split(64), strict=True):  # points of the path are rows of a batch
            rows = (b + some * (x[layer] - b)).requires_grad_()
            gradient += (weight * torch.autograd.grad(F(layer, rows).sum(), rows)[0]).sum(dim=0)
        igrads[layer] = ((x[layer] - b) * gradient).sum(dim=-1)
        with torch.no_grad():
            ends = F(layer, torch.stack([x[layer], b.expand_as(x[layer])]))
            completeness[layer] = igrads[layer].sum() - (ends[0] - ends[1])
    return {"igrads": igrads, "completeness": completeness}


def _part(model, layer, at):
    """The module of a block whose output is what its attention or its MLP adds, but for a constant factor."""
    blocks, attention, mlp, _ = places(model)
    return blocks[layer].get_submodule(attention if at == "attention" else mlp)


def _returned(model, input_ids, at):
    """[L, T, d]: what the attention or the MLP modules return."""
    kept = []

    def keep(_, args, output):
        kept.append(first(output).reshape(len(input_ids), -1).clone())

    parts = [_part(model, layer, at) for layer in range(len(places(model)[0]))]
    with hooks(*[part.register_forward_hook(keep) for part in parts]):
        run(model, input_ids)
    return torch.stack(kept)
