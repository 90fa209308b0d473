"""Where the states of a block of text come from: a model that is here, one that was here before, or a server."""

import hashlib
import shutil
import tempfile
from pathlib import Path

import torch

from ..models.families import describe
from ..probes.states import states, states_of_blocks
from ..session import run
from .checkpoint import write

JOB_BYTES = 500_000_000  # of states that one job returns; a block of text at the least


class CannotRead(ValueError):
    """A model's states cannot be had in this way; the message says which can."""


class Model:
    """A loaded model as maps see it: how many states it has, how wide they are, and where it is."""

    def __init__(self, llm, what: str):
        self.llm, self.arch, self.what = llm, describe(llm), what
        self.n_states = self.arch["n_layers"] + (what == "residual")
        self.width = self.arch["width"]
        self.name = getattr(llm, "repo_id", None) or type(llm._module).__name__
        weights = list(llm.parameters())
        self.here = not any(weight.is_meta for weight in weights)
        self.device = weights[0].device if self.here else torch.device("cpu")

    def read(self, number: int, ids: list[list[int]], layers: list[int]) -> torch.Tensor:
        """States [len(layers), tokens, d] of the block of that number."""
        return self.checked(run(states, self.llm, self.arch, ids, layers, self.what, False)["states"], layers)

    def checked(self, found: torch.Tensor, layers: list[int]) -> torch.Tensor:
        """The states, if all are finite; half precision overflows where some models do not."""
        bad = [l for l, row in zip(layers, found, strict=True) if not bool(torch.isfinite(row).all())]
        if bad:
            dtype = str(self.llm.dtype).removeprefix("torch.")
            raise CannotRead(
                f"{self.name} gives values at layer {bad[0]} that are not finite: {dtype} overflows; load it with "
                f'dtype="{"bfloat16" if dtype == "float16" else "float32"}"'
            )
        return found

    def fingerprint(self) -> str:
        """A hash of the model's name, dtype and a few of each weight, so that another model's moments are not gone on
        with."""
        digest = hashlib.sha256(f"{self.name} {self.llm.dtype} {self.arch} {self.what}".encode())
        for weight in self.llm.parameters() if self.here else ():
            some = weight.detach().reshape(-1)[:: max(1, weight.numel() // 64)]
            digest.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


class Kept:
    """States of every block, kept in files of a folder since their model is not here while they are needed; without a
    folder in one that goes when this does."""

    def __init__(self, folder: Path | None, size: int):
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="depth_lib_states_")
        self.folder = Path(folder or self._temporary.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if size > free // 2:
            raise CannotRead(
                f"the states of the source would take {size / 1e9:.1f} GB in {self.folder}, and {free / 1e9:.1f} GB "
                "are free; give fewer texts, or hold both models at once: pass what load_model returns instead of names"
            )

    def path(self, number: int) -> Path:
        return self.folder / f"{number}.pt"

    def read(self, number: int, ids: list[list[int]], layers: list[int]) -> torch.Tensor:
        return torch.load(self.path(number), mmap=True, weights_only=True)["states"][layers]


def record(model: Model, blocks: list[list[list[int]]], kept: Kept) -> Kept:
    """Read all states of a model that is here into files; those that are there already stay."""
    for number, ids in enumerate(blocks):
        if not kept.path(number).exists():
            write({"states": model.read(number, ids, list(range(model.n_states))).cpu()}, kept.path(number))
    return kept


def fetch(model: Model, blocks: list[list[list[int]]], kept: Kept, remote: bool | str, memory: int) -> Kept:
    """Read all states of a model on a server, in journalled jobs of about JOB_BYTES each.

    CannotRead without `remote`, and if they are more than `memory` bytes: all results are held here at once.
    """
    if not remote:
        raise CannotRead(
            f"the weights of {model.name} are on a server; give remote=True or its host, or load them here"
        )
    n_tokens = sum(len(ids) for block in blocks for ids in block)
    width = 4 if model.what == "contribution" else model.llm.dtype.itemsize
    size = n_tokens * model.n_states * model.width * width
    if size > memory:
        raise CannotRead(
            f"the states of {model.name} at {n_tokens} tokens have {size / 1e9:.1f} GB, which would have to come from "
            f"the server, and {memory / 1e9:.1f} GB may be used here; give fewer texts or more memory (memory=)"
        )
    layers = list(range(model.n_states))
    per_job = max(1, JOB_BYTES * len(blocks) // size)
    how = {"remote": remote, "over": "blocks", "label": "states", "per_job": per_job}
    found = run(states_of_blocks, model.llm, model.arch, blocks, layers, model.what, **how)["blocks"]
    for number, block in enumerate(found):
        write({"states": model.checked(block, layers)}, kept.path(number))
    return kept
