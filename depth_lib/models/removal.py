"""A model without some of its blocks, for whatever takes a model."""

import copy
import warnings
from pathlib import Path
from typing import Protocol

import torch
from nnsight import TransformersModel

from .load import wrapped


class Blocks(Protocol):
    """n blocks from block s on, such as what `dl.removable` returns."""

    n: int
    s: int | None


def remove_blocks(llm: TransformersModel, s: int | Blocks, n: int = 1) -> TransformersModel:
    """A copy of `llm` without blocks s..s + n − 1, which shares the weights of the others.

    s may be what `dl.removable` returns, which has both. Every probe takes the copy, `dl.save_model` saves it, and
    `model._module` is the transformers model, for `generate`: the number of layers in its config, and the lists there
    with one item per layer, are those of the blocks that stay. Raises ValueError if there are no such blocks, if none
    is left, or if the model is spread over several devices.
    """
    if not isinstance(s, int):
        s, n = s.s, s.n
        if not n:
            raise ValueError("no block can be removed at this cost; ask dl.removable with a larger at_most.")
    module, n_layers = llm._module, len(llm.blocks)
    if not (0 <= s and 1 <= n < n_layers and s + n <= n_layers):
        raise ValueError(f"blocks {s}..{s + n - 1} cannot be removed from {n_layers}; at least one has to stay.")
    if len({weight.device for weight in module.parameters()}) > 1:
        raise ValueError("the model is spread over several devices; load it on one to remove blocks.")
    kept = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    for part in module.modules():  # what nnsight put there refers to the whole model
        kept |= {id(part.__dict__.get(name)): None for name in _OF_NNSIGHT}
    shorter = copy.deepcopy(module, kept)
    for part in shorter.modules():
        for name in _OF_NNSIGHT:
            part.__dict__.pop(name, None)
    path = next(name for name, part in module.named_modules() if part is llm.blocks._module)
    blocks = shorter.get_submodule(path)
    del blocks[s : s + n]
    for part in blocks[s:].modules():
        if isinstance(getattr(part, "layer_idx", None), int):  # where the cache has its keys
            part.layer_idx -= n
    config = shorter.config.get_text_config()
    for name, value in vars(config).items():
        if not isinstance(value, list) or "token" in name:
            continue
        if len(value) == n_layers:  # one item per layer
            del value[s : s + n]
        elif "layer" in name and all(type(item) is int for item in value):  # layers by their numbers
            value[:] = [l if l < s else l - n for l in value if not s <= l < s + n]
    config.num_hidden_layers = n_layers - n
    if not _rebuilt_by_config(shorter):
        warnings.warn("the shorter model's config cannot say which blocks stayed: it cannot be saved.", stacklevel=2)
    return wrapped(shorter, llm.tokenizer, task="text-generation")


def save_model(llm: TransformersModel, folder: str | Path) -> None:
    """Write model and tokenizer as a folder that transformers' `from_pretrained` reads.

    Raises ValueError for a model whose blocks its config cannot say, as after `remove_blocks` of some kinds.
    """
    if not _rebuilt_by_config(llm._module):
        raise ValueError("this model's config cannot say which blocks it has, so nothing could load it again.")
    llm._module.save_pretrained(folder)
    llm.tokenizer.save_pretrained(folder)


def _rebuilt_by_config(module):
    """Whether the config alone gives a model with parameters of the same names and shapes."""
    with torch.device("meta"):
        built = type(module)(copy.deepcopy(module.config))
    return _shapes(built) == _shapes(module)


def _shapes(module):
    return {name: weight.shape for name, weight in module.named_parameters()}


_OF_NNSIGHT = ("forward", "__nnsight__")
