"""linear_maps: every layer of one model predicted from every layer of another, in one pass of text through both."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from nnsight import TransformersModel

from ..models.families import describe
from ..models.load import load_model
from ..probes.states import states, states_of_blocks
from ..progress import steps
from ..session import run
from .regression import accumulate, errors, normed, solve
from .texts import LONGEST, cut, read_texts, same_ids

TOKENS = 2048  # per block of text; fewer make products a tenth slower, more gain nothing
JOB_BYTES = 500_000_000  # of states that one job on a server returns; one block of text at the least


class TooLarge(ValueError):
    """The moments of the maps do not fit into memory; the message says what would be needed."""


class CannotRead(ValueError):
    """A model's states cannot be read in this way; the message says which way works."""


class Block(NamedTuple):
    """Sequences of one split ("fit", "choose" or "test") that are read together, by their numbers."""

    split: str
    numbers: list[int]
    ids: list[list[int]]


def linear_maps(
    source: TransformersModel | str,
    target: TransformersModel | str,
    texts: Sequence[str] | str | Path,
    what: str = "residual",
    holdout: float = 0.1,
    remote: bool | str = False,
    memory: int | None = None,
    **loading: str | torch.dtype | dict | None,
) -> dict[str, torch.Tensor]:
    """How well each layer of `target` is an affine function of each layer of `source`, a model with the same tokenizer.

    relative[m, l] = mean over held-out tokens of ‖W x + b − h_l‖ / max(‖h_l‖, 1e-6), x = h_m of the source, with the W
    and b of each pair in closed form: least squares of this relative error with a ridge (see regression.py).

    source, target: models of load_model, or names. One of them may be remote: its states are fetched. texts: strings,
    or what read_texts takes. what: "residual" (h_0..h_L) or "contribution" (c_0..c_{L−1}). holdout: share of the tokens
    to test on, and again to choose the ridge on; whole sequences, and no token is tested whose beginning was fitted on.
    remote: where the remote one is. memory: bytes for the moments and for states from a server (default: half of what
    is free); where the moments of all target layers need more, the text is read once per group of target layers.
    loading: dtype=, quantization=, device_map= of load_model, for names.

    Returns float32 `relative` [M, N]; `relative_mean` [N], the error of predicting the mean; `best` [N], the source
    layer that predicts each target layer best; `strength` [M, N], the ridge in units of the mean eigenvalue of XᵀWX;
    `relative_sums` [P, M, N], `mean_sums` [P, N] and `n_tokens` [P] of every tested sequence, for intervals;
    `n_fit_tokens`. Raises TextError (tokenizers that differ, fewer than 4 d tokens), TooLarge, CannotRead.
    Source: Csordás et al. 2025 (arXiv 2505.13898), section 5, who train each map for 10,000 steps.
    """
    if what not in ("residual", "contribution"):
        raise ValueError(f'what {what!r} is not known; use "residual" or "contribution".')
    if loading and not any(isinstance(model, str) for model in (source, target)):
        names = ", ".join(loading)
        raise ValueError(f"{names} cannot be given for models that are loaded; load them so, or give names")
    source, target = (load_model(m, **loading) if isinstance(m, str) else m for m in (source, target))
    if not source.dispatched and not target.dispatched:
        raise CannotRead("both models are on a server; load one of them here, where the moments are: its remote=False")
    texts = read_texts(texts) if isinstance(texts, str | Path) else list(texts)
    documents = same_ids(source.tokenizer, target.tokenizer, texts)
    longest = min(getattr(llm.config, "max_position_embeddings", None) or LONGEST for llm in (source, target))
    sequences = cut(documents, longest, holdout, source.config.get_text_config().hidden_size)
    blocks = _blocks(sequences)
    reading = _Source(source, what, blocks, remote, memory), _Source(target, what, blocks, remote, memory)
    device = next((one.device for one in reading[::-1] if one.device.type == "cuda"), torch.device("cpu"))
    size = _group_size(*reading, device, memory)
    groups = range(0, reading[1].n_states, size)
    passes = [_one_pass(*reading, blocks, list(range(reading[1].n_states))[l : l + size], device) for l in groups]
    return _result(passes, blocks, sequences)


def _blocks(sequences) -> list[Block]:
    """Blocks of about TOKENS tokens; those to test on come last, when the maps are there."""
    blocks = []
    for split in ("fit", "choose", "test"):
        numbers, n_tokens = [], 0
        for number in (number for number, its in enumerate(sequences.split) if its == split):
            if numbers and n_tokens + len(sequences.ids[number]) > TOKENS:
                blocks.append(numbers)
                numbers, n_tokens = [], 0
            numbers.append(number)
            n_tokens += len(sequences.ids[number])
        blocks.append(numbers)
    return [Block(sequences.split[n[0]], n, [sequences.ids[i] for i in n]) for n in blocks if n]


