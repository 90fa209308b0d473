"""A model without some of its blocks, for whatever takes a model."""

import copy
import warnings

import torch
from nnsight import TransformersModel

from .load import wrapped


def remove_blocks(llm: TransformersModel, s: int, n: int = 1) -> TransformersModel:
    """A copy of `llm` without blocks s..s + n − 1, which shares the weights of the others.

    Every probe takes it; `model._module` is the transformers model, for `generate` and `save_pretrained`: the number of
    layers in its config, and the lists there with one item per layer, are those of the blocks that stay. Raises
    ValueError if there are no such blocks, if none is left, or if the model is spread over several devices.
    """
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
    with torch.device("meta"):
        built = type(shorter)(copy.deepcopy(shorter.config))
    if {name: w.shape for name, w in built.named_parameters()} != {
        name: w.shape for name, w in shorter.named_parameters()
    }:
        warnings.warn("the shorter model's config cannot say which blocks stayed: do not save it.", stacklevel=2)
    return wrapped(shorter, llm.tokenizer, task="text-generation")


_OF_NNSIGHT = ("forward", "__nnsight__")
