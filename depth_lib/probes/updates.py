"""What each block adds to the residual stream of a batch, while it runs."""

from .residual_stream import difference, hidden_states, leaving, modules_of, read_whole, sum_of_parts


class Updates:
    """Reads what blocks add: made inside a trace, before anything is read.

    A cache gets what the modules of a and m return: where the model runs in another process it gets each output once,
    while what is read goes there and back. Where blocks are read as a whole there is none.
    """

    def __init__(self, tracer, llm, arch, layers, whole=None):
        """layers: the blocks to be read; whole: whether as a whole (default: `read_whole`)."""
        self.arch, self.cache = arch, None
        if not (read_whole(arch) if whole is None else whole):
            modules = [module for l in layers for module in modules_of(llm.blocks[l], arch)]
            self.cache = tracer.cache(modules=modules, device=None)

    def before(self, block, h):
        """To be called when h [B, N, d] has been given to a block, before what the block returns is read."""
        self.block, self.shape, self.copies = block, h.shape, {}
        if self.cache is None:
            h = h.clone()  # some families add in place
            self.change = difference(h, leaving(block))
            return
        changed = tuple(f".{path}" for path in self.arch.in_place)  # by now as they were returned
        for module in modules_of(block, self.arch) if changed else ():
            if module.path.endswith(changed):
                self.copies[module.path] = hidden_states(module.output).clone()

    def after(self, start):
        """What that block added at the places from `start` on [B, N − start, d], float32."""
        if self.cache is None:
            return self.change[:, start:]
        return sum_of_parts(self.block, self.arch, self.shape, start, self.taken)

    def taken(self, module):
        """What a module of that block returned, which the cache then forgets."""
        (entry,) = self.cache._cache.entries.pop(module.path)
        return self.copies.get(module.path, entry.output)


def relative_change(updates, clean, has_clean_row):
    """‖c − c̄‖ / max(‖c‖, 1e-6) of each row and position [B, M].

    updates: c̄, what a block adds in each row [B, M, d], overwritten; clean [M, d]: c, for which the batch's unmodified
    row, the first, stands in where there is one.
    """
    clean = updates[0].clone() if has_clean_row else clean
    return updates.sub_(clean).norm(dim=-1) / clean.norm(dim=-1).clamp_min(1e-6)
