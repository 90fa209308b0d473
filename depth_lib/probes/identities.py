"""The two identities every probe relies on, and what the MLP reads, measured on the running model."""

import torch

from .residual_stream import contributions, final_residual, first, lens, parts, rescaling, total_output, with_first


def identities(llm, arch, ids):
    """How far the model is from h_{l+1} = h_l + a_l + m_l, from lens(h_L) = its own logits, and what its MLPs read.

    Where blocks rescale, h_{l+1} may be h_l + a_l + m_l times any one number of the block.

    ids: two sequences of the same length T, as one batch, so that a dropped batch axis shows. Returns `identity_1`
    [L], the largest relative error over tokens of ‖h_{l+1} − (h_l + a_l + m_l)‖ / ‖h_{l+1}‖; `identity_2`, the largest
    error of a logit relative to the largest logit; `mlp_change`, by how much m of one block changes, relative to its
    norm, when attention's contribution there is changed (0 for parallel blocks, None if no MLP adds anything); `eps`,
    the rounding unit of the dtype the model runs in.
    """
    batch = {"input_ids": torch.tensor(ids)}
    with torch.no_grad():
        with llm.trace(batch, use_cache=False):
            blocks = [contributions(block, arch) for block in llm.blocks]
            final = final_residual(llm, arch)
            ours = lens(llm, arch, final.flatten(0, 1))
            logits = llm.output.logits.float().to(ours.device).flatten(0, 1)
            after = [*(h for h, _, _ in blocks[1:]), final.float().clone()]
            if ours.shape != logits.shape or final.shape != blocks[0][0].shape:
                raise ValueError(f"hidden states have shape {tuple(final.shape)} and logits {tuple(logits.shape)}")
            errors = []
            for (h, a, m), h_after in zip(blocks, after, strict=True):
                total, h_after = h + a + m, h_after.to(h.device)
                if arch["rescales"]:
                    total = total * rescaling(total, h_after)
                errors.append(_relative(total, h_after).cpu())
            identity_1 = torch.stack(errors)
            identity_2 = ((ours - logits).abs().max() / logits.abs().max()).cpu()
        with_both = [l for l, of_block in enumerate(arch["parts"] or ()) if all(of_block.values())]
        adding = [(l, blocks[l][2]) for l in with_both if blocks[l][2].norm() > 0]
        mlp_change = _mlp_change(llm, arch, batch, *adding[0]) if adding else None
    eps = torch.finfo(final.dtype).eps
    return {"identity_1": identity_1, "identity_2": identity_2, "mlp_change": mlp_change, "eps": eps}


def _mlp_change(llm, arch, batch, l, clean):
    """By how much m_l [B, T, d] changes when attention's contribution there is changed."""
    with llm.trace(batch, use_cache=False) as tracer:
        block = llm.blocks[l]
        turned, modules = block.input.roll(1, dims=-1), parts(block, arch)
        attention, *_ = modules["attention"][0]
        a = first(attention.output)
        attention.output = with_first(attention.output, a + turned.to(a.device).reshape(a.shape))
        m = total_output(modules["mlp"], clean.shape)
        change = _relative(m, clean.to(m.device))
        tracer.stop()
    return change


def _relative(x, truth):
    return ((x - truth).norm(dim=-1) / truth.norm(dim=-1).clamp_min(1e-6)).max()
