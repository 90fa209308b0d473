"""linear_maps: every layer of one model predicted from every layer of another, in one pass of text through both."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from nnsight import TransformersModel

from ..models.load import load_model, without_weights
from ..progress import steps
from .checkpoint import Checkpoint, folder_beside
from .plan import TOKENS, Plan, free_bytes, plan
from .reading import CannotRead, Kept, Model, fetch, record
from .regression import STRENGTHS, accumulate, errors, normed, solve
from .texts import LONGEST, Sequences, cut, read_texts, same_ids


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

    source, target: models of load_model, held together; or names, loaded one after the other. One of them may be
    remote: its states are fetched. texts: strings, or what read_texts takes. what: "residual" (h_0..h_L) or
    "contribution" (c_0..c_{L−1}). holdout: share of the tokens to test on, and again to choose the ridge on; whole
    sequences, and no token is tested whose beginning was fitted on. remote: where the remote one is. memory: bytes
    that may be used beside the models (default: half of what is free); what does not fit in one pass takes several.
    loading: dtype=, quantization=, device_map= of load_model, for names.

    Returns float32 `relative` [M, N]; `relative_mean` [N], the error of predicting the mean; `best` [N], the source
    layer that predicts each target layer best; `strength` [M, N], the ridge in units of the mean eigenvalue of XᵀWX;
    `relative_sums` [P, M, N], `mean_sums` [P, N] and `n_tokens` [P] of every tested sequence, for intervals;
    `n_fit_tokens`. Raises TextError (tokenizers that differ, fewer than 4 d tokens), TooLarge, CannotRead.
    Source: Csordás et al. 2025 (arXiv 2505.13898), section 5, who train each map for 10,000 steps.
    """
    if what not in ("residual", "contribution"):
        raise ValueError(f'what {what!r} is not known; use "residual" or "contribution".')
    named = [isinstance(model, str) for model in (source, target)]
    if loading and not any(named):
        raise ValueError(
            f"{', '.join(loading)} cannot be given for models that are loaded; load them so, or give names"
        )
    names = all(named)
    if names:  # only config and tokenizer, until each one's turn comes
        models = [without_weights(name) for name in (source, target)]
    else:
        models = [load_model(m, **loading) if isinstance(m, str) else m for m in (source, target)]
    source_model, target_model = (Model(llm, what) for llm in models)
    if not names and not (source_model.here or target_model.here):
        raise CannotRead("both models are on a server; load one of them here, where the moments are: its remote=False")
    texts = read_texts(texts) if isinstance(texts, str | Path) else list(texts)
    documents = same_ids(models[0].tokenizer, models[1].tokenizer, texts)
    longest = min(getattr(llm.config, "max_position_embeddings", None) or LONGEST for llm in models)
    sequences = cut(documents, longest, holdout, source_model.width)
    work = _Work(source_model, target_model, sequences, _blocks(sequences))
    if names:
        work.one_after_the_other(*(partial(load_model, name, **loading) for name in (source, target)))
    return work.run(remote, memory)


@dataclass(frozen=True)
class Block:
    """Sequences of one split that are read together."""

    split: str
    numbers: list[int]
    ids: list[list[int]]


def _blocks(sequences: Sequences) -> list[Block]:
    """Those to test on last, when the maps are there."""
    found = []
    for split in ("fit", "choose", "test"):
        numbers, n_tokens = [], 0
        mine = [number for number, its in enumerate(sequences.split) if its == split]
        for number in mine:
            if numbers and n_tokens + len(sequences.ids[number]) > TOKENS:
                found.append(numbers)
                numbers, n_tokens = [], 0
            numbers.append(number)
            n_tokens += len(sequences.ids[number])
        found.append(numbers)
    return [Block(sequences.split[n[0]], n, [sequences.ids[i] for i in n]) for n in found if n]


