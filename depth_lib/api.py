"""The public probes: strings in, a dict of CPU float32 tensors out, with `plot`, `depths`, `to_frame` and `save`.

remote: False (this machine), True (NDIF), "local" (this machine, through NDIF's serialisation: a test of a remote call)
or a host's URL. On a server the prompts are one job, or several of DEPTH_LIB_PROMPTS_PER_JOB prompts (environment;
default: 1000 / blocks), and one question's layers one job, or several of DEPTH_LIB_LAYERS_PER_JOB. Several jobs give
what one job gives, bit for bit; only the layers of erasure give it to rounding, as they share a batch with fewer
others: in float32 to 1e-6 of the largest value, in half precision, in TF32 (off unless
`torch.set_float32_matmul_precision` or a server allows it) or with quantised weights only to the rounding of their
products. Numbers that are NaN or infinite are a ValueError.
"""

import random
import reprlib
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path

import torch
from nnsight import TransformersModel

from .data.choices import Choice
from .data.examples import Example
from .data.orders import NAMED, checked_order, sizes_of
from .data.tokens import answer_span, draw_four, end_tokens, skips_of, texts_of, tokenize
from .lenses.files import Lens, LensError, check_lens, load_lens
from .models.check import verified_arch
from .models.removal import order_without, stretch_of
from .params import not_among
from .probes.answer_lens import answer_lens as _answer_lens
from .probes.block_orders import block_orders as _block_orders
from .probes.block_removal import AT_MOST
from .probes.block_removal import block_removal as _block_removal
from .probes.choices import ending_log_probs as _ending_log_probs
from .probes.integrated_gradients import integrated_gradients as _integrated_gradients
from .probes.layer_effects import layer_effects as _layer_effects
from .probes.local_effects import local_effects as _local_effects
from .probes.logit_lens import logit_lens as _logit_lens
from .probes.relative_contribution import relative_contribution as _relative_contribution
from .probes.residual_erasure import future_erasure as _future_erasure
from .probes.residual_erasure import residual_erasure as _residual_erasure
from .remote.errors import JobFailed, NotReady
from .remote.server import NO_GRADIENT, NO_GRADIENTS_THERE, method_there, say
from .residual.budget import check_budget, tokens_in_pass
from .residual.ranks import from_rank_0, is_sharded
from .results.result import Result
from .session import run

Remote = bool | str

LARGEST_REQUEST = 2**29  # bytes: a request waits in NDIF's queue as one value of Redis


def relative_contribution(llm: TransformersModel, prompts: list[str], remote: Remote = False) -> Result:
    """How much each block adds to the residual stream, and in which direction.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.relative_contribution(llm, prompts)
    relative_contribution of 3 prompts: ... keys
    rc_att [4], att_cos [4], ...
    rc_att is from 0.458 to 1.23
    .plot('cosine'|'relative_contribution'|...)  .depths()  .to_frame()  .save(path)

    rc_att = ‖a_l‖ / ‖h_l‖, rc_mlp = ‖m_l‖ / ‖h_l + a_l‖, rc_layer = ‖a_l + m_l‖ / ‖h_l‖ and the cosines of the same
    pairs (parallel blocks: the MLP reads h_l), means over all tokens of all prompts.

    prompts: list of strings. Returns float32 `rc_att`, `rc_mlp`, `rc_layer`, `att_cos`, `mlp_cos`, `layer_cos`,
    `io_cos`, `norm_att`, `norm_mlp` [L], `norm_residual` [L + 1]; the largest of any token `max_norm_att`,
    `max_norm_mlp`, `max_norm_residual`, `max_rc_att`, `max_rc_mlp`; the angles between residuals in units of π,
    `angular` [L + 1, L + 1]; `progress` = ⟨h_l − h_0, h_L − h_0⟩ / ‖h_L − h_0‖² [L + 1];
    1 − io_cos of every token of the first prompt, `first_change` [L, T]; for intervals the sums over each prompt's
    tokens `<key>_sums` [P, …] and `n_tokens` [P]; `chance_cos` [1], 1 / √d, the size of a random direction's cosine. Of
    a model that is read block by block, what needs a or m is NaN.
    Raises ValueError for a prompt without tokens.
    Sources: Csordás et al. 2025 (arXiv 2505.13898), Figures 2, 15, 16; angles: Gromov et al. 2024 (arXiv 2403.17887).
    Cost: a forward pass per prompt; the residuals of one prompt are held, [L + 1, T, d].
    """
    arch, ids = verified_arch(llm), tokenize(llm, prompts)
    sums = run(_relative_contribution, llm, arch, ids, remote=remote, over="prompts", label="contribution")
    result = {"first_change": sums.pop("change")[: len(ids[0])].T}
    for key in [key for key in sums if key.endswith("_by_prompt")]:
        result[key.removesuffix("_by_prompt")] = sums.pop(key).amax(0)
    result = _pool(sums) | result | {"chance_cos": torch.tensor([arch.width**-0.5], dtype=torch.float32)}
    if not arch.parts:  # what a block adds is known, but not what attention and MLP do
        result |= {key: value * torch.nan for key, value in result.items() if "att" in key or "mlp" in key}
    return Result("relative_contribution", result)


