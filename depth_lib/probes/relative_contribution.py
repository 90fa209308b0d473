"""Probe 1: how much each block adds to the residual stream, and in which direction (Csordás et al. 2025, 3.1).

The obvious loop, with h_{l+1} = h_l + a_l + m_l and r_l what the MLP reads: h_l + a_l, or h_l in parallel blocks
(tests/oracles/curves.py):

    for each prompt, token and block l:
        rc_att = ‖a‖ / ‖h‖       rc_mlp = ‖m‖ / ‖r‖       rc_layer = ‖a + m‖ / ‖h‖
        att_cos = cos(a, h)      mlp_cos = cos(m, r)      layer_cos = cos(a + m, h)      io_cos = cos(h, h + a + m)

Norms that are divided by are at least 1e-6.

Here it is one forward pass per prompt, and all tokens of a block at once.
"""

import torch

from .residual_stream import a_and_m, entering, exact, finish, first, inputs, leaving, modules_of

KEYS = ("rc_att", "att_cos", "rc_mlp", "mlp_cos", "rc_layer", "layer_cos", "io_cos", "norm_att", "norm_mlp")
WITH_MAXIMUM = ("norm_att", "norm_mlp", "norm_residual", "rc_att", "rc_mlp")


def relative_contribution(llm, arch, prompts):
    """Sums over the tokens of each prompt of the norms, norm ratios and cosines above, and of `_geometry`'s angles.

    prompts: token ids, one list per prompt. Returns `<key>_sums` [P, L] (norm_residual_sums [P, L + 1]), the largest
    value of a token `max_<key>_by_prompt` for the norms, rc_att and rc_mlp, the `<key>_sums` of `_geometry`,
    `angular_last` [P, L + 1, L + 1] of the last tokens, `n_tokens` [P] and `change`, 1 − io_cos of every token of all
    prompts, one after the other [T₁ + … + T_P, L].
    """
    results = [_of_prompt(llm, arch, ids) for ids in prompts]
    changes = [result.pop("change") for result in results]
    stacked = {key: torch.stack([result[key] for result in results]) for key in results[0]}
    n_tokens = torch.tensor([len(ids) for ids in prompts], dtype=torch.float32)
    return stacked | {"n_tokens": n_tokens, "change": torch.cat(changes)}


def _of_prompt(llm, arch, ids):
    """The sums, the largest values and `change` [T, L] of one prompt."""
    residuals, measures = [], []
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            # where the model is another process, what is cached crosses to here once; what is read, there and back
            modules = [module for block in llm.blocks if arch["parts"] for module in modules_of(block, arch)]
            cache = tracer.cache(modules=modules, device=None) if modules else None
            h = entering(llm.blocks[0]).clone()
            for block in llm.blocks:
                copies, after = _overwritten(block, arch), leaving(block).clone()
                a, m = a_and_m(block, arch, h, after, lambda module, copies=copies: _taken(module, cache, copies))
                residual = h[0].to(a.device).float()
                residuals.append(residual.cpu())
                measures.append(_measures(residual, a[0], m[0], arch["parallel"]))
                h = after
            residuals.append(h[0].float().cpu())
            finish(llm, arch, arch["n_layers"], h)
    per_token = dict(zip(KEYS, torch.stack(measures, dim=1), strict=True))  # [L, T] each
    per_token["norm_residual"] = torch.stack([h.norm(dim=-1) for h in residuals])
    result = {f"{key}_sums": values.sum(-1) for key, values in per_token.items()}
    result |= {f"max_{key}_by_prompt": per_token[key].amax(-1) for key in WITH_MAXIMUM}
    return result | _geometry(residuals) | {"change": 1 - per_token["io_cos"].T}


def _overwritten(block, arch):
    """Copies of those outputs of modules in a block that the model changes in place, by the module's path."""
    changed = tuple(f".{path}" for path in arch["in_place"])
    return (
        {m.path: first(m.output).clone() for m in modules_of(block, arch) if m.path.endswith(changed)}
        if changed
        else {}
    )


def _taken(module, cache, copies):
    """What a module returned, which the cache then forgets."""
    (entry,) = cache._cache.entries.pop(module.path)
    return copies.get(module.path, entry.output)


def _measures(h, a, m, parallel):
    """KEYS [len(KEYS), T] at one block, from h, a and m [T, d]."""
    read, layer = h if parallel else h + a, a + m
    compared = [*_compared(a, h), *_compared(m, read), *_compared(layer, h), _compared(h, h + layer)[1]]
    return torch.stack([*compared, a.norm(dim=-1), m.norm(dim=-1)]).cpu()


def _compared(x, y):
    """‖x‖ / ‖y‖ and cos(x, y) [T]."""
    norm_x, norm_y = x.norm(dim=-1), y.norm(dim=-1).clamp_min(1e-6)
    with exact(x):
        product = torch.linalg.vecdot(x, y)
    return norm_x / norm_y, product / (norm_x.clamp_min(1e-6) * norm_y)


def _geometry(residuals):
    """Angles and progress of a prompt's residuals, L + 1 tensors h_l [T, d], summed over tokens.

    angular = arccos(cos(h_l, h_k)) / π [L + 1, L + 1], and `angular_last` of the last token; progress =
    ⟨h_l − h_0, h_L − h_0⟩ / ‖h_L − h_0‖² [L + 1]; turn = arccos(cos(h_{l+1} − h_l, h_{l+2} − h_{l+1})) / π [L − 1], 1/2
    where a block adds nothing. All follow from the inner products of all pairs, in float64, which keeps nearly parallel
    neighbours apart.
    """
    totals = {"angular_sums": 0, "progress_sums": 0, "turn_sums": 0}
    for some in zip(*(h.split(16) for h in residuals), strict=True):  # 16 tokens at a time, as stacking copies them
        h = torch.stack(some, dim=1).double()
        with exact(h):
            products = h @ h.mT  # [t, L + 1, L + 1]
        angular = _angles(products)
        angular.diagonal(dim1=1, dim2=2).zero_()
        moved = products[:, :, -1] - products[:, 0, -1:] - products[:, 0] + products[:, 0, :1]
        steps = products.diff(dim=1).diff(dim=2)  # the inner products of all h_{l+1} − h_l
        totals["angular_sums"] += angular.sum(0)
        totals["progress_sums"] += (moved / moved[:, -1:].clamp_min(1e-12)).sum(0)
        totals["turn_sums"] += _angles(steps).diagonal(1, 1, 2).sum(0)
    return {key: value.float() for key, value in (totals | {"angular_last": angular[-1]}).items()}


def _angles(products):
    """The angles in units of π between vectors whose inner products these are [t, n, n]."""
    norms = products.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    cosines = products / (norms[:, :, None] * norms[:, None]).clamp_min(1e-12)
    return cosines.clamp(-1, 1).arccos() / torch.pi
