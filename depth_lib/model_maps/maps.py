"""linear_maps: every layer of one model predicted from every layer of another."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch
from nnsight import TransformersModel

from ..models.check import name_of, verified_arch
from ..models.load import load_model
from ..params import ParamsError, not_among
from ..probes.ranks import from_rank_0, is_sharded
from ..probes.states import states, states_of_sequences
from ..progress import steps
from ..session import run
from .regression import accumulate, errors, solve
from .texts import LONGEST, Excerpt, cut, read_texts, same_ids

JOB_BYTES = 500_000_000  # of states that one job on a server returns; at least one sequence


class TooLarge(ParamsError):
    """The moments of the maps do not fit into memory; the message says how much is needed."""


class CannotRead(ParamsError):
    """A model's states cannot be read in this way; the message says which way works."""


def linear_maps(
    source: TransformersModel | str,
    target: TransformersModel | str,
    texts: Sequence[str] | str | Path,
    what: str = "residual",
    remote: bool | str = False,
    memory: int | None = None,
    **loading: Any,
) -> dict[str, torch.Tensor]:
    """How well each layer of `target` is an affine function of each layer of `source`, a model with the same tokenizer.

    >>> maps = dl.linear_maps("toy-4l", "toy-4l", dl.load_prompts("gsm8k", 12, source="embedded"))
    >>> maps["best"].tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]

    relative[m, l] = mean over held-out tokens of ‖W x + b − h_l‖ / max(‖h_l‖, 1e-6), x = h_m of the source, with the W
    and b of each pair in closed form: least squares of this relative error with a ridge (see regression.py).

    source, target: models of load_model, or names. One of them may be remote: its states are downloaded. texts:
    strings, or what read_texts takes; a tenth of the tokens tests the maps, and a tenth chooses the ridge: whole
    sequences, and tokens whose prefix was fitted on are not tested. what: "residual" (h_0..h_L) or "contribution"
    (c_0..c_{L−1}). remote: where the remote model is. memory: bytes for the moments and for downloaded states (default:
    half of what is free); if the moments of all target layers need more, the text is read once per group of target
    layers. loading: dtype=, quantization=, device_map= of load_model, for names.

    Returns float32 `relative` [M, N]; `relative_mean` [N], the error of predicting the mean; `best` [N], the source
    layer that predicts each target layer best; `strength` [M, N], the ridge in units of the mean eigenvalue of XᵀWX;
    `relative_sums` [P, M, N], `mean_sums` [P, N] and `n_tokens` [P] of every tested sequence, for intervals;
    `n_fit_tokens`. Raises TextError (tokenizers that differ, fewer than 4 d tokens), TooLarge, CannotRead.
    Source: Csordás et al. 2025 (arXiv 2505.13898), section 5, who train each map for 10,000 steps.
    Cost: two readings of the texts by both models, and M N factorisations of d × d; M N (d + 1) (2 d + 1) doubles are
    held.
    """
    if problem := not_among(("residual", "contribution"), "what", what):
        raise ValueError(problem)
    if loading and not any(isinstance(model, str) for model in (source, target)):
        raise ValueError(f"{', '.join(loading)} is for models given by name, and both are loaded; leave it out")
    source, target = (load_model(m, **loading) if isinstance(m, str) else m for m in (source, target))
    if not source.dispatched and not target.dispatched:
        raise CannotRead("both models are on a server; load one of them here, where the maps are fitted: remote=False")
    texts = read_texts(texts) if isinstance(texts, str | Path) else list(texts)
    documents = same_ids(source.tokenizer, target.tokenizer, texts)
    configs = [llm.config.get_text_config() for llm in (source, target)]
    longest = min(getattr(config, "max_position_embeddings", None) or LONGEST for config in configs)
    excerpts = cut(documents, longest, verified_arch(source).width)
    readers = [_Reader(llm, what, excerpts, remote, memory) for llm in (source, target)]
    device = next((reader.device for reader in readers[::-1] if reader.device.type == "cuda"), torch.device("cpu"))
    groups = torch.arange(readers[1].n_states).split(_group_size(*readers, device, memory))
    fitted = [_fit_and_test(*readers, excerpts, group.tolist(), device) for group in groups]
    result = {key: torch.cat([group[key] for group in fitted], -1) for key in fitted[0]}
    n_tokens = torch.tensor([len(excerpt.ids) - excerpt.seen for excerpt in excerpts if excerpt.split == "test"])
    relative = result["relative_sums"].sum(0) / n_tokens.sum()
    result |= {
        "relative": relative,
        "relative_mean": result["mean_sums"].sum(0) / n_tokens.sum(),
        "best": relative.argmin(0),
        "n_tokens": n_tokens,
        "n_fit_tokens": torch.tensor(sum(len(excerpt.ids) for excerpt in excerpts if excerpt.split == "fit")),
    }
    return {key: value.float() for key, value in result.items()}