def logit_lens(
    llm: TransformersModel,
    prompts: list[str],
    remote: Remote = False,
    generate: int = 0,
    all_measures: bool = True,
    lens: Lens | str | None = None,
) -> Result:
    """The model's prediction if it stopped before block l, compared with its output.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.logit_lens(llm, prompts).depths().ed.to_dict()
    {'kl': 1, 'overlap': 1}

    With p_l = softmax(lens(h_l)) and y the final distribution: KL(p_l ‖ y) in nats, |top5(p_l) ∩ top5(y)| / 5,
    agreement of the top token, and the mean reciprocal rank of y's top token under p_l; means over all tokens. The
    rank of a token is 1 + how many exceed it: tokens that tie, as they often do in half precision, have one rank.

    prompts: list of strings; generate: the model continues each of them, in the same session, by up to so many tokens,
    the likeliest one at each step, whatever else the checkpoint's generation config asks for, until one that ends
    texts; the means are over the tokens that predict these instead (`generated` has their texts); all_measures: False
    computes the first two keys alone, in less time; lens: of `load_lens` or `fit_lens`, or its file, with which p_l =
    softmax(lens(A_l h_l + b_l)); without one A = 1, b = 0. Returns float32 `res_kl_divs`, `res_overlaps`, `res_top1`,
    `res_mrr` [L] (entry l reads the input of block l); the share of tokens whose final top token is among the lens'
    first k, `res_in_top3`, `res_in_top5`, `res_in_top10`; `res_entropy`, of p_l in nats; `res_jsd`, the Jensen–Shannon
    divergence of p_l and y in bits; `res_settled`, the share of tokens for which it has been at most 1/2 at some block
    up to l; `<key>_sums` [P, L] and `n_tokens` [P]. Of the prompts' own tokens `loss` [P], the model's in nats per
    token, and `shuffled_loss` [P], what it would be with the tokens shuffled: where they are the same, the
    model knows nothing of the text. `deep_thinking_ratio` reads `res_settled`. Raises ValueError for a prompt without
    tokens, or with more than the model has positions, and LensError for a lens as `answer_lens` does. Source: Csordás
    et al. 2025, Figure 4; Hu et al. 2025 (arXiv 2512.14064); entropy: Ali et al. 2025 (2502.16570); settling: arXiv
    2602.13517.
    Cost: a forward pass per prompt and the unembedding of L + 1 layers; of a prompt h is held, [L + 1, T, d], and the
    logits of a few tokens. `generate` adds a pass over one token for each, a lens 2 L d² operations for each token.
    """
    if type(generate) is not int or generate < 0:
        raise ValueError(f"generate is {generate!r}; give the number of tokens, or 0 for the prompts' own.")
    arch, ids = verified_arch(llm), tokenize(llm, prompts, generate)
    ends, translators = end_tokens(llm) if generate else [], _translators(llm, lens, remote)
    result = run(_logit_lens, llm, arch, ids, generate, all_measures, ends, translators, remote=remote, over="prompts")
    generated = result.pop("generated")
    texts = {"generated": llm.tokenizer.batch_decode(generated)} if generate else {}
    return Result("logit_lens", _pool(result) | texts)


def answer_lens(
    llm: TransformersModel, question: str, answer: str, lens: Lens | str | None = None, remote: Remote = False
) -> Result:
    """What each layer would answer: of each token of the answer its log-probability and rank, and the likeliest five.

    >>> llm = dl.load_model("toy-4l")
    >>> dl.answer_lens(llm, "5 + 7 = ", "12")["answer_ranks"].shape
    torch.Size([5, 2])

    At the token before, z_l = lens(A_l h_l + b_l), `answer_log_probs` = log softmax(z_l)[token] in nats, and
    `answer_ranks` = 1 + how many of z_l exceed z_l[token], `answer_kl` = KL(softmax(z_l) ‖ the model's output) in nats.

    question, answer: strings, tokenised together; lens: of `load_lens` or `fit_lens`, or its file (default: the logit
    lens, A = 1, b = 0). Returns float32 `answer_log_probs`, `answer_ranks`, `answer_kl` [L + 1, A] (row l reads h_l,
    what enters block l; row L is the model's own output), `answer_top`, the ids of the five likeliest tokens [L + 1, A,
    5], likeliest first, `top_tokens`, their texts, and `tokens`, the answer's A strings. Give a text's first word as
    the question and the rest as the answer to read what each layer says at every token. Raises ValueError if the answer
    has no token of its own; LensError for a lens of another model, or one that is too large to send: half a GiB, 4 L d
    (d + 1) bytes a job.
    Cost: one pass, and L + 2 unembeddings of A tokens. Source: nostalgebraist 2020; Gupta et al. 2025 (arXiv
    2510.18871): early guesses are frequent words.
    """
    arch, (ids, positions, tokens) = verified_arch(llm), answer_span(llm, question, answer)
    result = run(_answer_lens, llm, arch, ids, positions, _translators(llm, lens, remote), remote=remote)
    if not result["answer_kl"].isfinite().all():
        raise ValueError("answer_lens: answer_kl is not finite; weights are damaged, or numbers overflow in the lens.")
    top = [[llm.tokenizer.batch_decode(k[:, None]) for k in of_layer] for of_layer in result["answer_top"].int()]
    return Result("answer_lens", {**result, "top_tokens": top, "tokens": [tokens[position] for position in positions]})


