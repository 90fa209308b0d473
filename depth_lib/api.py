"""The five probes as people call them: plain strings in, a dict of CPU float32 tensors out.

remote: False (this machine), True (NDIF), "local" (a rehearsal of NDIF here) or a host's URL. On a server the prompts
are one job, or several of DEPTH_LIB_PROMPTS_PER_JOB prompts (environment; default: 1000 / blocks), and one question's
layers one job, or several of DEPTH_LIB_LAYERS_PER_JOB. Several jobs give what one job gives, bit for bit; only the
layers of residual erasure give it to rounding (1e-6 of the largest value), as they share a batch with fewer others.
"""

import random
import warnings

import torch

from . import probes
from .architectures import describe
from .progress import steps
from .session import run


def relative_contribution(llm, prompts, remote=False):
    """How much each block adds to the residual stream, and in which direction.

    rc_att = ‖a_l‖ / ‖h_l‖, rc_mlp = ‖m_l‖ / ‖h_l + a_l‖, rc_layer = ‖a_l + m_l‖ / ‖h_l‖ and the cosines of the same
    pairs (parallel blocks: the MLP reads h_l), means over all tokens of all prompts.

    prompts: list of strings. Returns float32 `rc_att`, `rc_mlp`, `rc_layer`, `att_cos`, `mlp_cos`, `layer_cos`,
    `io_cos`, `norm_att`, `norm_mlp` [L], `norm_residual` [L + 1]; for intervals the sums over each prompt's tokens
    `<key>_sums` [P, L] and `n_tokens` [P]. Raises ValueError for a prompt without tokens.
    Source: Csordás et al. 2025 (arXiv 2505.13898), section 3.1.
    """
    ids = tokenize(llm, prompts)
    arch, how = describe(llm), {"over": "prompts", "label": "contribution"}
    return _pool(run(probes.relative_contribution, llm, arch, ids, remote=remote, **how))


def logit_lens(llm, prompts, remote=False):
    """What the model would predict if it stopped before block l, against what it predicts.

    With p_l = softmax(lens(h_l)) and y the final distribution: KL(p_l ‖ y) in nats, |top5(p_l) ∩ top5(y)| / 5,
    agreement of the top token, and the mean reciprocal rank of y's top token under p_l; means over all tokens.

    prompts: list of strings. Returns float32 `res_kl_divs`, `res_overlaps`, `res_top1`, `res_mrr` [L] (entry l reads
    the input of block l), `<key>_sums` [P, L] and `n_tokens` [P]. Raises ValueError for a prompt without tokens.
    Source: Csordás et al. 2025, section 3.2; Hu et al. 2025 (arXiv 2512.14064).
    """
    ids = tokenize(llm, prompts)
    return _pool(run(probes.logit_lens, llm, describe(llm), ids, remote=remote, over="prompts"))


def layer_effects(llm, prompts, mode="future", remote=False, budget=None):
    """What skipping block s does to every later block and to the output.

    effect[s, l] = max ‖c_l − c̄_l‖ / ‖c_l‖ over tokens i ≥ t, c_l = h_{l+1} − h_l, when block s passes tokens 1..t−1
    on unchanged; output[s] = max ‖y − ȳ‖₂ over the same tokens; maxima over positions t and prompts. mode "future":
    up to 4 positions t a prompt, drawn with seed 123; "all": every token i ≥ 1 is skipped, every token measured.

    prompts: list of strings; budget: tokens in one forward pass (default: what fits into free memory). Returns float32
    `max_<mode>_layer` [L, L] (row = skipped, column = affected),
    `max_<mode>_out` [L, 1], and the same for each prompt as `<key>_by_prompt` [P, …]. A prompt too short for a
    position (under 13 tokens) is left out of future mode with a warning. Raises ValueError for an unknown mode, a
    prompt without tokens, or if no prompt is long enough. Source: Csordás et al. 2025, section 3.3.
    """
    if mode not in ("future", "all"):
        raise ValueError(f'mode {mode!r} is not known; use "future" or "all".')
    ids = tokenize(llm, prompts)
    positions = future_positions([len(x) for x in ids]) if mode == "future" else [[len(x)] for x in ids]
    work = list(zip(ids, positions, strict=True))
    if mode == "future":
        short = [f"prompt {p} ({len(x)} tokens)" for p, (x, t) in enumerate(work) if not t]
        if len(short) == len(work):
            raise ValueError("no prompt has the 13 tokens that future mode needs; use longer prompts or mode='all'.")
        if short:
            warnings.warn(f"too short for future mode (13 tokens), left out: {', '.join(short)}", stacklevel=2)
        work = [(x, t) for x, t in work if t]
    arch, how = describe(llm), {"over": "work", "label": f"layer effects, {mode}"}
    found = run(probes.layer_effects, llm, arch, work, mode, budget, remote=remote, **how)
    effects, outputs = found["effects"], found["outputs"]
    return {
        f"max_{mode}_layer": effects.amax(0),
        f"max_{mode}_out": outputs.amax(0),
        f"max_{mode}_layer_by_prompt": effects,
        f"max_{mode}_out_by_prompt": outputs,
    }


