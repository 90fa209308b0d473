"""What each probe asks of a GPU, counted without one: `make bench-counts`, the table of docs/speed.md.

The model pretends to lie on a GPU (tests/probes/device_tags.py), so the code takes a GPU's way, and every operation,
copy and read of a number is counted while the CPU computes.
"""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import depth_lib as dl
from benchmarks import floor
from benchmarks.markdown import markdown
from benchmarks.shapes import model_of
from benchmarks.workloads import random_prompt
from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.models.check import verified_arch
from tests.oracles import effect_positions
from tests.probes.device_tags import CPU, MOVES, SET, PretendDevices, device_of, place

LAUNCH = 5e-6  # seconds that a kernel takes at least
RATE = 400e12  # FLOPs a second of an H100 in bfloat16, half of what its makers say
T = torch.Tensor
READS = {T.item, T.tolist, T.__bool__, T.__float__, T.__int__, T.__index__}


class Transfers(PretendDevices):
    """Pretended devices that count what is copied between them, and reads of single numbers."""

    def __init__(self):
        super().__init__()
        self.to_host = self.to_device = self.reads = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in READS and device_of(args[0]) != CPU:
            self.reads += 1
        result = super().__torch_function__(function, types, args, kwargs)
        if function in MOVES:
            self._count(args[0], result)
        elif function in (SET, T.copy_):
            self._count(args[-1], args[0])
        return result

    def _count(self, source, target):
        source = device_of(source) if isinstance(source, torch.Tensor) else CPU
        self.to_host += source != CPU and device_of(target) == CPU
        self.to_device += source == CPU and device_of(target) != CPU


class Kernels(TorchDispatchMode):
    """Counts operations that compute, passes through the model, and the bytes of all tensors that are alive."""

    def __init__(self):
        super().__init__()
        self.kernels = self.passes = self.alive = self.peak = 0
        self._seen = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self._seen.add(leaf.untyped_storage())  # weights, which were there before
        result = function(*args, **(kwargs or {}))
        self.kernels += not function.is_view
        self.passes += function is torch.ops.aten.embedding.default
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage() not in self._seen:
                storage = leaf.untyped_storage()
                self._seen.add(storage)
                self.alive += storage.nbytes()
                self.peak = max(self.peak, self.alive)
                weakref.finalize(storage, self._freed, storage.nbytes())
        return result

    def _freed(self, n_bytes):
        self.alive -= n_bytes


def counted(llm, call):
    """What one call counts: passes, kernels, copies to the host and to the device, reads, and bytes at the peak."""
    with Transfers() as transfers, Kernels() as kernels:
        for tensor in (*llm._module.parameters(), *llm._module.buffers()):
            place(tensor, "cuda:0")
        verified_arch(llm)  # anew, as its weights are elsewhere; what that takes is not the probe's
        transfers.to_host = transfers.to_device = transfers.reads = kernels.kernels = kernels.passes = 0
        kernels.peak = kernels.alive
        try:
            call()
        finally:
            for tensor in (*llm._module.parameters(), *llm._module.buffers()):
                place(tensor, CPU)
    return {
        "passes": kernels.passes,
        "kernels": kernels.kernels,
        "to host": transfers.to_host + transfers.reads,
        "to device": transfers.to_device,
        "peak, MB": kernels.peak / 1e6,
    }


def probes(llm, text):
    """The probes as functions without arguments."""
    return {
        "relative contribution": lambda: dl.relative_contribution(llm, [text]),
        "logit lens": lambda: dl.logit_lens(llm, [text]),
        "layer effects, future": lambda: dl.layer_effects(llm, [text]),
        "layer effects, all": lambda: dl.layer_effects(llm, [text], mode="all"),
        "local effects, future": lambda: dl.local_effects(llm, [text]),
        "residual erasure": lambda: dl.residual_erasure(llm, QUESTION, ANSWER, [text]),
    }


def lines(shape="small", n_tokens=200):
    """The lines of a Markdown table."""
    llm = model_of(shape)
    config, n_layers = llm.config, llm.config.num_hidden_layers
    positions, n_question = effect_positions([n_tokens]), len(llm.tokenizer(QUESTION + ANSWER)["input_ids"])
    arithmetic = {
        "relative contribution": floor.relative_contribution(config, [n_tokens]),
        "logit lens": floor.logit_lens(config, [n_tokens]),
        "layer effects, future": floor.layer_effects(config, [n_tokens], positions),
        "layer effects, all": floor.layer_effects(config, [n_tokens], [None]),
        "residual erasure": floor.residual_erasure(config, range(n_question - len(ANSWER), n_question), [n_tokens]),
    }
    rows = []
    for name, call in probes(llm, random_prompt(n_tokens, 0)).items():
        found = counted(llm, call)
        row = {"probe": name} | {key: f"{number:,.0f}" for key, number in found.items()}
        row["kernels per pass and block"] = f"{found['kernels'] / found['passes'] / n_layers:.0f}"
        row["launches, ms"] = f"{1e3 * LAUNCH * found['kernels']:.3g}"
        row["arithmetic, ms"] = f"{1e3 * arithmetic[name].flops() / RATE:.2g}" if name in arithmetic else ""
        rows.append(row)
    return markdown(rows)


if __name__ == "__main__":
    print("\n".join(lines()))