def _translators(llm, lens, remote):
    """What of a lens the probe needs, once it is known to be the model's; how much travels is said."""
    if lens is None:
        return None
    lens = load_lens(lens) if isinstance(lens, str | Path) else lens
    check_lens(llm, lens)
    translators = {"A": lens["A"], "b": lens["b"]}
    if remote and remote != "local":
        n_bytes = sum(tensor.nbytes for tensor in translators.values())
        said = f"the lens has {n_bytes / 2**20:,.0f} MiB, which travel with each job"
        if n_bytes > LARGEST_REQUEST:
            raise LensError(f"{said}, and a server takes {LARGEST_REQUEST / 2**20:.0f}; load the model here")
        say(said)
    return translators


def layer_effects(
    llm: TransformersModel,
    prompts: list[str],
    mode: str = "future",
    remote: Remote = False,
    budget: int | None = None,
    part: str = "layer",
) -> Result:
    """What skipping block s, or its attention or MLP alone, does to every later block and to the output.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.layer_effects(llm, prompts)["max_future_out"].shape
    torch.Size([4, 1])

    effect[s, l] = max ‖c_l − c̄_l‖ / ‖c_l‖ over tokens i ≥ t, c_l = h_{l+1} − h_l, when block s passes tokens 1..t−1
    on unchanged; output[s] = max ‖y − ȳ‖₂ over the same tokens; maxima over positions t and prompts. mode "future":
    up to 4 positions t per prompt, drawn with seed 123; "all": every token i ≥ 1 is skipped, every token measured;
    "remove": token 0 too, as if the block were deleted. part "attention" or "mlp": only a_s or m_s is left out.

    prompts: list of strings; budget: tokens in one forward pass (default: half of a GPU's free memory, or what a
    CPU is fast with). Returns float32 `max_<mode>_layer` [L, L] (row = skipped, column = affected),
    `max_<mode>_out` [L, 1], and means over the measured tokens of a prompt, then over prompts: `<mode>_kl` = KL(y ‖
    ȳ) in nats [L]; each for every prompt as `<key>_by_prompt` [P, …]. In half precision or with quantised weights
    also `max_<mode>_layer_rounding_floor` and `max_<mode>_out_rounding_floor` [P], the largest change that moving
    the embeddings by one rounding unit causes: smaller effects may be rounding. A prompt too short for a position
    (under 13 tokens) is left out of future mode with a warning. Raises ValueError for an unknown mode or part, a
    prompt without tokens, a part of a model that is read block by block, or if no prompt is long enough. Source:
    Csordás et al. 2025, Figures 3 and 17.
    Cost: per prompt a forward pass and, for each position, that of a batch which grows by a row per block, so L / 2
    passes; the residuals of one prompt are held, and what its blocks add.
    """
    arch = _arch(llm, part)
    cases, numbers = skips_of(llm, prompts, mode, ("future", "all", "remove"))
    how = {
        "budget": tokens_per_pass(llm, budget, remote, cases),
        "label": f"{part} effects, {mode}",
        "numbers": numbers,
    }
    effects = run(_layer_effects, llm, arch, cases, mode, part, remote=remote, over="prompts", **how)
    return Result("layer_effects" if part == "layer" else f"{part}_effects", _over_prompts(effects))


def _over_prompts(effects):
    """Maxima and means over the prompts that have a value, beside the values of each."""
    result = {key: value.amax(0) if key.startswith("max_") else value.nanmean(0) for key, value in effects.items()}
    floors = {key: value for key, value in effects.items() if key.endswith("_rounding_floor")}
    by_prompt = {f"{key}_by_prompt": value for key, value in effects.items() if key not in floors}
    return result | by_prompt | floors


def block_removal(
    llm: TransformersModel,
    prompts: list[str],
    sizes: Sequence[int] | str = "refined",
    part: str = "layer",
    remote: Remote = False,
    budget: int | None = None,
) -> Result:
    """What it costs to remove n consecutive blocks, or the attention or MLP of several blocks.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> result = dl.block_removal(llm, prompts, sizes=[1, 2])
    >>> result["removal_loss"].shape, result["removal_loss_by_prompt"].shape
    (torch.Size([2, 4]), torch.Size([3, 2, 4]))

    Blocks s..s + n − 1 are removed for every s and every n of `sizes`: a list; "doubling", 1, 2, 4 … up to half of the
    blocks; "refined", these and then, by halving, those between the most that cost at most 0.05 nats and the next;
    or "all", 1..L − 1. With part "attention" or "mlp" this part is removed from one block, and then from
    several: in ascending order of the loss that removing one causes, each time from one more.

    prompts: list of strings; remote, budget: as for `layer_effects`. Returns float32 means over tokens, then prompts:
    `removal_loss`, the rise of −log p(next token) in nats; `removal_kl` = KL(y ‖ ȳ) in nats; `removal_top1`, the
    fraction of tokens whose top token stays: [N, L] over n and s, NaN where s + n > L; `removal_sizes` [N]; and from
    one clean pass `angular_distance` [N, L], arccos(cos(h_s, h_{s+n})) / π of the last token, and `block_influence`
    [L], 1 − cos(h_l, h_{l+1}). Of a part `removal_order` [L], and the three measures after each removal [L]. Each also
    per prompt, `<key>_by_prompt` [P, …]. Raises ValueError for a size that is not in 1..L − 1, an unknown part, a part
    of a model that is read block by block, or a prompt without tokens.
    Sources: Men et al. 2024 (ShortGPT, arXiv 2403.03853), Gromov et al. 2024 (2403.17887), He et al. 2024 (LLM-Drop,
    2406.15786).
    Cost: per prompt a forward pass and a row of later blocks for each n and s, about L / 2 passes for each n; the
    residuals of one prompt are held.
    """
    arch, ids = _arch(llm, part), tokenize(llm, prompts)
    budget = tokens_per_pass(llm, budget, remote, [(of_prompt, None) for of_prompt in ids])
    n_layers = arch.n_layers

    def removed(blocks):
        found = run(_block_removal, llm, arch, ids, blocks, part, budget, remote=remote, over="prompts")
        _no_loss_of_one_token(found, ids)
        return {f"removal_{key}": found.pop(key) for key in ("loss", "kl", "top1")} | found

    if part != "layer":
        single = removed([[l] for l in range(n_layers)])["removal_loss"].nanmean(0)
        order = single.argsort(stable=True).tolist()
        found = removed([order[:k] for k in range(1, n_layers + 1)])
        by_prompt = {key: value for key, value in found.items() if key.startswith("removal_")}
        found = _over_prompts(by_prompt) | {"removal_order": torch.tensor(order, dtype=torch.float32)}
        return Result(f"{part}_removal", found)
    tried = sizes_of(sizes, n_layers)
    by_prompt = _removed_in_a_row(removed, tried, len(ids), n_layers)
    while sizes == "refined" and (between := _between(by_prompt["removal_loss"], tried, n_layers)):
        more = _removed_in_a_row(removed, [between], len(ids), n_layers)
        tried, order = torch.tensor([*tried, between]).sort()
        tried = tried.tolist()
        for key in by_prompt.keys() - {"block_influence"}:
            by_prompt[key] = torch.cat([by_prompt[key], more[key]], dim=1)[:, order]
    found = _over_prompts(by_prompt) | {"removal_sizes": torch.tensor(tried, dtype=torch.float32)}
    return Result("block_removal", found)


