"""A prompt's unmodified run, which interventions on the prompt are compared with."""

import torch

from .budget import compares_in_batch, tokens_in_pass
from .residual_stream import first_residual, inputs, read_stream, skip_rest


class CleanRun:
    """One pass over a prompt, and how large the passes are that are compared with it.

    llm, arch, ids: as the probes have them. h: h_0..h_L [T, d] in the model's dtype, each on its block's device.
    c: what the blocks add, c_0..c_{L−1} [T, d], float32; empty where it is not needed. budget: tokens in one pass.
    has_clean_row: whether each pass begins with an unmodified row, which interventions are compared with in place of
    this run (see `compares_in_batch`). Where the budget has no room for two rows a pass has one, as this run had, and
    rounds as it did.
    """

    def __init__(self, llm, arch, ids, budget, with_c=False, compares_c=False):
        """with_c: whether c is needed; compares_c: whether it is compared, for which an unmodified row does as well."""
        self.llm, self.arch, self.ids = llm, arch, ids
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids), use_cache=False):
                h = first_residual(llm)
                self.budget = budget or tokens_in_pass(llm, h)
                self.has_clean_row = compares_in_batch(llm, h) and self.budget >= 2 * len(ids)
                needed = with_c or (compares_c and not self.has_clean_row)
                self.h, self.c = read_stream(llm, arch, h, needed)
                skip_rest(llm, arch, arch.n_layers, self.h[-1][None])

    def rows(self, n_tokens):
        """How many interventions on the first n_tokens tokens share a pass."""
        return max(1, self.budget // n_tokens - self.has_clean_row)