class _Work:
    """One pass of text a group of layers: moments, then maps, then their errors on what was held out."""

    def __init__(self, source: Model, target: Model, sequences: Sequences, blocks: list[Block]):
        self.source, self.target, self.sequences, self.blocks = source, target, sequences, blocks
        self.tested = [n for block in blocks if block.split == "test" for n in block.numbers]
        self.readers = {}

    def one_after_the_other(self, load_source: Callable, load_target: Callable) -> None:
        """Keep the states of the source on the disk, let it go, and load the target."""
        what = self.source.what
        self.source = Model(load_source(), what)
        size = sum(map(len, self.sequences.ids)) * self.source.n_states * self.source.width * 4
        self.readers["source"] = self._kept(self.source, size)
        record(self.source, [block.ids for block in self.blocks], self.readers["source"])
        self.source_fingerprint = self.source.fingerprint()
        self.source.llm = None
        self.target = Model(load_target(), what)

    def run(self, remote: bool | str, memory: int | None) -> dict:
        device = next((m.device for m in (self.target, self.source) if m.device.type != "cpu"), torch.device("cpu"))
        largest = max(sum(map(len, block.ids)) for block in self.blocks)
        shape = (self.source.n_states, self.target.n_states), (self.source.width, self.target.width)
        planned = plan(*shape, largest, device, memory)
        print(planned)
        for side, model in (("source", self.source), ("target", self.target)):
            if side not in self.readers and not model.here:
                bound = memory or free_bytes(torch.device("cpu")) // 2
                kept = self._kept(model, 0)
                self.readers[side] = fetch(model, [block.ids for block in self.blocks], kept, remote, bound)
            self.readers.setdefault(side, model)
        checkpoint = Checkpoint(self._settings(planned))
        state = checkpoint.read(device) or {"group": 0, "next": 0, "solved": 0, "results": self._empty()}
        while state["group"] < len(planned.groups):
            self._group(planned, state, checkpoint)
        return self._result(state["results"])

    def _group(self, planned: Plan, state: dict, checkpoint: Checkpoint) -> None:
        layers = planned.groups[state["group"]]
        shape = [len(layers[0]), len(layers[1]), self.source.width + 1, self.source.width + 1 + self.target.width]
        if "fit" not in state:
            for name in ("fit", "choose"):
                state[name] = torch.zeros(shape, dtype=torch.float64, device=planned.device)
            state["means"] = torch.zeros(shape[1], self.target.width, dtype=torch.float64, device=planned.device)
        label = "maps" if len(planned.groups) == 1 else f"maps, pass {state['group'] + 1} of {len(planned.groups)}"
        for number in steps(range(state["next"], len(self.blocks)), label):
            block = self.blocks[number]
            if block.split == "test":
                self._solve(layers, state, checkpoint)
            x, y = (
                self.readers[side].read(number, block.ids, its).to(planned.device, torch.float32)
                for side, its in zip(("source", "target"), layers, strict=True)
            )
            if block.split == "test":
                self._test(block, layers, state, x, y)
            else:
                accumulate(state[block.split], x, y)
            state["next"] = number + 1
            checkpoint.keep(state)
        for name in ("fit", "choose", "means"):
            del state[name]
        state |= {"group": state["group"] + 1, "next": 0, "solved": 0}
        checkpoint.keep(state, now=True)

    def _solve(self, layers: tuple[list[int], list[int]], state: dict, checkpoint: Checkpoint) -> None:
        pairs = [(m, l) for m in range(len(layers[0])) for l in range(len(layers[1]))]
        for m, l in pairs[state["solved"] :]:
            strength, state["means"][l] = solve(state["fit"][m, l], state["choose"][m, l])
            state["results"]["strength"][layers[0][m], layers[1][l]] = strength
            state["solved"] += 1
            checkpoint.keep(state)

    def _test(self, block: Block, layers: tuple, state: dict, x: torch.Tensor, y: torch.Tensor) -> None:
        relative = errors(state["fit"][..., x.shape[2] + 1 :], x, y)
        means = torch.stack(
            [((v - mean) * root).norm(dim=-1) for (v, root), mean in zip(map(normed, y), state["means"], strict=True)]
        )
        start, results = 0, state["results"]
        for number, ids in zip(block.numbers, block.ids, strict=True):
            new, p = slice(start + self.sequences.seen[number], start + len(ids)), self.tested.index(number)
            m, l = (torch.tensor(its) for its in layers)
            results["relative_sums"][p, m[:, None], l] = relative[..., new].sum(-1).cpu()
            results["mean_sums"][p, l] = means[:, new].sum(-1).cpu()
            start += len(ids)

    def _empty(self) -> dict:
        size = len(self.tested), self.source.n_states, self.target.n_states
        return {
            "relative_sums": torch.zeros(size, dtype=torch.float64),
            "mean_sums": torch.zeros(size[0], size[2], dtype=torch.float64),
            "strength": torch.zeros(size[1:], dtype=torch.float64),
        }

    def _result(self, found: dict) -> dict:
        n_tokens = [len(self.sequences.ids[n]) - self.sequences.seen[n] for n in self.tested]
        kept = torch.tensor(n_tokens) > 0
        found |= {"n_tokens": torch.tensor(n_tokens, dtype=torch.float64)}
        sums = {key: value[kept] if key != "strength" else value for key, value in found.items()}
        relative = sums["relative_sums"].sum(0) / sums["n_tokens"].sum()
        result = {
            "relative": relative,
            "relative_mean": sums["mean_sums"].sum(0) / sums["n_tokens"].sum(),
            "best": relative.argmin(0),
            **sums,
            "n_fit_tokens": torch.tensor(self.sequences.n_tokens("fit")),
        }
        return {key: value.cpu().float() for key, value in result.items()}

    def _kept(self, model: Model, size: int) -> Kept:
        digest = hashlib.sha256(json.dumps([block.ids for block in self.blocks]).encode()).hexdigest()[:16]
        return Kept(folder_beside(f"{model.fingerprint()}-{digest}.states"), size)

    def _settings(self, planned: Plan) -> str:
        """The hash of all that decides the moments."""
        its_own = self.source_fingerprint if self.source.llm is None else self.source.fingerprint()
        decides = [its_own, self.target.fingerprint(), [b.ids for b in self.blocks], planned.groups, STRENGTHS]
        decides += [self.sequences.split, str(planned.device.type)]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]