def _removed_in_a_row(removed, sizes, n_prompts, n_layers):
    """The measures of removing each number of consecutive blocks from each start, [P, N, L], and `block_influence`."""
    stretches = [range(s, end) for end in range(1, n_layers + 1) for s in range(end) if end - s in sizes]
    found = removed([list(blocks) for blocks in stretches])
    n, s = torch.tensor([(sizes.index(len(blocks)), blocks.start) for blocks in stretches]).T
    by_prompt = {"block_influence": found.pop("influence")}
    found["angular_distance"] = found.pop("angular")[:, s, s + torch.tensor(sizes)[n]]
    for key, values in found.items():
        by_prompt[key] = torch.full((n_prompts, len(sizes), n_layers), torch.nan, dtype=torch.float32)
        by_prompt[key][:, n, s] = values
    return by_prompt


def _between(loss_by_prompt, tried, n_layers):
    """The number of blocks half-way between the most that cost at most AT_MOST and the next one tried; 0 if none is."""
    cheapest = loss_by_prompt.nanmean(0).nan_to_num(torch.inf).amin(1).tolist()
    most = max((n for n, cost in zip(tried, cheapest, strict=True) if cost <= AT_MOST), default=0)
    above = min((n for n in tried if n > most), default=n_layers)
    return (most + above) // 2 if above - most > 1 else 0


def block_orders(
    llm: TransformersModel,
    prompts: list[str],
    orders: Sequence[Sequence[int]] | str = "repeats swaps reversals removals",
    remote: Remote = False,
    budget: int | None = None,
) -> Result:
    """What it costs to run the blocks in another order: some repeated, exchanged, reversed or removed.

    >>> llm = dl.load_model("toy-4l")
    >>> prompts = dl.load_prompts("gsm8k", 2, source="embedded")
    >>> result = dl.block_orders(llm, prompts, [[0, 1, 2, 3], [0, 2, 1, 3], [0, 1, 2, 2, 3]])
    >>> result["order_loss"]  # nats per token
    tensor([0.0000, 0.6892, 0.1977])

    An order is a list of block numbers, run one after the other on the residual stream; numbers may repeat or be
    absent. A block keeps its own mask and positions wherever it stands.

    prompts: list of strings. orders: a list of K orders, such as `dl.repeats(L, sizes)`, `dl.swaps(L)`,
    `dl.reversals(L, sizes)` and `dl.removals(L, sizes)` make, or names of these, of which sizes are 1, 2, 4 … up to
    half of the blocks. remote, budget: as for `layer_effects`. Returns float32 means over tokens, then prompts, [K]:
    `order_loss`, the rise of −log p(next token) in nats, below 0 where the order predicts better; `order_kl` =
    KL(y ‖ ȳ) in nats; `order_top1`, the fraction of tokens whose top token stays; each also per prompt,
    `<key>_by_prompt` [P, K]; `orders` [K, longest], each followed by −1; and `n_layers` [1].

    Cost: one pass for each ascending stretch of an order, from the block where it begins (removals and repeats: one;
    swaps: two; a reversal of n blocks: n), many orders in a batch; their outputs at all tokens. Raises ValueError for
    an order that is empty or has other numbers than 0..L − 1, and for a prompt without tokens.
    Sources: Lad et al. 2024 (arXiv 2406.19384), Sun et al. 2024 (2407.09298).
    """
    arch, ids = verified_arch(llm), tokenize(llm, prompts)
    wanted = _orders(orders, arch.n_layers)
    budget = tokens_per_pass(llm, budget, remote, [(of_prompt, None) for of_prompt in ids])
    found = run(_block_orders, llm, arch, ids, wanted, budget, remote=remote, over="prompts", label="orders of blocks")
    _no_loss_of_one_token(found, ids)
    longest = max(map(len, wanted))
    padded = torch.tensor([[*order, *[-1] * (longest - len(order))] for order in wanted], dtype=torch.float32)
    by_prompt = {f"order_{key}": value for key, value in found.items()}
    return Result(
        "block_orders",
        _over_prompts(by_prompt) | {"orders": padded, "n_layers": torch.tensor([arch.n_layers], dtype=torch.float32)},
    )


