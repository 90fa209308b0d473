"""Probe 1: how much each block adds to the residual stream, and in which direction (Csordás et al. 2025, 3.1).

The obvious loop, with h_{l+1} = h_l + a_l + m_l (tests/oracles/curves.py). The MLP reads r_l = h_l + a_l, or h_l in
parallel blocks.

    for each prompt, token and block l:
        rc_att = ‖a‖ / ‖h‖       rc_mlp = ‖m‖ / ‖r‖       rc_layer = ‖a + m‖ / ‖h‖
        att_cos = cos(a, h)      mlp_cos = cos(m, r)      layer_cos = cos(a + m, h)      io_cos = cos(h, h + a + m)

Norms that are divided by are at least 1e-6.

Here it is one forward pass per prompt, and all tokens of a block at once.
"""

from collections.abc import Sequence

import torch
from nnsight import TransformersModel

from ..data.tokens import measured_tokens
from ..models.check import verified_arch
from ..residual.residual_stream import inputs
from ..residual.stream import read_blocks, stacked
from ..results.means import token_means
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run

KEYS = ("rc_att", "att_cos", "rc_mlp", "mlp_cos", "rc_layer", "layer_cos", "io_cos", "norm_att", "norm_mlp")
WITH_MAXIMUM = ("norm_att", "norm_mlp", "norm_residual", "rc_att", "rc_mlp")
_LARGEST = (f"{'P L+1' if key == 'norm_residual' else 'P L'}: max_{key}_by_prompt" for key in WITH_MAXIMUM)
GIVES = "; ".join([f"P L: {key}_sums" for key in KEYS] + [*_LARGEST])
GIVES += "; P L+1: norm_residual_sums progress_sums; P L+1 L+1: angular_sums; P: n_tokens; N L: change"


@with_origin
def relative_contribution(
    llm: TransformersModel,
    prompts: list[str],
    remote: bool | str = False,
    answers: Sequence | None = None,
    at: str = "all",
) -> Result:
    """How much each block adds to the residual stream, and in which direction.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.relative_contribution(llm, prompts)
    relative_contribution of toy-4l, 3 prompts (hash ...): ... keys
    rc_att [4], att_cos [4], ...
    rc_att ranges from 0.458 to 1.23
    .plot('cosine'|'relative_contribution'|...)  .depths()  .to_frame()  .save(path)

    rc_att = ‖a_l‖ / ‖h_l‖, rc_mlp = ‖m_l‖ / ‖h_l + a_l‖, rc_layer = ‖a_l + m_l‖ / ‖h_l‖. The cosines are of the same
    pairs, and io_cos is that of h_l and h_{l+1}. In parallel blocks the MLP reads h_l.

    - prompts: list of strings
    - remote: True for NDIF, or the address of a server
    - answers: a stored response to each prompt, as a string or token ids; the positions that predict it are measured
    - at: "all" positions of the prompts, or the "last" of each

    Returns a dict of float32 tensors, means over the measured tokens:

    - `rc_att`, `rc_mlp`, `rc_layer`, `att_cos`, `mlp_cos`, `layer_cos`, `io_cos`, `norm_att`, `norm_mlp` [L];
      `norm_residual` [L + 1]
    - `max_norm_att`, `max_norm_mlp`, `max_norm_residual`, `max_rc_att`, `max_rc_mlp`: the maxima over tokens
    - `angular` [L + 1, L + 1]: angles between residuals in units of π
    - `progress` [L + 1]: ⟨h_l − h_0, h_L − h_0⟩ / ‖h_L − h_0‖²
    - `first_change` [L, T]: 1 − io_cos of every measured token of the first prompt
    - `<key>_sums` [P, …], `n_tokens` [P]: sums over each prompt's measured tokens, and the number of these tokens
    - `chance_cos` [1]: 1 / √d, the size of a random direction's cosine

    If attention and MLP cannot be told apart, the values of both are NaN.
    Raises ValueError for a prompt without tokens, or answers that do not fit the prompts.
    Sources: Csordás et al. 2025 (arXiv 2505.13898), Figures 2, 15, 16; angles: Gromov et al. 2024 (arXiv 2403.17887).
    Cost: a forward pass per prompt. Memory: the residual streams of one prompt, [L + 1, T, d].
    """
    arch, measured = verified_arch(llm), [(ids, first) for ids, first, _ in measured_tokens(llm, prompts, answers, at)]
    sums = run(measure_relative_contribution, llm, arch, measured, remote=remote, over="prompts", gives=GIVES)
    n_first = int(sums["n_tokens"][0])
    result = {"first_change": sums.pop("change")[:n_first].T}  # several jobs' `change` lie one after another
    for key in [key for key in sums if key.endswith("_by_prompt")]:
        result[key.removesuffix("_by_prompt")] = sums.pop(key).amax(0)
    result = token_means(sums) | result | {"chance_cos": torch.tensor([arch.width**-0.5], dtype=torch.float32)}
    if not arch.parts:  # what a block adds is known, but not what attention and MLP do
        result |= {key: value * torch.nan for key, value in result.items() if "att" in key or "mlp" in key}
    return Result("relative_contribution", result, llm)