def residual_erasure(llm, question, answer, baseline_prompts, remote=False, budget=None):
    """Until which block each token's residual is needed for the answer.

    erasure_effect[l, t] = max over answer tokens of ‖y − ȳ‖₂, read where they are predicted, when h_l[t] is replaced
    by u_l, the mean of h_l over all tokens of the baseline prompts.

    question, answer: strings, tokenised together; baseline_prompts: list of strings; budget: tokens in one forward
    pass (default: what fits into free memory). Returns float32 `erasure_effect` [L + 1, T] (row 0: embeddings, row l:
    output of block l − 1) and `tokens`, T strings. Raises ValueError if the answer has no token of its own or nothing
    precedes it. Source: Csordás et al. 2025, section 3.4.
    """
    ids, places, tokens = answer_span(llm, question, answer)
    arch, baseline = describe(llm), tokenize(llm, baseline_prompts)
    work = (arch, ids, places, list(range(arch["n_layers"])), baseline, budget)
    result = run(probes.residual_erasure, llm, *work, remote=remote, over="layers")
    return {**result, "tokens": tokens}


def integrated_gradients(
    llm, question, answer, quadrature="gauss", remote=False, tolerance=0.01, budget=None, at="block"
):
    """Which tokens' residuals, at which depth, the answer's probability comes from.

    igrads[l, t] = Σ_d (x − b)[t, d] · ∫₀¹ ∂F/∂x[t, d] dr along b + r (x − b), with x the output h_{l+1} of block l, b
    its mean over the sequence and F the summed probability of the answer's true tokens. at "attention" or "mlp": x is
    what this part of block l adds, a_l or m_l; it alone moves, and what follows is recomputed.

    question, answer: strings, tokenised together; quadrature: "gauss" (Gauss–Kronrod panels of 15 nodes, cut where F is
    steep until no token's estimated error is above tolerance · max |igrads[l]|; at most 256 nodes a block, which is not
    always enough: a warning names the blocks) or "riemann" (256 left-end steps, as the papers); budget: tokens in one
    forward pass (default: what fits into free memory). Returns float32 `igrads` [L, T], `completeness` = Σ_t igrads −
    (F(x) − F(b)), `f_difference` = F(x) − F(b), `n_nodes` and, of "gauss", the estimated `error` relative to
    max |igrads[l]| [L], and `tokens`, T strings. Raises ValueError for an unknown quadrature or place, if the answer
    has no token of its own, or for gradients that are not finite.
    Source: Sundararajan et al. 2017; Csordás et al. 2025, section 3.4; the quadrature: Piessens et al. 1983, QUADPACK.
    """
    if quadrature not in ("gauss", "riemann"):
        raise ValueError(f'quadrature {quadrature!r} is not known; use "gauss" or "riemann".')
    if at not in ("block", "attention", "mlp"):
        raise ValueError(f'there are no gradients at {at!r}; use "block", "attention" or "mlp".')
    if not (isinstance(tolerance, float | int) and tolerance >= 0):
        raise ValueError(f"tolerance {tolerance!r} is no share of the largest attribution; use a number such as 0.01.")
    ids, places, tokens = answer_span(llm, question, answer)
    arch, how = describe(llm), {"at": at, "steps": 256 if quadrature == "riemann" else None, "tolerance": tolerance}
    work = (arch, ids, places, list(range(arch["n_layers"])), how, budget)
    result = _by_layers(probes.integrated_gradients, llm, work, remote, "integrated gradients")
    _check_finite(result)
    if "error" in result and (result["error"] > tolerance).any():
        rough = result["error"] > tolerance
        warnings.warn(
            f"the integrated gradients of block {', '.join(str(int(l)) for l in rough.nonzero())} are rough: the "
            f"estimated error is up to {result['error'].max():.1%} of the largest attribution, as F jumps on the way",
            stacklevel=2,
        )
    return {**result, "tokens": tokens}