def _no_loss_of_one_token(found, ids):
    """Make `loss` [P, …] NaN for prompts of one token, which nothing predicts, so that no mean counts them."""
    found["loss"][[len(of_prompt) == 1 for of_prompt in ids]] = torch.nan


def _listed(orders):
    """Orders of a tensor or an array as lists, others as they are."""
    return orders.tolist() if hasattr(orders, "tolist") else orders


def _orders(orders, n_layers):
    """The orders as lists of block numbers."""
    orders = _listed(orders)
    names = orders.split() if isinstance(orders, str) else []
    if not orders or not {*names} <= NAMED.keys():
        raise ValueError(f"orders={orders!r}; give lists of block numbers, or some of {', '.join(NAMED)}.")
    if names:
        found = [order for name in names for order in NAMED[name](n_layers)]
        if not found:
            raise ValueError(f"a model of {n_layers} blocks has no {' or '.join(names)} of the default sizes.")
        return found
    return [checked_order(order, n_layers) for order in orders]


def _orders_of_choices(removed, order, n_layers):
    """The orders that `choice_accuracy` is asked for, and whether it was given a list of several."""
    if removed:
        if order is not None:
            raise ValueError("give removed or order, not both: an order may lack blocks.")
        order = order_without(*stretch_of(removed), n_layers)
    order = _listed(order)
    several = bool(order) and not isinstance(order[0], int)
    orders = order if several else [] if order is None else [order]
    return [checked_order(one, n_layers) for one in orders], several


def choice_accuracy(
    llm: TransformersModel,
    choices: Sequence[Choice],
    removed: tuple[int, int] | None = None,
    remote: Remote = False,
    order: Sequence[int] | Sequence[Sequence[int]] | None = None,
    budget: int | None = None,
) -> dict[str, torch.Tensor]:
    """How often the likeliest ending of a text is the right one, with the blocks as they are or in another order.

    >>> llm = dl.load_model("toy-4l")
    >>> dl.choice_accuracy(llm, [("5 + 7 = ", ["12", "13"], 0)])["log_probs"].shape
    torch.Size([1, 2])

    An ending's score is Σ log p of its tokens, given the context. choices: from `load_choices`, or a list of (context,
    endings, number of the right one), all with the same number E of endings; removed: (s, n), without blocks
    s..s + n − 1; order: block numbers, or K lists of them; remote, budget: as for `layer_effects`. Returns float32
    `log_probs` [C, E], `correct` [C] (1 or 0) and `accuracy` [1], of K orders [K, C, E], [K, C] and [K]; with blocks
    removed or an order also `unchanged_correct` [C], of the model as it is. `dl.accuracy` has the interval,
    `dl.accuracy_change` that of the change between two results, and `dl.best_order` says whether the best of several
    orders gains anything. Raises ValueError if there are no choices, an ending has no token, or there are no such
    blocks.
    Cost: a forward pass per ending, and with orders another and their passes, as for `block_orders`.
    """
    for k, (_, endings, right) in enumerate(choices):
        if isinstance(endings, str) or right not in range(len(endings)):
            raise ValueError(f"choice {k} has endings {endings!r} and right {right!r}; give a list and a number of it.")
    arch, n_endings = verified_arch(llm), {len(endings) for _, endings, _ in choices}
    if len(n_endings) != 1:
        raise ValueError("give choices with the same number of endings, for example dl.load_choices().")
    orders, several = _orders_of_choices(removed, order, arch.n_layers)
    texts = [answer_span(llm, context, ending)[:2] for context, endings, _ in choices for ending in endings]
    budget = tokens_per_pass(llm, budget, remote, texts)
    found = run(_ending_log_probs, llm, arch, texts, orders, budget, remote=remote, over="texts", label="choices")
    log_probs = found["log_probs"].unflatten(0, (len(choices), *n_endings)).movedim(2, 0)  # [1 + K, C, E]
    correct = (log_probs.argmax(2) == torch.tensor([right for *_, right in choices])).float()
    unchanged = {"unchanged_correct": correct[0]} if orders else {}
    which = slice(1, None) if several else -1
    accuracy = correct[which].mean(-1)
    return {"log_probs": log_probs[which], "correct": correct[which], "accuracy": accuracy.reshape(-1)} | unchanged


