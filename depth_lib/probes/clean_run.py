"""A prompt's unmodified run, which interventions on the prompt are compared with."""

import torch

from .budget import bytes_in_pass, compares_in_batch, token_budget
from .packing import packs
from .residual_stream import finish, first_residual, inputs, read_stream


class CleanRun:
    """One pass over a prompt, and how large the passes are that are compared with it.

    llm, arch, ids: as the probes have them. h: h_0..h_L [T, d] in the model's dtype, each on its block's device.
    c: what the blocks add, c_0..c_{L−1} [T, d], float32; empty where it is not needed. budget: tokens in one pass.
    in_batch: whether each pass begins with an unmodified row, which interventions are compared with in place of this
    run (see `compares_in_batch`). Where the budget has no room for two rows a pass has one, as this run had, and rounds
    as it did.
    """

    def __init__(self, llm, arch, ids, budget, updates=""):
        """updates: whether what blocks add is compared: "" (no), "with any" (c, or an unmodified row) or "with c"."""
        self.llm, self.arch, self.ids = llm, arch, ids
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids), use_cache=False):
                h = first_residual(llm)
                self.budget = token_budget(llm, h, budget)
                self.in_batch = compares_in_batch(llm, h) and self.budget >= 2 * len(ids)
                with_c = updates == "with c" or bool(updates) and not self.in_batch
                self.h, self.c = read_stream(llm, arch, h, with_c)
                finish(llm, arch, arch["n_layers"], self.h[-1][None])

    def packs(self, starts):
        """`packs` of these starts that leave room in the budget for the rows of a pass."""
        most = self.budget // (1 + self.in_batch)
        while most > len(self.ids) and self._tokens(most) < most * (1 + self.in_batch):
            most = 3 * most // 4
        return packs(starts, len(self.ids), self.arch, max(most, len(self.ids)))

    def rows(self, pack):
        """How many interventions share a pass."""
        return max(1, self._tokens(pack.n_places) // pack.n_places - self.in_batch)

    def _tokens(self, n_places):
        """Tokens in a pass of sequences of n_places: fewer than the budget where each has long rows of scores."""
        llm, h = self.llm, self.h[0]
        return self.budget * bytes_in_pass(llm, h, 0) // bytes_in_pass(llm, h, n_places)