def measure_relative_contribution(llm, arch, prompts):
    """Sums over the tokens of each prompt of the norms, norm ratios and cosines above, and of `_geometry`'s angles.

    prompts: (token ids, the first position that is measured) each. Returns:

    - `<key>_sums` [P, L] (norm_residual_sums [P, L + 1]), and those of `_geometry`
    - `max_<key>_by_prompt`: the largest value of any token, for WITH_MAXIMUM
    - `n_tokens` [P]
    - `change` [T, L]: 1 − io_cos of every measured token of the first prompt
    """
    results = [_of_prompt(llm, arch, *of_prompt) for of_prompt in prompts]
    changes = [result.pop("change") for result in results]
    n_tokens = torch.tensor([len(ids) - first for ids, first in prompts], dtype=torch.float32)
    return stacked(results) | {"n_tokens": n_tokens, "change": changes[0]}


def _of_prompt(llm, arch, ids, first):
    """The sums, the largest values and `change` [T, L] of one prompt."""
    residuals, measures = [], []
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False) as tracer:
            for before, a, m, h in read_blocks(tracer, llm, arch):  # noqa: B007 (at the end h is h_L)
                residuals.append(before[0, first:])
                measures.append(
                    _measures(residuals[-1].to(a.device).float(), a[0, first:], m[0, first:], arch.parallel)
                )
            residuals.append(h[0, first:])
            measures = torch.stack([x.to(h.device) for x in measures], dim=1).cpu()
            norms = torch.stack([x.float().norm(dim=-1).to(h.device) for x in residuals]).cpu()
            geometry = _geometry(residuals)
    per_token = dict(zip(KEYS, measures, strict=True)) | {"norm_residual": norms}  # [L, T], [L + 1, T]
    result = {f"{key}_sums": values.sum(-1) for key, values in per_token.items()}
    result |= {f"max_{key}_by_prompt": per_token[key].amax(-1) for key in WITH_MAXIMUM}
    return result | geometry | {"change": 1 - per_token["io_cos"].T}


def _measures(h, a, m, parallel):
    """KEYS [len(KEYS), T] at one block, from h, a and m [T, d]."""
    read, layer = h if parallel else h + a, a + m
    compared = [*_compared(a, h), *_compared(m, read), *_compared(layer, h), _compared(h, h + layer)[1]]
    return torch.stack([*compared, a.norm(dim=-1), m.norm(dim=-1)])


def _compared(x, y):
    """‖x‖ / ‖y‖ and cos(x, y) [T]."""
    norm_x, norm_y = x.norm(dim=-1), y.norm(dim=-1).clamp_min(1e-6)
    # no dot product, which a server's autocast would round to bfloat16
    return norm_x / norm_y, (x * y).sum(-1) / (norm_x.clamp_min(1e-6) * norm_y)


def _geometry(residuals):
    """Angles and progress of a prompt's residuals, L + 1 tensors h_l [T, d], summed over tokens.

    angular = arccos(cos(h_l, h_k)) / π [L + 1, L + 1]; progress = ⟨h_l − h_0, h_L − h_0⟩ / ‖h_L − h_0‖² [L + 1]. In
    float64, as the cosine of nearly parallel neighbours is nearly 1.
    """
    angular = progress = 0
    for some in zip(*(h.split(16) for h in residuals), strict=True):  # 16 tokens at a time, as stacking copies them
        h = torch.stack([x.to(residuals[-1].device) for x in some], dim=1)  # [t, L + 1, d]
        h = (h.cpu() if h.device.type == "mps" else h).double()
        moved = h - h[:, :1]
        along = (moved * moved[:, -1:]).sum(-1)
        progress += (along / along[:, -1:].clamp_min(1e-12)).sum(0)
        unit = h / h.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        angular += (unit @ unit.mT).clamp(-1, 1).arccos().sum(0) / torch.pi
    found = torch.cat([angular, progress[None]]).float().cpu()  # one wait for both
    return {"angular_sums": found[:-1], "progress_sums": found[-1]}