def local_effects(
    llm: TransformersModel, prompts: list[str], mode: str = "future", remote: Remote = False, budget: int | None = None
) -> Result:
    """What taking block s's contribution out of the input of block l alone does to block l.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.local_effects(llm, prompts)["max_future_local"].tril().any()
    tensor(False)

    local[s, l] = max ‖c_l − c̄_l‖ / ‖c_l‖ over tokens i ≥ t, s < l, when block l reads h_l − c_s at tokens 1..t−1 and
    everything else stays clean: the direct part of `layer_effects`, without what travels through blocks between.

    prompts, mode ("future" or "all"), remote and budget: as for `layer_effects`. Returns float32 `max_<mode>_local`
    [L, L] (row = taken out, column = affected; 0 for l ≤ s), `max_<mode>_local_by_prompt` [P, L, L] and, where
    `layer_effects` has it, `max_<mode>_local_rounding_floor` [P]. Raises ValueError as `layer_effects` does, and for a
    model whose blocks read more of earlier ones than the residual. Source: Csordás et al. 2025, Figure 5.
    Cost: per prompt a forward pass, and one of L − 1 rows for each position; residuals and what blocks add are held.
    """
    arch = verified_arch(llm)
    if not arch.can_skip_blocks:
        raise ValueError(
            "local effects need blocks that read only the residual of earlier ones; this model's read more."
        )
    cases, numbers = skips_of(llm, prompts, mode, ("future", "all"))
    how = {"budget": tokens_per_pass(llm, budget, remote, cases), "label": f"local effects, {mode}", "numbers": numbers}
    effects = run(_local_effects, llm, arch, cases, mode, remote=remote, over="prompts", **how)
    return Result("local_effects", _over_prompts(effects))


def residual_erasure(
    llm: TransformersModel,
    question: str,
    answer: str,
    baseline_prompts: list[str],
    remote: Remote = False,
    budget: int | None = None,
) -> Result:
    """Up to which block the answer depends on each token's residual.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> erasure = dl.residual_erasure(llm, "5 + 7 = ", "12", prompts)
    >>> erasure["erasure_effect"].shape, len(erasure["tokens"])
    (torch.Size([5, 10]), 10)

    erasure_effect[l, t] = max over answer tokens of ‖y − ȳ‖₂, read where they are predicted, when h_l[t] is replaced
    by u_l, the mean of h_l over all tokens of the baseline prompts.

    question, answer: strings, tokenised together; baseline_prompts: list of strings; budget: tokens in one forward pass
    (default: half of a GPU's free memory, or what a CPU is fast with). Returns float32 `erasure_effect` [L + 1, T] (row
    0: embeddings, row l: output of block l − 1), `n_answer` [1], the number of tokens from the answer's first one on,
    `tokens`, T strings, and in half precision or with quantised weights `erasure_effect_rounding_floor` [L + 1], one
    number, the largest change of an output that moving the embeddings by one rounding unit causes, or, if that is more,
    twice the largest difference between two such runs that erase the same token: smaller effects may be rounding.
    Raises ValueError if the answer has no token of its own or nothing precedes it. Source: Csordás et al. 2025,
    Figure 6.
    Cost: a forward pass per baseline prompt, one of the question, and for each of its T tokens L + 1 rows, each of the
    blocks and tokens after the erased place: about T L / 4 passes; the question's residuals are held.
    """
    arch, (ids, positions, tokens) = verified_arch(llm), answer_span(llm, question, answer)
    result = _erased(_residual_erasure, llm, arch, ids, baseline_prompts, remote, budget, answer=positions)
    n_answer = torch.tensor([len(ids) - positions[0]], dtype=torch.float32)
    return Result("residual_erasure", result | {"n_answer": n_answer, "tokens": tokens})


def future_erasure(
    llm: TransformersModel,
    question: str,
    answer: str,
    baseline_prompts: list[str],
    remote: Remote = False,
    budget: int | None = None,
) -> Result:
    """Up to which block any later prediction depends on a token's residual, or on those of all tokens before it.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.future_erasure(llm, "5 + 7 = ", "12", prompts)["past_erasure"].shape
    torch.Size([5, 10])

    future_erasure[l, t] = max over i > t of ‖y[i] − ȳ[i]‖₂ when h_l[t] is replaced by u_l, the mean of h_l over all
    tokens of the baseline prompts; past_erasure[l, t] = max over i ≥ t when h_l is replaced at tokens 1..t−1 together.

    question, answer: strings, tokenised together; others as for `residual_erasure`. Returns float32 `future_erasure`
    and `past_erasure` [L + 1, T] (row 0: embeddings, row l: output of block l − 1; 0 where nothing is erased or nothing
    follows), their rounding floors as `residual_erasure`, and `tokens`, T strings. Errors: as `residual_erasure`.
    Source: Csordás et al. 2025, section 3.4.
    Cost: twice that of `residual_erasure`.
    """
    arch, (ids, _, tokens) = verified_arch(llm), answer_span(llm, question, answer)
    result = _erased(_future_erasure, llm, arch, ids, baseline_prompts, remote, budget)
    return Result("future_erasure", result | {"tokens": tokens})


def _erased(probe, llm, arch, ids, baseline_prompts, remote, budget, **positions):
    texts = texts_of(baseline_prompts)
    if not texts:
        raise ValueError("there are no baseline_prompts, of which the mean is taken; give some, dl.load_prompts(...).")
    baseline = tokenize(llm, texts)
    budget = tokens_per_pass(llm, budget, remote, [(ids, positions)])
    arguments = {"ids": ids, "layers": list(range(arch.n_layers)), "baseline_prompts": baseline, **positions}
    return run(probe, llm, arch, **arguments, budget=budget, remote=remote, over="layers")


