"""Reading and steering the residual stream inside a trace. Everything here runs where the model is."""

import torch


def token_budget(llm, given, blocks_held=1):
    """Tokens in one forward pass: as given, else what takes 4 GiB, on a CPU 1 GiB and no more than makes it faster.

    Free memory is not asked: of several processes that run one request each would find another number, and make batches
    of other sizes.
    """
    if given is not None:
        return given
    token = bytes_of_a_token(llm, blocks_held)
    if llm.device.type == "cpu":
        most = 3072 if blocks_held == 1 else 512  # beyond these a CPU gains nothing
        return max(1, min(most, 2**30 // token))
    return max(1024 // blocks_held, min(2**17, 2**32 // token))


def bytes_of_a_token(llm, blocks_held=1):
    """A block holds about 16 vectors of the residual's width for a token, and a gradient needs those of `blocks_held`
    blocks; logits are bounded on their own."""
    return 16 * llm.config.get_text_config().hidden_size * llm.dtype.itemsize * blocks_held


def is_sharded(llm):
    """Whether each layer of the model is shared by several processes, which all run this code."""
    ranks = torch.distributed
    started = ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1
    return started and getattr(llm.config, "distributed_config", None) is not None


def agreed(llm, value):
    """Rank 0's value, on every rank of a sharded model. For whatever decides which modules run next: ranks that run
    different ones would wait for each other for ever."""
    if not is_sharded(llm):
        return value
    shared = [value]
    torch.distributed.broadcast_object_list(shared)
    return shared[0]


def exact(x):
    """A context for float32 products of ours on the device of x: a server may run requests under autocast, which would
    round them to bfloat16. Only for arithmetic on tensors: the model runs in this thread too, and would run so."""
    return torch.autocast(x.device.type, enabled=False)


def first(output):
    """The hidden states of a module that returns them alone or in front of others."""
    return output[0] if isinstance(output, tuple | list) else output


def inputs(ids, positions=None, mask=None, batch=1):
    """Model inputs for one sequence of token ids [T]; no cache, since nothing is generated."""
    encoding = {"input_ids": torch.tensor(ids).expand(batch, -1)}
    if mask is not None:
        encoding["attention_mask"] = mask
        encoding["position_ids"] = torch.tensor(positions).expand(batch, -1)
    return encoding


def start_at(llm, arch, l, h):
    """Begin the forward pass at block l with the residual stream h [B, T, d] (l = L: behind the last).

    The blocks before do not run, unless later ones read more of them than the residual.
    """
    replacement = (h, *[None] * arch["beside"]) if arch["beside"] else h
    for k in range(l if arch["starts"] else 0):
        llm.blocks[k].skip(replacement)
    if l < arch["n_layers"]:
        llm.blocks[l].input = h


def contributions(block, arch):
    """h, a and m of a block, float32 on its device: what enters it, and what attention and MLP add to that.

    0 for a part that the block does not have. Where the two cannot be told apart a is all that the block adds. The
    product makes copies, which some families need: they add in place right after a module returns.
    """
    h = block.input
    if not arch["parts"]:
        before = h.clone()
        a = first(block.output).float() - before.float()
        return before.float(), a, torch.zeros_like(a)
    a, m = (
        first(part.output).reshape(h.shape).float() * arch["residual_scale"] if part else torch.zeros_like(h).float()
        for part in parts(block).values()
    )
    return h.to(a.device).float(), a, m.to(a.device)


def parts(block):
    """The modules whose outputs are a and m; None for one that the block does not have."""
    return {name: getattr(block, f"{name}_contribution", None) for name in ("attention", "mlp")}


def added(block, arch, start, change=None, part=None):
    """What a block adds at the places from `start` on: a + m [B, T − start, d], float32. `change(x)` changes in place
    x [B, T, d], what the block's `part` gives: "attention" or "mlp". NaN if these cannot be told apart."""
    if not arch["parts"]:
        h = block.input.clone()
        c = (first(block.output).float() - h.float())[:, start:]
        return c * torch.nan if change else c
    shape = block.input.shape
    outputs = []
    for name, module in parts(block).items():
        if module is None:
            continue
        output = module.output
        x = first(output)
        if change and name == part:
            x = x.clone()
            change(x.view(shape))
            module.output = (x, *output[1:]) if isinstance(output, tuple) else x
        outputs.append(x.reshape(shape)[:, start:].float())
    a, *m = outputs
    return (a + m[0].to(a.device) if m else a) * arch["residual_scale"]


def lens(llm, arch, h):
    """The logit lens: finish(unembed(final_norm(h))) of residuals h [N, d] as logits [N, V], float32."""
    normed = llm.ln_final(h) if arch["ln_final"] else h
    if arch["project_out"]:
        normed = llm.project_out(normed)
    logits = llm.unembed(normed).float()
    if arch["logit_scale"] != 1.0:
        logits = logits * arch["logit_scale"]
    if arch["logit_softcap"] is not None:
        logits = torch.tanh(logits / arch["logit_softcap"]) * arch["logit_softcap"]
    return logits


def rows_of_logits(llm, device):
    """How many rows of logits are computed at once: 28 MB, which a CPU uses again and again, elsewhere half a GB."""
    return max(1, (7 * 2**20 if device.type == "cpu" else 2**27) // llm.config.vocab_size)


def in_cache(logits, *others):
    """Logits [N, V] and others [N, …] in pieces of a few rows, since passes over the vocabulary are what distances
    cost and a CPU's cache holds few; whole elsewhere."""
    rows = max(1, 2**18 // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    return [x.split(rows) for x in (logits, *others)]


def softmax_and_log(z, out=None):
    """p, log p of logits z [N, V], which are overwritten by log p, and what was taken off them: the largest of each row
    [N] and then log Σ exp [N]. The exponentials are taken once.

    No exponential is below e^−70, which no sum of float32 notices: a CPU takes a hundred times as long for subnormals.
    """
    largest = z.amax(-1, keepdim=True)
    p = torch.clamp_min(z.sub_(largest), -70, out=out).exp_()
    total = p.sum(-1, keepdim=True)
    log_total = total.log()
    return p.mul_(total.reciprocal()), z.sub_(log_total), (largest[:, 0], log_total[:, 0])


def probabilities(llm, arch, h):
    """softmax(lens(h)) [N, V] of residuals h [N, d]."""
    return lens(llm, arch, h).softmax(-1)


def compares_in_batch(llm):
    """Whether an intervention must be compared with an unmodified row of its own batch: products round differently in
    batches of another size, which shows in half precision and where weights are quantised."""
    return llm.dtype.itemsize < 4 or getattr(llm.config, "quantization_config", None) is not None


def clean_run(llm, arch, ids, with_c=True, read=None):
    """Residuals `h`, h_0..h_L [1, T, d], of the model as it is; if asked, contributions `c`, L times a + m [1, T, d].

    Where a session has several calls they share the last one, in arch["clean"], which always has both. `read(h, a, m)`
    is called inside every block, float32 [1, T, d]; what it returns is `read`, L times, and then the model runs anew.
    """
    kept = arch.get("clean")
    if kept and kept["ids"] == ids and not read:
        return kept
    with_c = with_c or kept is not None
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            h, c, found = [], [], []
            for block in llm.blocks:
                h.append(block.input.clone())  # some families add in place
                if with_c or read:
                    before, a, m = contributions(block, arch)
                    c.append(a + m if with_c else None)
                    found.append(read(before, a, m) if read else None)
            h.append(first(llm.blocks[arch["n_layers"] - 1].output).clone())
            tracer.stop()
    run = {"ids": ids, "h": h, "c": c}
    if kept is not None:
        kept.clear()
        kept |= run
    return {**run, "read": found}


def output_change(llm, arch, parts):
    """‖y − ȳ‖₂ [R, M] of every part, a dict of final residuals `varied` [R, M, d] and `clean` [K, d], and `same`, which
    clean one belongs to each of the M. Not inside a trace: it opens one.

    Parts that know the `next` token of each of the M (−1: there is none) give [4, R, M]: the distance, KL(y ‖ ȳ) in
    nats, log y − log ȳ of the next token, and whether the top token changes. All are unembedded together and sorted by
    the clean residual, so that a piece needs the output of few clean ones.
    """
    if not parts:
        return []
    varied = torch.cat([part["varied"].flatten(0, 1) for part in parts])
    cleans, same, following, n_clean = [], [], [], 0
    for part in parts:
        if not cleans or part["clean"] is not cleans[-1]:
            n_clean += len(cleans[-1]) if cleans else 0
            cleans.append(part["clean"])
        same += [n_clean + k for k in part["same"]] * len(part["varied"])
        following += part.get("next", []) * len(part["varied"])
    clean, chunk = torch.cat(cleans).to(varied.device), rows_of_logits(llm, varied.device)
    changes = torch.zeros(4 if following else 1, len(same), dtype=torch.float32)
    by_clean = sorted(range(len(same)), key=same.__getitem__)
    with torch.no_grad():
        with llm.trace(inputs([0]), use_cache=False) as tracer:
            for start in range(0, len(by_clean), chunk):
                piece = by_clean[start : start + chunk]
                bases, counts = torch.unique_consecutive(torch.tensor([same[n] for n in piece]), return_counts=True)
                logits = lens(llm, arch, torch.cat([clean[bases.to(clean.device)], varied[piece]]))
                y_clean, groups = logits[: len(bases)], logits[len(bases) :].split(counts.tolist())
                if following:
                    tokens = torch.tensor([following[n] for n in piece], device=logits.device).split(counts.tolist())
                    of_next = [z[token.clamp_min(0)] for z, token in zip(y_clean, tokens, strict=True)]
                    y, log_y, scale = softmax_and_log(y_clean)
                    total = _wide(scale[0]) + _wide(scale[1])
                    each = zip(zip(y, log_y, of_next, total, strict=True), groups, tokens, strict=True)
                    found = [_damage(*group) for group in each]
                else:
                    found = [_distance(y, group) for y, group in zip(y_clean.softmax(-1), groups, strict=True)]
                changes[:, piece] = torch.cat(found, dim=1).cpu()
            tracer.stop()
    shapes = [(-1, *part["varied"].shape[:2]) for part in parts]
    split = changes.split([rows * places for _, rows, places in shapes], dim=1)
    return [
        change.reshape(shape) if following else change[0].view(shape[1:])
        for change, shape in zip(split, shapes, strict=True)
    ]


def _distance(y, logits):
    """‖y − ȳ‖₂ [1, N] of one output y [V] and those of logits [N, V]."""
    return torch.cat([z.softmax(-1).sub_(y).norm(dim=-1) for z in in_cache(logits)[0]])[None]


def _damage(clean, logits, following):
    """Distance, KL(y ‖ ȳ), rise of the next token's loss (0 if there is none), change of the top token: [4, N], of
    logits [N, V] that are overwritten.

    clean: of the clean run y and log y [V], the logits of the next tokens [N] and log Σ exp of all. A loss is several
    nats and its rise may be a millionth of that, so the rise is a difference in float64 of what was not yet subtracted.
    """
    y, log_y, of_next, total = clean
    token, found = following.clamp_min(0), []
    of_token, of_top = logits.gather(1, token[:, None])[:, 0], logits[:, log_y.argmax()].clone()
    for z in in_cache(logits)[0]:
        p, log_p, (largest, log_total) = softmax_and_log(z)
        kl = torch.sub(log_y, log_p, out=log_p).mul_(y).sum(-1)
        found.append(torch.stack([p.sub_(y).norm(dim=-1), kl, largest, log_total]))
    distance, kl, largest, log_total = torch.cat(found, dim=1)
    rise = _wide(of_next) - _wide(of_token) - total + (_wide(largest) + _wide(log_total))
    rise = (rise * (following.cpu() >= 0)).float().to(kl.device)
    return torch.stack([distance, kl, rise, (of_top < largest).float()])


def _wide(numbers):
    """A few numbers [N] in float64, on the CPU: not every device has it."""
    return numbers.cpu().double()
