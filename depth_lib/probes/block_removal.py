"""The cost of removing consecutive blocks, or several attentions or MLPs, as if they had been deleted.

The obvious loop, with y the output of the full model (tests/oracles/removal.py):

    for each n and s:
        run the model, but block s + n reads h_s
        loss = mean over tokens of log y − log ȳ of the next token      kl = KL(y ‖ ȳ)      top1 = [same top token]

Here removing blocks is running the others in their order (see `block_orders`).
"""

from collections.abc import Sequence

import torch
from nnsight import TransformersModel

from ..data.orders import AT_MOST, sizes_of
from ..data.tokens import long_enough, tokenize
from ..models.check import arch_to_change
from ..residual.budget import compares_in_batch, tokens_in_pass
from ..residual.distributions import output_change
from ..residual.residual_stream import final_residual, inputs, silence, skip_head
from ..residual.stream import Row, Stream, output_changes, residuals, stacked, without_part
from ..results.means import one_token_loss_to_nan, over_prompts
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run
from .block_orders import damage_of_prompt, order_damage
from .logit_lens import measure_logit_lens


@with_origin
def block_removal(
    llm: TransformersModel,
    prompts: list[str],
    sizes: Sequence[int] | str = "refined",
    part: str = "layer",
    remote: bool | str = False,
    budget: int | None = None,
) -> Result:
    """The cost of removing n consecutive blocks, or the attention or MLP of several blocks.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> result = dl.block_removal(llm, prompts, sizes=[1, 2])
    >>> result["removal_loss"].shape, result["removal_loss_by_prompt"].shape
    (torch.Size([2, 4]), torch.Size([3, 2, 4]))

    - llm: from `load_model`
    - prompts: list of strings
    - sizes: a list of n; "doubling" (1, 2, 4 … up to half of the blocks); "refined" (these, then those needed to find
      out how many blocks can be removed for 0.05 nats); or "all". Blocks s..s + n − 1 are removed for every s
    - part: "layer" removes whole blocks; "attention" or "mlp" removes this part from one block, then from more and more
      blocks, the cheapest first
    - remote: True for NDIF, or the address of a server
    - budget: tokens per forward pass

    Returns a dict of float32 tensors, means over tokens, then prompts:

    - removal_loss [N, L]: rise in −log p(next token), nats, over n and s; NaN where s + n > L
    - removal_kl [N, L]: KL(y ‖ ȳ) in nats, where y is the output of the full model and ȳ that without the blocks
    - removal_top1 [N, L]: share of positions whose most likely next token stays the same
    - removal_sizes [N]: the sizes n
    - angular_distance [N, L]: arccos(cos(h_s, h_{s+n})) / π at the last token
    - block_influence [L]: 1 − cos(h_l, h_{l+1})
    - loss, shuffled_loss and n_tokens [P]: as in `logit_lens`; they show whether the model predicts these prompts
      better than the same prompts with their tokens shuffled
    - removal_order [L]: the order of removal; only for attention or MLP. In this case the three measures have shape
      [L], and nothing else is returned except their values per prompt
    - <key>_by_prompt [P, …]: per prompt

    Losses on one-token prompts are NaN and are left out of all means, with a warning.

    Raises ValueError for a size outside 1..L − 1, sizes with part="attention" or "mlp", an unknown part, a prompt
    without tokens, or prompts that all have a single token.
    Source: Men et al. 2024 (ShortGPT, arXiv 2403.03853); Gromov et al. 2024 (2403.17887); He et al. 2024 (LLM-Drop,
    2406.15786).
    Cost: two forward passes per prompt, and up to L / 2 more for each n; "refined" adds as many for each
    further n. For attention or MLP: four passes, and about 1.5 L more.
    """
    arch, ids = arch_to_change(llm, part), tokenize(llm, prompts)
    long_enough(ids, 2, "a loss")
    n_layers, refined = arch.n_layers, isinstance(sizes, str) and sizes == "refined"

    def measure(*removed):
        probe, gives = measure_part_removal, "P N: loss kl top1"
        if part == "layer":
            probe, gives = measure_block_removal, f"{gives}; P L+1 L+1: angular; P L: influence"
        found = run(probe, llm, arch, ids, *removed, budget, remote=remote, over="prompts", gives=gives)
        one_token_loss_to_nan(found, ids)
        return {f"removal_{key}": found.pop(key) for key in ("loss", "kl", "top1")} | found

    if part != "layer":
        if not refined:
            raise ValueError(f"sizes= applies only to whole blocks; with part={part!r}, leave sizes= out")
        single = measure(part, None)
        order = single["removal_loss"].nanmean(0).argsort(stable=True).tolist()
        several = measure(part, order)
        by_prompt = {key: torch.cat([single[key][:, order[:1]], several[key]], dim=1) for key in single}
        found = over_prompts(by_prompt) | {"removal_order": torch.tensor(order, dtype=torch.float32)}
        return Result(f"{part}_removal", found)  # without llm: its axis is not the layers
    tried = sizes_of(sizes, n_layers)
    by_prompt = _removed_in_a_row(measure, tried, len(ids), n_layers)
    while refined and (between := _between(by_prompt["removal_loss"], tried, n_layers)):
        more = _removed_in_a_row(measure, [between], len(ids), n_layers)
        tried, order = torch.tensor([*tried, between]).sort()
        tried = tried.tolist()
        for key in by_prompt.keys() - {"block_influence"}:
            by_prompt[key] = torch.cat([by_prompt[key], more[key]], dim=1)[:, order]
    found = over_prompts(by_prompt) | {"removal_sizes": torch.tensor(tried, dtype=torch.float32)}
    whole = [(of_prompt, 0) for of_prompt in ids]  # 0: measured from the first token
    # only for the losses; no pass of its own for the shuffled
    how = {"remote": remote, "over": "prompts", "gives": "P: loss shuffled_loss n_tokens"}
    lens = run(measure_logit_lens, llm, arch, whole, generate=0, all_measures=False, **how)
    one_token_loss_to_nan(lens, ids)
    return Result("block_removal", found | {key: lens[key] for key in ("loss", "shuffled_loss", "n_tokens")}, llm)