def integrated_gradients(
    llm: TransformersModel,
    question: str,
    answer: str,
    quadrature: str | float = "gauss",
    remote: Remote = False,
    budget: int | None = None,
    at: str = "block",
    method: str | None = None,
    max_nodes: int = 256,
    steps: int = 16,
) -> Result:
    """Attribution of the answer's probability to each token's residual after each block.

    >>> llm = dl.load_model("toy-4l")
    >>> gradients = dl.integrated_gradients(llm, "5 + 7 = ", "12")
    >>> gradients["igrads"].shape, bool((gradients["error"] <= 0.01).all())
    (torch.Size([4, 10]), True)

    igrads[l, t] = Σ_d (x − b)[t, d] · ∫₀¹ ∂F/∂x[t, d] dr along b + r (x − b), with x the output h_{l+1} of block l, b
    its mean over the sequence and F the summed probability of the answer's true tokens. at "attention" or "mlp": x is
    what this part of block l adds, a_l or m_l; it alone moves, and what follows is recomputed.

    question, answer: strings, tokenised together. method: "gradients", or forward passes alone, "increments": the sum
    over `steps` of the path of what F changes by when token t alone takes the step, the mean of before and after the
    others take it, which converges as steps⁻² and takes 2 T rows per step. None: gradients here, and on a server where
    the key has NDIF's tag "trusted"; else increments, as no gradient leaves NDIF's sandbox. quadrature, of gradients:
    "gauss" (Gauss–Kronrod panels of 7 or 15 nodes, cut where F is steep until no token's estimated error is above 1 %
    of max |igrads[l]|, or a number: above that share of it; at most `max_nodes` per block) or "riemann" (256 left-end
    steps, as in the papers). budget: tokens in one forward pass (default: half of a GPU's free memory, or what a CPU is
    fast with).

    Returns float32 `igrads` [L, T], `completeness` = Σ_t igrads − (F(x) − F(b)), `f_difference` = F(x) − F(b),
    `n_nodes` (of increments `n_steps`) and `tokens`, T strings; except of Riemann also `error` [L], an estimated bound
    of a token's error relative to max |igrads[l]|. A warning names the blocks where it is above the tolerance; half
    precision is coarse. Raises ValueError for an unknown quadrature, method or place, for a part of a model that is
    read block by block, if the answer has no token of its own, or for gradients that are not finite; NotReady for
    method "gradients" on a server that runs this key's jobs in its sandbox.
    Source: Sundararajan et al. 2017; Csordás et al. 2025, Figure 6; the quadrature: Piessens et al. 1983, QUADPACK.
    Cost: a forward pass, and for each block 9 to `max_nodes` points, each a forward and a backward pass of the blocks
    after it (increments: 2 T `steps` forward passes); what a backward pass needs of a batch is held.
    """
    tolerance = 0.01 if quadrature in ("gauss", "riemann") else quadrature
    if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not 0 <= float(tolerance) <= 1:
        raise ValueError(f'quadrature {quadrature!r} is not known; use "gauss", "riemann" or a tolerance such as 0.01.')
    if method and (problem := not_among(("gradients", "increments"), "method", method)):
        raise ValueError(problem)
    for name, value, least in (("max_nodes", max_nodes, 9), ("steps", steps, 1)):
        if type(value) is not int or value < least:
            raise ValueError(f"{name} is {value!r}; give a whole number of at least {least}.")
    arch, (ids, positions, tokens) = _arch(llm, at, "block", "at"), answer_span(llm, question, answer)
    method = method_there(remote, method)
    if method == "increments" and quadrature == "riemann":
        raise ValueError('left-end steps need gradients; give method="gradients", or steps=… in place of "riemann".')
    left_ends = 256 if quadrature == "riemann" else None
    budget = tokens_per_pass(llm, budget, remote, [(ids, positions)], gradients=method == "gradients")
    arguments = (arch, ids, positions, list(range(arch.n_layers)), at)
    arguments += (steps if method == "increments" else left_ends, tolerance, budget, max_nodes, method)
    try:
        result = run(_integrated_gradients, llm, *arguments, remote=remote, over="layers")
    except JobFailed as failed:
        if not NO_GRADIENT.search(str(failed)):
            raise
        raise NotReady(NO_GRADIENTS_THERE) from failed
    _check_gradients(result, tolerance, method)
    return Result("integrated_gradients" if at == "block" else f"{at}_gradients", result | {"tokens": tokens})


def _check_gradients(result, tolerance, method):
    """A warning that names the blocks with errors above the tolerance."""
    rough = result.get("error", torch.zeros(1)) > tolerance
    if rough.any():
        blocks = rough.nonzero().flatten().tolist()
        finer = "max_nodes" if method == "gradients" else "steps"
        warnings.warn(
            f"the integrated gradients of blocks {blocks} are not known better than "
            f"{100 * result['error'][rough].max():.2g} % of the largest attribution, the worst of them: the answer's "
            f"probability jumps there, or half precision is too coarse; raise {finer}, or compute in float32",
            stacklevel=3,
        )


