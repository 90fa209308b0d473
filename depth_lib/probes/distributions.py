"""Distributions over the vocabulary, and how far an intervention moves the model's output."""

import torch

from .residual_stream import finished, inputs, rows_of_logits, unembedded


def pieces(logits, *others):
    """Logits [N, V] and others [N, …], a few rows at a time where a CPU passes over them: its cache holds few."""
    rows = max(1, 2**18 // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    return zip(*(x.split(rows) for x in (logits, *others)), strict=True)


def softmax_and_log(z):
    """p and log p of logits z [..., V], which log p overwrites, and log Σ exp as two terms: the largest, the rest.

    No exponential is below e^−70, which no float32 sum notices: a CPU takes a hundred times as long for subnormals.
    """
    largest = z.amax(-1, keepdim=True)
    p = torch.clamp_min(z.sub_(largest), -70).exp_()
    total = p.sum(-1, keepdim=True)
    log_total = total.log()
    return p.mul_(total.reciprocal()), z.sub_(log_total), (largest[..., 0], log_total[..., 0])


def output_change(llm, arch, groups, next_tokens=None):
    """How far the outputs ȳ of changed runs are from those of clean runs. Opens a trace: not for use inside one.

    groups: tuples of final residuals `varied` [R, M, d] and `clean` [K, d], and `base`, for each of the M places the
    row of `clean` it belongs to. next_tokens: the token that follows each of the M places (−1: none), or None.

    Returns for each group ‖y − ȳ‖₂ [1, R, M], or with next_tokens also KL(y ‖ ȳ) in nats, log y − log ȳ of the next
    token, and whether the top token changes: [4, R, M].
    """
    if not groups:
        return []
    cleans, bases, n_clean = [], [], 0
    for varied, clean, base in groups:
        if not cleans or clean is not cleans[-1]:
            n_clean += len(cleans[-1]) if cleans else 0
            cleans.append(clean)
        bases += [n_clean + k for k in base] * len(varied)
    varied = torch.cat([varied.flatten(0, 1) for varied, _, _ in groups])
    clean = torch.cat(cleans).to(varied.device)
    tokens = [token for varied, _, _ in groups for token in next_tokens * len(varied)] if next_tokens else None
    change = torch.zeros(4 if tokens else 1, len(varied), dtype=torch.float32)
    # sorted, so that the clean rows of a piece are few
    order, size = sorted(range(len(varied)), key=bases.__getitem__), rows_of_logits(llm, varied.device)
    with torch.no_grad():
        with llm.trace(inputs([0]), use_cache=False) as tracer:  # one token, only to call the norm and the head
            for start in range(0, len(order), size):
                rows = order[start : start + size]
                own, counts = torch.unique_consecutive(torch.tensor([bases[n] for n in rows]), return_counts=True)
                logits = unembedded(llm, arch, torch.cat([clean[own.to(clean.device)], varied[rows]]))
                of_rows = logits[len(own) :].split(counts.tolist())
                if tokens:
                    following = torch.tensor([tokens[n] for n in rows], device=logits.device).split(counts.tolist())
                    compared = zip(logits[: len(own)], of_rows, following, strict=True)
                    found = [_damage(arch, y, z, token) for y, z, token in compared]
                else:
                    found = [_distance(arch, y, z) for y, z in zip(logits[: len(own)], of_rows, strict=True)]
                change[:, rows] = torch.cat(found, dim=1).cpu()
            tracer.stop()
    shapes = [varied.shape[:2] for varied, _, _ in groups]
    split = change.split([n_rows * n_places for n_rows, n_places in shapes], dim=1)
    return [part.unflatten(1, shape) for part, shape in zip(split, shapes, strict=True)]


def _distance(arch, y, logits):
    """‖y − ȳ‖₂ [1, N] of the unembedded residuals y [V] and logits [N, V]."""
    y = finished(arch, y).softmax(-1)
    return torch.cat([finished(arch, z).softmax(-1).sub_(y).norm(dim=-1) for (z,) in pieces(logits)])[None]


def _damage(arch, clean, logits, next_tokens):
    """Distance, KL(y ‖ ȳ), rise of the next token's loss (0 if there is none), change of the top token: [4, N].

    clean, logits: the unembedded residuals [V] of the clean run and [N, V] of changed ones, which are overwritten. The
    rise may be a millionth of the loss, so its terms are summed in float64.
    """
    clean = finished(arch, clean)
    top, columns = clean.argmax(), []
    y, log_y, (own_largest, own_rest) = softmax_and_log(clean[None].clone())
    for z, token in pieces(logits, next_tokens.clamp_min(0)):
        z = finished(arch, z)
        of_next, of_top = z.gather(1, token[:, None])[:, 0], z[:, top].clone()
        p, log_p, (largest, rest) = softmax_and_log(z)
        kl = torch.sub(log_y, log_p, out=log_p).mul_(y).sum(-1)
        columns.append(torch.stack([p.sub_(y).norm(dim=-1), kl, clean[token], of_next, largest, rest, of_top]))
    distance, kl, own_next, of_next, largest, rest, of_top = torch.cat(columns, dim=1)
    rise = _wide(own_next) - _wide(of_next) - _wide(own_largest) - _wide(own_rest) + _wide(largest) + _wide(rest)
    rise = (rise * (next_tokens.cpu() >= 0)).float().to(kl.device)
    return torch.stack([distance, kl, rise, (of_top < largest).float()])


def _wide(numbers):
    """A few numbers [N] in float64, on the CPU: not every device has it."""
    return numbers.cpu().double()
