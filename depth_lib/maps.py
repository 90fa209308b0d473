"""Is a deep model just a stretched version of a shallow one? Affine maps between all layers of two models.

    relative[m, l] = mean over held-out tokens of ‖W x + b − h_l‖ / max(‖h_l‖, 1e-6),   x = h_m of the source

Csordás et al. 2025 (arXiv 2505.13898), Figure 8, train each map for 10,000 steps. Here W and b are the least squares of
the squared relative error, in closed form: every token weighs w = 1 / ‖h_l‖². Without these weights the first token,
some hundred times as long as the others, decides the map.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from nnsight import TransformersModel

from .data.tokens import text_ids, texts_of
from .effective_depth.intervals import FEWEST, Estimate, NoInterval, half_width
from .effective_depth.rules import as_array
from .lenses.regression import means, moments, root_weights, solved, with_ones
from .models.check import name_of, verified_arch
from .models.errors import overflow
from .params import not_among
from .progress import steps
from .residual.states import states
from .results.origin import of_texts, origin
from .results.result import Result, fitting
from .session import run

HELD_OUT = 10  # of every ten texts, the first
RIDGE = 1e-6  # of the mean eigenvalue; only keeps directions that never occur from being divided by zero
LONGEST = 512  # tokens of a text that are read
_AT_ONCE = 4096  # tokens whose states are in memory in float64


def linear_maps(
    source: TransformersModel, target: TransformersModel, texts: Sequence[str], what: str = "residual"
) -> Result:
    """How well an affine map predicts each layer of `target` from each layer of `source`.

    >>> llm = dl.load_model("toy-4l")
    >>> maps = dl.linear_maps(llm, llm, dl.load_prompts("gsm8k", 12, source="embedded"))
    >>> maps["best"].tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]

    - source, target: from `load_model`, with the same tokenizer
    - texts: list of strings; copies are left out, then the first of every ten is held out
    - what: "residual" (h_0 to h_L) or "contribution" (a_l + m_l of each block)

    Returns a dict of float32 tensors, with M + 1 source and N + 1 target layers (contributions: M and N):

    - relative [M + 1, N + 1]: the relative error on the held-out texts
    - relative_mean [N + 1]: the error of predicting the mean
    - best [N + 1]: the source layer with the smallest error
    - relative_sums [P, M + 1, N + 1], n_tokens [P]: sums over the tokens of each held-out text, and the number of these
      tokens

    Raises ValueError for tokenizers that differ, fewer than 4 d tokens to fit on, or states that are not finite.
    Source: Csordás et al. 2025, section 5.
    Cost: a forward pass of both models per text, and (M + 1)(N + 1) solves of d × d systems. Residual streams are kept
    on disk in float16; one source layer at a time is in memory.
    """
    if problem := not_among(("residual", "contribution"), "what=", what):
        raise ValueError(problem)
    texts = texts_of(texts, "text")
    width, _ = (verified_arch(llm).width for llm in (source, target))
    fit, test = _split(source, target, texts)
    n_fit = sum(map(len, fit))
    if n_fit < 4 * width:
        raise ValueError(
            f"{n_fit} tokens are too few to fit maps with {width} inputs; use at least {4 * width} (distinct "
            f"texts: {len({*texts})}; the first of every {HELD_OUT} is held out)"
        )
    lengths = torch.tensor([len(ids) for ids in test])
    with tempfile.TemporaryDirectory(prefix="linear_maps") as folder:
        x, y = (_Stored(Path(folder, name), llm, fit + test, what) for name, llm in (("x", source), ("y", target)))
        found = [_errors(m, x, y, n_fit, lengths) for m in steps(range(x.n_layers), "source layers")]
    sums = torch.stack([errors for errors, _ in found], 1)
    relative = sums.sum(0) / lengths.sum()
    result = {
        "relative": relative,
        "relative_mean": found[0][1] / lengths.sum(),
        "best": relative.argmin(0),
        "relative_sums": sums,
        "n_tokens": lengths,
    }
    of_source, meta = (origin(llm, remote=False) for llm in (source, target))
    meta |= {name: f"{of_source[name]} to {meta[name]}" for name in ("model", "model_hash")}
    meta |= of_texts(texts) | {"settings": {"what": what}}
    return Result("linear_map", {key: value.float() for key, value in result.items()} | {"meta": meta})


def stretch(result: Mapping) -> Estimate:
    """The slope of the best source layer against the target layer, each as a share of its model's depth.

    >>> llm = dl.load_model("toy-4l")
    >>> texts = [text for name in ("gsm8k", "hellaswag") for text in dl.load_prompts(name, 12, source="embedded")]
    >>> print(dl.stretch(dl.linear_maps(llm, llm, texts)))
    1.00 [1.00, 1.00]

    1: the target is a stretched version of the source. Above 1: the extra layers come at the end (expected value for
    M = 4 source and N = 8 target blocks: 1.31). The line is fitted by least squares through the origin. The interval is
    computed by leaving out one held-out text at a time.

    - result: from `linear_maps`

    Raises NoInterval for fewer than 3 held-out texts (21 texts in all); the first of every ten is held out.
    Cost: no forward pass.
    """
    if not isinstance(result, Mapping) or "relative_sums" not in result:
        raise ValueError("stretch needs a result of dl.linear_maps(source, target, texts)")
    sums = as_array(fitting(result)["relative_sums"]).astype(float)
    n_tokens = as_array(result["n_tokens"])[:, None, None]
    if len(sums) < FEWEST:
        least = HELD_OUT * (FEWEST - 1) + 1
        raise NoInterval(f"{len(sums)} held-out texts are too few; use linear_maps with at least {least} texts")
    value = _slope(sums.sum(0) / n_tokens.sum())
    half = half_width(_slope((sums.sum(0) - sums) / (n_tokens.sum() - n_tokens)))
    return Estimate(float(value), float(value - half), float(value + half))


def _slope(relative: np.ndarray) -> np.ndarray:
    """Σ x y / Σ x² of errors [..., M + 1, N + 1], x and y the depths of target layer and best source layer."""
    of_source, of_target = (np.linspace(0, 1, n) for n in relative.shape[-2:])
    return of_source[relative.argmin(-2)] @ of_target / (of_target @ of_target)


def _split(source, target, texts):
    """The token ids of the texts to fit on, and of those held out."""
    fit, test = [], []
    positions = [getattr(llm.config.get_text_config(), "max_position_embeddings", None) for llm in (source, target)]
    longest = min(LONGEST, *filter(None, positions))
    for k, text in enumerate(dict.fromkeys(texts)):
        ids, others = (text_ids(llm.tokenizer, text)[0] for llm in (source, target))
        if ids != others:
            raise ValueError(f"the tokenizers differ on text {k}; use two models with the same tokenizer")
        if ids:
            (fit if k % HELD_OUT else test).append(ids[:longest])
    return fit, test


class _Stored:
    """The states [layers, tokens, d] of a model on texts: float16 on disk, each token over its largest value."""

    def __init__(self, path, llm, texts, what):
        arch, n_tokens, done = verified_arch(llm), sum(map(len, texts)), 0
        self.n_layers = arch.n_layers + (what == "residual")
        self.values = np.memmap(path, np.float16, "w+", shape=(self.n_layers, n_tokens, arch.width))
        self.largest = torch.empty(self.n_layers, n_tokens, 1)
        for ids in steps(texts, f"states of {name_of(llm)}"):
            found = run(states, llm, arch, ids, what)["states"].float()
            if not torch.isfinite(found).all():
                raise ValueError(
                    f"the states of {name_of(llm)} are not finite; weights are damaged{overflow(llm.dtype)}"
                )
            place = slice(done, done := done + len(ids))
            self.largest[:, place] = found.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
            self.values[:, place] = (found / self.largest[:, place]).half().numpy()

    def __getitem__(self, place):
        """The states of one layer and some tokens, in float64."""
        return torch.from_numpy(self.values[place].astype(float)) * self.largest[place]


def _errors(m, x, y, n_fit, lengths):
    """The summed relative error of source layer m on each held-out text, [P, N + 1]; and that of the mean, [N + 1]."""
    n_tokens, of_maps, of_mean = n_fit + int(lengths.sum()), [], []
    tested = with_ones(x[m, n_fit:])
    for l in range(y.n_layers):
        places = [slice(start, min(start + _AT_ONCE, n_fit)) for start in range(0, n_fit, _AT_ONCE)]
        sums = sum(moments(x[m, place], y[l, place]) for place in places)
        (W,), mean = solved(sums, [RIDGE]), means(sums)[len(sums) :]
        h = y[l, n_fit:n_tokens]
        weights = root_weights(h)
        distance = ((tested @ W - h) * weights).norm(dim=1)
        of_maps.append(torch.stack([one.sum() for one in distance.split(lengths.tolist())]))
        of_mean.append(((mean - h) * weights).norm(dim=1).sum())
    return torch.stack(of_maps, 1), torch.stack(of_mean)