class _Source:
    """Where the states of a model come from: from the model, which is here, or fetched from a server beforehand."""

    def __init__(self, llm, what: str, blocks: list[Block], remote: bool | str, memory: int | None):
        self.llm, self.arch, self.what = llm, describe(llm), what
        self.n_states = self.arch["n_layers"] + (what == "residual")
        self.width = self.arch["width"]
        self.device = next(llm.parameters()).device if llm.dispatched else torch.device("cpu")
        self.fetched = None if llm.dispatched else self._fetch(blocks, remote, memory)

    def read(self, number: int, ids: list[list[int]], layers: list[int]) -> torch.Tensor:
        """States [len(layers), tokens, d] of the block of that number; CannotRead if they are not finite."""
        if self.fetched is not None:
            values = self.fetched[number][layers]
        else:
            values = run(states, self.llm, self.arch, ids, layers, self.what, False)["states"]
        finite = torch.isfinite(values).flatten(1).all(1)
        if not finite.all():
            dtype = str(self.llm.dtype).removeprefix("torch.")
            raise CannotRead(
                f"{_name(self.llm)} gives values at layer {layers[int((~finite).nonzero()[0])]} that are not finite: "
                f'{dtype} overflows; load it with dtype="{"bfloat16" if dtype == "float16" else "float32"}"'
            )
        return values

    def _fetch(self, blocks, remote, memory):
        """The states of every block from a server, in journalled jobs of about JOB_BYTES each."""
        if not remote:
            raise CannotRead(
                f"the weights of {_name(self.llm)} are on a server; give remote=True or its host, or load them here"
            )
        n_tokens = sum(len(ids) for block in blocks for ids in block.ids)
        per_token = self.n_states * self.width * (4 if self.what == "contribution" else self.llm.dtype.itemsize)
        available = memory or psutil.virtual_memory().available // 2
        if n_tokens * per_token > available:
            raise CannotRead(
                f"the states of {_name(self.llm)} at {n_tokens} tokens have {n_tokens * per_token / 1e9:.1f} GB, which "
                f"would have to come from the server, and {available / 1e9:.1f} GB may be used here; give at most "
                f"{available // per_token} tokens of text, or more memory (memory=)"
            )
        per_job = max(1, JOB_BYTES * len(blocks) // (n_tokens * per_token))
        work = [block.ids for block in blocks], list(range(self.n_states)), self.what
        how = {"remote": remote, "over": "blocks", "label": "states", "per_job": per_job}
        return run(states_of_blocks, self.llm, self.arch, *work, **how)["blocks"]


def _name(llm) -> str:
    return getattr(llm, "repo_id", None) or type(llm._module).__name__


def _group_size(source: _Source, target: _Source, device: torch.device, memory: int | None) -> int:
    """How many target layers' maps fit into memory at once; TooLarge if not even one layer's do."""
    if memory is None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
        memory = free // 2
    rows = source.width + 1
    per_layer = 2 * source.n_states * rows * (rows + target.width) * 8  # moments to fit and to choose, float64
    if per_layer > memory:
        raise TooLarge(
            f"the maps to a single layer need {per_layer / 1e9:.2f} GB and {memory / 1e9:.2f} GB may be used on "
            f"{device}; give more (memory=), or take narrower models"
        )
    return min(target.n_states, memory // per_layer)


def _one_pass(source: _Source, target: _Source, blocks: list[Block], layers: list[int], device: torch.device) -> dict:
    """The maps from all source layers to some target layers, and their errors: `strength` [M, n], and for every tested
    sequence `relative` [tokens, M, n] and `mean` [tokens, n], lists."""
    rows, sources = source.width + 1, list(range(source.n_states))
    shape = len(sources), len(layers), rows, rows + target.width
    fit, choose = (torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(2))
    found = {"relative": [], "mean": []}
    for number, block in enumerate(steps(blocks, "maps")):
        x = source.read(number, block.ids, sources).to(device, torch.float32)
        y = target.read(number, block.ids, layers).to(device, torch.float32)
        if block.split != "test":
            accumulate(fit if block.split == "fit" else choose, x, y)
            continue
        if "strength" not in found:
            solved = [[solve(fit[m, l], choose[m, l]) for l in range(len(layers))] for m in sources]
            found["strength"] = torch.tensor([[strength for strength, _ in row] for row in solved])
            means = [mean for _, mean in solved[-1]]  # of the target, whatever the source
        relative = errors(fit[..., rows:], x, y).permute(2, 0, 1).cpu()
        states_and_roots = zip(map(normed, y), means, strict=True)
        mean = torch.stack([((h - mean) * root).norm(dim=-1) for (h, root), mean in states_and_roots], 1).cpu()
        lengths = [len(ids) for ids in block.ids]
        found["relative"] += relative.split(lengths)
        found["mean"] += mean.split(lengths)
    return found


def _result(passes: list[dict], blocks: list[Block], sequences) -> dict[str, torch.Tensor]:
    """What linear_maps returns, of all groups of target layers; a tested sequence counts from its first new token."""
    seen = [sequences.seen[number] for block in blocks if block.split == "test" for number in block.numbers]
    sums = {}
    for key in ("relative", "mean"):
        each = zip(*(found[key] for found in passes), strict=True)
        new = [torch.cat(parts, -1)[start:] for parts, start in zip(each, seen, strict=True)]
        sums[key] = torch.stack([tokens.sum(0) for tokens in new if len(tokens)])
    n_tokens = torch.tensor([len(tokens) for tokens in new if len(tokens)], dtype=torch.float64)
    relative = sums["relative"].sum(0) / n_tokens.sum()
    result = {
        "relative": relative,
        "relative_mean": sums["mean"].sum(0) / n_tokens.sum(),
        "best": relative.argmin(0),
        "strength": torch.cat([found["strength"] for found in passes], 1),
        "relative_sums": sums["relative"],
        "mean_sums": sums["mean"],
        "n_tokens": n_tokens,
        "n_fit_tokens": torch.tensor(sequences.n_tokens("fit")),
    }
    return {key: value.float() for key, value in result.items()}