def depth_by_difficulty(
    llm: TransformersModel, examples: Sequence[Example], remote: Remote = False, budget: int | None = None
) -> Result:
    """What skipping block s before the answer does to later blocks and to the output, for questions of each level.

    >>> llm = dl.load_model("toy-4l")
    >>> result = dl.depth_by_difficulty(llm, dl.load_examples("sums", 2))
    >>> result["levels"].tolist(), result["mean_layer_effect"].shape
    ([2.0, 3.0, 4.0, 5.0, 6.0], torch.Size([5, 4, 4]))

    D[s, l] = max over tokens i ≥ t of ‖c_l − c̄_l‖ / ‖c_l‖ when block s passes tokens 1..t−1 on unchanged, and
    o[s] = max ‖y − ȳ‖₂ over the same tokens. t is the token that predicts the answer's first one or, for an example
    that is measured `within` its answer of A tokens, the answer's start plus each of the first 4 of
    range(0, A − 4, 4), shuffled by one Random(123) for all examples (its start where there is none): maxima over t.

    examples: from `load_examples`, or a list of Example(level, question, answer); budget: tokens in one forward pass
    (default: half of a GPU's free memory, or what a CPU is fast with). Returns float32, for E examples, `layer_effect`
    [E, L, L] (skipped, affected), `output_effect` [E, L] and `level` [E]; for the K different `levels` [K] the mean and
    the maximum over their examples, `mean_layer_effect`, `max_layer_effect` [K, L, L], `mean_output_effect`,
    `max_output_effect` [K, L]. In half precision or with quantised weights also `layer_effect_rounding_floor` and
    `output_effect_rounding_floor` [E], as for `layer_effects`. Raises ValueError if there are no examples,
    or if one is not (level, question, answer), has no answer, or no token between the first and t.
    `effective_depth.difficulty.depth_scores` makes one number per level.
    Source: Csordás et al. 2025, Figure 7.
    Cost: as `layer_effects` for one position per example, up to four `within` an answer.
    """
    examples = [_checked(number, example) for number, example in enumerate(examples or ())]
    if not examples:
        raise ValueError("there are no examples to measure; load some with dl.load_examples(...).")
    arch, cases, draw = verified_arch(llm), [], random.Random(123)
    for number, example in enumerate(examples):
        ids, answer, _ = answer_span(llm, example.question, example.answer)
        positions = [answer[0] - 1]
        if example.within:
            positions = [answer[0] + offset for offset in draw_four(range(0, len(answer) - 4, 4), draw) or [0]]
        if min(positions) < 2:
            raise ValueError(f"example {number} ({example.question!r}) has no token to skip; give a longer question.")
        cases.append((ids, positions))
    how = {"budget": tokens_per_pass(llm, budget, remote, cases), "label": "depth by difficulty"}
    effects = run(_layer_effects, llm, arch, cases, "future", "layer", remote=remote, over="prompts", **how)
    effects["max_future_out"] = effects["max_future_out"][..., 0]
    level = torch.tensor([example.level for example in examples], dtype=torch.float32)
    result = {"level": level, "levels": level.unique()}
    for name, key in (("layer_effect", "max_future_layer"), ("output_effect", "max_future_out")):
        by_level = [effects[key][level == one] for one in result["levels"]]
        result[name] = effects[key]
        result[f"mean_{name}"] = torch.stack([group.mean(0) for group in by_level])
        result[f"max_{name}"] = torch.stack([group.amax(0) for group in by_level])
        if f"{key}_rounding_floor" in effects:
            result[f"{name}_rounding_floor"] = effects[f"{key}_rounding_floor"]
    return Result("depth_by_difficulty", result)


def _checked(number: int, example: Sequence) -> Example:
    """The example, if it is a whole level, a question and an answer."""
    match example:
        case (Integral(), str(), str()) | (Integral(), str(), str(), _):
            return Example(*example)
    raise ValueError(
        f"example {number} is {reprlib.repr(example)}; give (level, question, answer), the level a whole number, or "
        "load some with dl.load_examples(...)."
    )


def tokens_per_pass(
    llm: TransformersModel, budget: int | None, remote: Remote, cases: Sequence[tuple] = (), gradients: bool = False
) -> int | None:
    """The budget that a probe is given: `budget`; else, on this machine's GPUs, what fits into half of the memory that
    is free on the fullest; else None, with which a probe goes by the model's config alone (see `tokens_in_pass`).

    cases: tuples that begin with a prompt's token ids; gradients: as in `tokens_in_pass`. Raises ValueError for a
    budget that is no whole number of at least 1.
    """
    check_budget(budget)
    if budget is not None:
        return budget
    gpus = () if remote else {p.device for p in llm.parameters() if p.device.type == "cuda"}
    if not gpus:
        return None
    # what torch keeps for reuse is free too
    free = [
        torch.cuda.mem_get_info(gpu)[0] + torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
        for gpu in gpus
    ]
    longest = max((len(ids) for ids, *_ in cases), default=0)
    h = torch.empty(longest, verified_arch(llm).width, dtype=llm.dtype, device="meta")
    return from_rank_0(tokens_in_pass(llm, h, min(free) // 2, gradients), is_sharded(llm))


def _arch(llm, part, whole="layer", name="part"):
    """`verified_arch`; ValueError for an unknown part, or one of a model that is read block by block."""
    if problem := not_among((whole, "attention", "mlp"), name, part):
        raise ValueError(problem)
    arch = verified_arch(llm)
    if part != whole and not arch.parts:
        raise ValueError("what attention and MLP of this model add is not known; use whole blocks.")
    return arch


def _pool(sums):
    """Token-pooled means Σ sums / Σ tokens beside the per-prompt sums they come from."""
    n_tokens = sums["n_tokens"].sum()
    means = {key.removesuffix("_sums"): value.sum(0) / n_tokens for key, value in sums.items() if key.endswith("_sums")}
    return {**means, **sums}