class _Reader:
    """The states of a model: computed when they are read, or downloaded beforehand if it is on a server."""

    def __init__(self, llm, what: str, excerpts: list[Excerpt], remote: bool | str, memory: int | None):
        self.llm, self.arch, self.what = llm, verified_arch(llm), what
        self.n_states, self.width = self.arch.n_layers + (what == "residual"), self.arch.width
        self.device = next(llm.parameters()).device if llm.dispatched else torch.device("cpu")
        self.sequences = [excerpt.ids for excerpt in excerpts]
        self.downloaded = None if llm.dispatched else self._download(remote, memory)

    def read(self, number: int, layers: list[int]) -> torch.Tensor:
        """States [len(layers), tokens, d] of the sequence of that number; CannotRead if they are not finite."""
        if self.downloaded is not None:
            values = self.downloaded[number][layers]
        else:
            values = run(states, self.llm, self.arch, self.sequences[number], layers, self.what)["states"]
        if not torch.isfinite(values).all():
            raise CannotRead(
                f"the states of {name_of(self.llm)} are not finite in {self.llm.dtype}; load it with "
                'dtype="bfloat16" or "float32"'
            )
        return values

    def _download(self, remote, memory):
        """The states of every sequence from a server, in journalled jobs of about JOB_BYTES each."""
        if not remote:
            raise CannotRead(f"the weights of {name_of(self.llm)} are on a server; give remote=True or its host")
        n_tokens = sum(map(len, self.sequences))
        itemsize = 4 if self.what == "contribution" else self.llm.dtype.itemsize
        n_bytes = n_tokens * self.n_states * self.width * itemsize
        available = memory or psutil.virtual_memory().available // 2
        if n_bytes > available:
            raise CannotRead(
                f"the states of {name_of(self.llm)} at {n_tokens} tokens have {n_bytes / 1e9:.1f} GB, which would have "
                f"to come from the server, and {available / 1e9:.1f} GB may be used here; give at most "
                f"{n_tokens * available // n_bytes} tokens of text, or more memory (memory=)"
            )
        return run(
            states_of_sequences,
            self.llm,
            self.arch,
            self.sequences,
            list(range(self.n_states)),
            self.what,
            remote=remote,
            over="sequences",
            label="states",
            per_job=max(1, JOB_BYTES * len(self.sequences) // n_bytes),
        )["states"]


def _group_size(source: _Reader, target: _Reader, device: torch.device, memory: int | None) -> int:
    """How many target layers' maps fit into memory at once; TooLarge if not even one layer's do."""
    if memory is None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
        # ranks that fit different groups would wait for each other for ever
        memory = from_rank_0(free // 2, is_sharded(source.llm) or is_sharded(target.llm))
    rows = source.width + 1
    per_layer = 2 * source.n_states * rows * (rows + target.width) * 8  # moments to fit and to choose, float64
    if per_layer > memory:
        raise TooLarge(
            f"the maps to a single layer need {per_layer / 1e9:.2f} GB and {memory / 1e9:.2f} GB may be used on "
            f"{device}; give more (memory=), or take narrower models"
        )
    return min(target.n_states, memory // per_layer)


def _fit_and_test(
    source: _Reader, target: _Reader, excerpts: list[Excerpt], layers: list[int], device: torch.device
) -> dict[str, torch.Tensor]:
    """The maps to n target layers: `strength` [M, n], and sums of errors of every tested sequence of P.

    `relative_sums` [P, M, n] and `mean_sums` [P, n] count the tokens after those that an earlier split begins with.
    """
    rows, n_sources = source.width + 1, source.n_states
    shape = n_sources, len(layers), rows, rows + target.width
    moments = {split: torch.zeros(shape, dtype=torch.float64, device=device) for split in ("fit", "choose")}
    strength = torch.empty(shape[:2])
    means = torch.empty(len(layers), target.width, dtype=torch.float64, device=device)
    relative_sums, mean_sums = [], []
    for number, excerpt in enumerate(steps(excerpts, "maps")):
        x = source.read(number, list(range(n_sources))).to(device, torch.float32)
        y = target.read(number, layers).to(device, torch.float32)
        if excerpt.split in moments:
            accumulate(moments[excerpt.split], x, y)
            continue
        if not relative_sums:  # the first sequence to test on: all moments are there
            for m, l in product(range(n_sources), range(len(layers))):
                strength[m, l], means[l] = solve(moments["fit"][m, l], moments["choose"][m, l])
        of_maps, of_mean = errors(moments["fit"][..., rows:], means, x, y)
        relative_sums.append(of_maps[..., excerpt.seen :].sum(-1).cpu())
        mean_sums.append(of_mean[..., excerpt.seen :].sum(-1).cpu())
    return {"strength": strength, "relative_sums": torch.stack(relative_sums), "mean_sums": torch.stack(mean_sums)}