def _by_layers(probe, llm, work, remote, label):
    """run(probe, llm, *work) for work[3], the layers: those of a tenth of the model at a time on this machine, so that
    a bar can move, and on a server in one job or several. A layer's cost is taken for that of the blocks behind it."""
    if remote:
        return run(probe, llm, *work, remote=remote, over="layers")
    n_layers, size = work[0]["n_layers"], max(1, len(work[3]) // 10)
    groups = [work[3][start : start + size] for start in range(0, len(work[3]), size)]
    costs = [sum(n_layers - l for l in group) for group in groups]
    results = [run(probe, llm, *work[:3], group, *work[4:]) for group in steps(groups, label, "part", costs)]
    return {key: torch.cat([result[key] for result in results]) for key in results[0]}


def _check_finite(result):
    """ValueError that names the layers with values that are not finite."""
    bad = sorted({int(l) for value in result.values() for l in (~value.isfinite()).nonzero()[:, 0]})
    if bad:
        raise ValueError(
            f"the integrated gradients of block {', '.join(map(str, bad))} are not finite: numbers overflow "
            'there; load it with dtype="float32" or "bfloat16".'
        )


def tokenize(llm, prompts):
    """The token ids of each prompt, with the tokenizer's own special tokens; ValueError for nothing to measure."""
    prompts = [prompts] if isinstance(prompts, str) else [] if prompts is None else list(prompts)
    if not prompts:
        raise ValueError("there are no prompts to measure; load some with dl.load_prompts(...).")
    ids = []
    for p, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise ValueError(f"prompt {p} is of type {type(prompt).__name__}, not text; give a list of strings.")
        try:
            ids.append(llm.tokenizer(prompt)["input_ids"])
        except (TypeError, UnicodeError) as error:
            raise ValueError(f"prompt {p} ({prompt!r}) cannot be tokenised: {error}; mend its text.") from error
        if not ids[p]:
            raise ValueError(f"prompt {p} ({prompt!r}) has no tokens; leave it out.")
        _check_length(llm, ids[p], f"prompt {p}")
    return ids


def _check_length(llm, ids, name):
    """Learned positions end, with an index error or on a GPU a dead process; rotary ones go on into nonsense."""
    limit = getattr(llm.config, "max_position_embeddings", None)
    rope = getattr(llm.config, "rope_parameters", None) or {}
    if limit and rope.get("rope_type") in ("linear", "dynamic", "yarn"):  # some configs keep the unscaled length
        limit = int(max(limit, (rope.get("original_max_position_embeddings") or limit) * rope.get("factor", 1)))
    if limit and len(ids) > limit:
        raise ValueError(f"{name} has {len(ids)} tokens, but the model has {limit} positions; use a shorter text.")


def future_positions(lengths):
    """The positions t of every prompt: the first 4 of range(8, T − 4, 8) after one shuffle by one Random(123)."""
    draw = random.Random(123)
    positions = []
    for n_tokens in lengths:
        candidates = list(range(8, n_tokens - 4, 8))
        draw.shuffle(candidates)
        positions.append(candidates[:4])
    return positions


def answer_span(llm, question, answer):
    """Token ids of question + answer, the places of the answer's tokens, and the tokens as strings.

    The answer's tokens are those whose characters overlap the answer in the string tokenised once.
    """
    if not llm.tokenizer.is_fast:
        raise ValueError("the answer is found by character offsets, which need a fast tokenizer (tokenizer.json).")
    if not (isinstance(question, str) and isinstance(answer, str)):
        found = f"{type(question).__name__} and {type(answer).__name__}"
        raise ValueError(f"question and answer are of type {found}, not text; give two strings.")
    encoding = llm.tokenizer(question + answer, return_offsets_mapping=True)
    ids, offsets = encoding["input_ids"], encoding["offset_mapping"]
    _check_length(llm, ids, "the question with its answer")
    places = [i for i, (_, end) in enumerate(offsets) if end > len(question)]  # special tokens end at 0
    if not answer.strip() or not places:
        raise ValueError(f"the answer {answer!r} has no token in {question + answer!r}; give a visible answer.")
    if places[0] == 0:
        raise ValueError(f"nothing precedes the answer {answer!r}, so no token predicts it; give a longer question.")
    return ids, places, [llm.tokenizer.decode([i]) for i in ids]


def _pool(sums):
    """Token-pooled means Σ sums / Σ tokens beside the per-prompt sums they come from."""
    n_tokens = sums["n_tokens"].sum()
    means = {key.removesuffix("_sums"): value.sum(0) / n_tokens for key, value in sums.items() if key != "n_tokens"}
    return {**means, **sums}
