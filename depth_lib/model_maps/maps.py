"""linear_maps: every layer of one model predicted from every layer of another."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from nnsight import TransformersModel

from ..data.tokens import texts_of
from ..models.check import name_of, verified_arch
from ..models.load import load_model
from ..params import not_among
from ..progress import steps
from ..residual.states import states
from ..session import run
from .regression import accumulate, errors, solve
from .texts import LONGEST, cut, read_texts, same_ids


def linear_maps(
    source: TransformersModel | str,
    target: TransformersModel | str,
    texts: Sequence[str] | str | Path,
    what: str = "residual",
) -> dict[str, torch.Tensor]:
    """How well each layer of one model is predicted, linearly, from each layer of another with the same tokenizer.

    >>> maps = dl.linear_maps("toy-4l", "toy-4l", dl.load_prompts("gsm8k", 12, source="embedded"))
    >>> maps["best"].tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]

    relative[m, l] = mean over held-out tokens of ‖W x + b − h_l‖ / max(‖h_l‖, 1e-6), where x = h_m of the source. W
    and b minimise this error with a ridge, in closed form.

    - source, target: models from `load_model`, or names; their weights must be here
    - texts: list of strings, or a file; a tenth of the tokens tests the maps, and a tenth chooses the ridge
    - what: "residual" (h_0..h_L) or "contribution" (c_0..c_{L−1})

    Returns float32, for M source and N target layers:

    - relative [M, N]: the error
    - relative_mean [N]: the error of predicting the mean
    - best [N]: the source layer that predicts each target layer best
    - strength [M, N]: the ridge, in units of the mean eigenvalue of XᵀX
    - relative_sums [P, M, N], mean_sums [P, N], n_tokens [P]: sums over the tokens of each tested sequence
    - n_fit_tokens: how many tokens the maps were fitted on

    Raises TextError for tokenizers that differ or fewer than 4 d tokens, and ValueError for states that are not
    finite.
    Source: Csordás et al. 2025, Figure 8.
    Cost: each model reads the texts once, and M N systems of d equations are solved.
    """
    if problem := not_among(("residual", "contribution"), "what", what):
        raise ValueError(problem)
    llms = [load_model(model) if isinstance(model, str) else model for model in (source, target)]
    texts = read_texts(texts) if isinstance(texts, str | Path) else texts_of(texts, "text")
    documents = same_ids(llms[0].tokenizer, llms[1].tokenizer, texts)
    configs = [llm.config.get_text_config() for llm in llms]
    longest = min(LONGEST, *(getattr(config, "max_position_embeddings", None) or LONGEST for config in configs))
    rows = verified_arch(llms[0]).width + 1
    excerpts = cut(documents, longest, rows - 1)
    device = next(llms[1].parameters()).device
    device = device if device.type == "cuda" else torch.device("cpu")  # not every other kind has float64
    n_tested, relative_sums, mean_sums, moments = [], [], [], {}
    for excerpt in steps(excerpts, "maps"):
        x, y = (_states(llm, excerpt.ids, what).to(device) for llm in llms)
        if excerpt.split != "test":
            shape = len(x), len(y), rows, rows + y.shape[-1]
            if excerpt.split not in moments:
                moments[excerpt.split] = torch.zeros(shape, dtype=torch.float64, device=device)
            accumulate(moments[excerpt.split], x[:, excerpt.seen :], y[:, excerpt.seen :])
            continue
        if not n_tested:  # the first sequence to test on: all moments are there
            strength = torch.empty(len(x), len(y))
            means = torch.empty(y.shape[::2], dtype=torch.float64, device=device)
            for m, l in product(range(len(x)), range(len(y))):
                strength[m, l], means[l] = solve(moments["fit"][m, l], moments["choose"][m, l])
        of_maps, of_mean = errors(moments["fit"][..., rows:], means, x, y)
        relative_sums.append(of_maps[..., excerpt.seen :].sum(-1).cpu())
        mean_sums.append(of_mean[..., excerpt.seen :].sum(-1).cpu())
        n_tested.append(len(excerpt.ids) - excerpt.seen)
    relative = torch.stack(relative_sums).sum(0) / sum(n_tested)
    result = {
        "relative": relative,
        "relative_mean": torch.stack(mean_sums).sum(0) / sum(n_tested),
        "best": relative.argmin(0),
        "strength": strength,
        "relative_sums": torch.stack(relative_sums),
        "mean_sums": torch.stack(mean_sums),
        "n_tokens": torch.tensor(n_tested),
        "n_fit_tokens": torch.tensor(sum(len(excerpt.ids) for excerpt in excerpts if excerpt.split == "fit")),
    }
    return {key: value.float() for key, value in result.items()}


def _states(llm, ids, what):
    """Every h_l, or every contribution, of a sequence of token ids: float32 [layers, tokens, d]."""
    arch = verified_arch(llm)
    layers = list(range(arch.n_layers + (what == "residual")))
    values = run(states, llm, arch, ids, layers, what)["states"]
    if not torch.isfinite(values).all():
        raise ValueError(
            f'the states of {name_of(llm)} are not finite in {llm.dtype}; load it with dtype="bfloat16" or "float32"'
        )
    return values.float()
