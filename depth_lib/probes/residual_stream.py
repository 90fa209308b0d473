"""Reading and steering the residual stream inside a trace. Everything here runs where the model is."""

import torch


def token_budget(llm, given):
    """Tokens in one forward pass: as given, else what fits into half of the free memory of the fullest GPU.

    A block holds about 16 vectors of the residual's width for a token; logits are bounded on their own.
    """
    if given is not None:
        if not (isinstance(given, int) and given > 0):
            raise ValueError(f"budget {given!r} is no number of tokens; give a whole number of at least 1, or None.")
        return given
    devices = {p.device for p in llm.parameters() if p.device.type == "cuda"}
    if not devices:
        return 8192  # beyond this a CPU gains nothing
    free = min(torch.cuda.mem_get_info(device)[0] for device in devices)
    return max(1024, min(2**17, free // 2 // (16 * llm.config.hidden_size * llm.dtype.itemsize)))


def first(output):
    """The hidden states of a module that returns them alone or in front of a tuple."""
    return output[0] if isinstance(output, tuple) else output


def inputs(ids, positions=None, mask=None, batch=1):
    """Model inputs for one sequence of token ids [T]; no cache, since nothing is generated."""
    encoding = {"input_ids": torch.tensor(ids).expand(batch, -1)}
    if mask is not None:
        encoding["attention_mask"] = mask
        encoding["position_ids"] = torch.tensor(positions).expand(batch, -1)
    return encoding


def start_at(llm, arch, l, h):
    """Begin the forward pass at block l with the residual stream h [B, T, d]: earlier blocks do not run."""
    replacement = (h, None) if arch["tuple_blocks"] else h
    for k in range(l):
        llm.blocks[k].skip(replacement)
    llm.blocks[l].input = h


def contributions(block, arch):
    """h, a and m of a block, float32 on its device: what enters it, and what attention and MLP add to that.

    The product makes copies, which some families need: they add in place right after a module returns.
    """
    h = block.input
    a = first(block.attention_contribution.output).reshape(h.shape).float() * arch["residual_scale"]
    m = first(block.mlp_contribution.output).reshape(h.shape).float() * arch["residual_scale"]
    return h.to(a.device).float(), a, m.to(a.device)


def added(block, arch, start):
    """What a block adds at the places from `start` on: a + m [B, T − start, d], float32."""
    shape = block.input.shape
    a = first(block.attention_contribution.output).reshape(shape)[:, start:].float()
    m = first(block.mlp_contribution.output).reshape(shape)[:, start:].float()
    return (a + m.to(a.device)) * arch["residual_scale"]


def lens(llm, arch, h):
    """The logit lens: finish(unembed(final_norm(h))) of residuals h [N, d] as logits [N, V], float32."""
    normed = llm.ln_final(h)
    if arch["project_out"]:
        normed = llm.project_out(normed)
    logits = llm.unembed(normed).float()
    if arch["logit_scale"] != 1.0:
        logits = logits * arch["logit_scale"]
    if arch["logit_softcap"] is not None:
        logits = torch.tanh(logits / arch["logit_softcap"]) * arch["logit_softcap"]
    return logits


def probabilities(llm, arch, h):
    """softmax(lens(h)) [N, V] of residuals h [N, d]."""
    return lens(llm, arch, h).softmax(-1)


def add_row(rows, row, k, grows):
    """The batch with `row` [1, T, d] as its row k: appended, or written over a clean one where batches cannot grow."""
    if grows:
        return torch.cat([rows, row])
    rows = rows.clone()
    rows[k] = row[0]
    return rows


def output_change(llm, arch, h, logits_at_once=2**23):
    """‖y − ȳ‖₂ [R − 1, M] between row 0 and every other row of the final residuals h [R, M, d]."""
    n_rows, n_places, d = h.shape
    weight = getattr(llm.unembed._module, "weight", None)
    chunk = max(1, logits_at_once // (n_rows * (weight.shape[0] if weight is not None else 2**15)))
    changes = []
    for start in range(0, n_places, chunk):
        piece = h[:, start : start + chunk]
        y = probabilities(llm, arch, piece.reshape(-1, d)).reshape(n_rows, piece.shape[1], -1)
        changes.append(y[1:].sub_(y[:1]).norm(dim=-1))
    return torch.cat(changes, dim=1)