def _removed_in_a_row(measure, sizes, n_prompts, n_layers):
    """The measures of removing each number of consecutive blocks from each start, [P, N, L], and `block_influence`."""
    # by their ends: rows of one batch then wait for the same blocks
    stretches = [range(s, end) for end in range(1, n_layers + 1) for s in range(end) if end - s in sizes]
    found = measure([list(blocks) for blocks in stretches])
    row, s = torch.tensor([(sizes.index(len(blocks)), blocks.start) for blocks in stretches]).T
    by_prompt = {"block_influence": found.pop("influence")}
    found["angular_distance"] = found.pop("angular")[:, s, s + torch.tensor(sizes)[row]]
    for key, values in found.items():
        by_prompt[key] = torch.full((n_prompts, len(sizes), n_layers), torch.nan, dtype=torch.float32)
        by_prompt[key][:, row, s] = values
    return by_prompt


def _between(loss_by_prompt, tried, n_layers):
    """The number of blocks half-way between the most that cost at most AT_MOST and the next one tried; 0 if none is."""
    cheapest = loss_by_prompt.nanmean(0).nan_to_num(torch.inf).amin(1).tolist()
    most = max((n for n, cost in zip(tried, cheapest, strict=True) if cost <= AT_MOST), default=0)
    above = min((n for n in tried if n > most), default=n_layers)
    return (most + above) // 2 if above - most > 1 else 0


def measure_block_removal(llm, arch, prompts, removed, budget):
    """Remove some consecutive blocks, and measure the change of the output at all tokens.

    prompts: token ids, one list per prompt. removed: R lists of blocks. budget: tokens per call of a block, or None.

    - loss [P, R]: mean over the predicting tokens
    - kl, top1 [P, R]: means over all tokens
    - angular [P, L + 1, L + 1]: arccos(cos(h_l, h_k)) / π of the last token
    - influence [P, L]: mean of 1 − cos(h_l, h_{l+1})
    """
    return stacked([_of_prompt(llm, arch, ids, removed, budget) for ids in prompts])


def _of_prompt(llm, arch, ids, removed, budget):
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            stream = Stream(llm, arch, ids, budget)
            h = stream.h
            damage = order_damage(stream, [[l for l in range(arch.n_layers) if l not in gone] for gone in removed])
            last = torch.stack([x[-1].to(h[-1].device) for x in h]).cpu().double()
            cosines = [
                torch.cosine_similarity(x.float(), y.to(x).float(), dim=-1).mean().to(h[-1].device)
                for x, y in zip(h, h[1:], strict=False)
            ]
            cosines = torch.stack(cosines).cpu()
    return damage_of_prompt(damage) | {
        "angular": (torch.cosine_similarity(last, last[:, None], dim=-1).clamp(-1, 1).arccos() / torch.pi).float(),
        "influence": 1 - cosines,
    }


def measure_part_removal(llm, arch, prompts, part, order, budget):
    """Let a part ("attention" or "mlp") of some blocks add nothing, and measure the change of the output at all tokens.

    prompts, budget: as for `measure_block_removal`. order: None for each block alone; or the order in which blocks lose
    the part, for the first 2..L of them together.

    Returns loss, kl and top1 [P, L], or [P, L − 1] of an order.
    """
    if order is None:
        damage = [_without_each(llm, arch, ids, part, budget) for ids in prompts]
    else:
        damage = [_without_first(llm, arch, ids, part, order, budget) for ids in prompts]
    return stacked([damage_of_prompt(of_prompt) for of_prompt in damage])


def _without_each(llm, arch, ids, part, budget):
    """The four numbers of `damage` [4, L, T] if the part of one block adds nothing."""
    after, without = without_part(llm, arch, ids, part)

    def row(l):
        return Row(l + 1, range(l + 1, arch.n_layers), range(len(ids)), lambda h, before: h.copy_(without[l]))

    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            stream = Stream(llm, arch, ids, budget, after)
            damage = output_changes(stream, [row(l) for l in range(arch.n_layers)], damage=True)
    return torch.stack(damage, dim=1)


def _without_first(llm, arch, ids, part, order, budget):
    """The four numbers of `damage` [4, L − 1, T] if the part of the first 2..L blocks of `order` adds nothing."""
    h, removed = residuals(llm, arch, ids), [order[:k] for k in range(2, arch.n_layers + 1)]
    n_clean = int(compares_in_batch(llm, h[0]))
    n_rows = max(1, (budget or tokens_in_pass(llm, arch, h[0])) // len(ids) - n_clean)
    damage = [torch.zeros(4, 0, len(ids), dtype=torch.float32)]  # all that a model of one block has
    for start in range(0, len(removed), n_rows):
        some = removed[start : start + n_rows]
        shape = (n_clean + len(some), *h[0].shape)
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids, batch=shape[0]), use_cache=False):
                for l, block in enumerate(llm.blocks):
                    without = [(row, slice(None)) for row, gone in enumerate(some, n_clean) if l in gone]
                    if without:
                        silence(block, arch, shape, part, without)
                final = final_residual(llm, arch)
                finals = final if n_clean else torch.cat([h[-1][None].to(final.device), final])
                damage.append(output_change(llm, arch, finals, [*ids[1:], -1]).cpu())
                skip_head(llm, arch, final)
    return torch.cat(damage, dim=1)
