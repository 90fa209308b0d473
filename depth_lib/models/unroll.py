"""Looped models, unrolled: the stack of blocks repeated, so that each pass has its own layers on shared weights."""

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from .errors import ArchitectureError, ModelError
from .families import architecture
from .load import at_places
from .removal import in_order, on_same_weights, save_whole

# What makes the forward pass of a model with a loop of its own run its blocks once, and take no early exit.
_OWN_LOOPS = {"total_ut_steps": {"total_ut_steps": 1, "early_exit_threshold": None, "early_exit_step": None}}


def unroll(model: PreTrainedModel, passes: int | None = None, norm_between: bool | None = None) -> PreTrainedModel:
    """A copy of a transformers model that runs its stack of blocks several times; the passes share their weights.

    >>> toy = dl.load_model("toy-4l")
    >>> looped = dl.load_model(dl.unroll(toy._module, passes=3), toy.tokenizer)
    >>> len(looped.blocks), looped._module.num_parameters() == toy._module.num_parameters()
    (12, True)

    With B blocks and P passes, layer p B + l of the copy is block l in pass p, so there are B P layers.

    - model: a transformers model in memory: any decoder that is one stack of blocks, or Ouro
    - passes: how many times the stack runs; Ouro's own number by default
    - norm_between: apply the final norm after each pass, as part of its last block; True by default only for Ouro

    Returns a transformers model for `dl.load_model(unrolled, tokenizer)`. It runs without a cache and cannot be saved.
    With a norm between passes, attention and MLP cannot be measured separately: only the blocks' inputs and outputs
    are.

    Raises ModelError for anything other than a transformers model, and ValueError if passes is not a positive integer.
    Raises ArchitectureError for a model that is not a single stack of blocks, such as one with its own loop (except
    Ouro).
    Source: Zhu et al. 2025 (Ouro, arXiv 2510.25741).
    Cost: no weight is copied; two passes of 4 tokens.
    """
    if not isinstance(model, PreTrainedModel):
        raise ModelError(
            f"dl.unroll expects a transformers model, got a {type(model).__name__}; for a model from dl.load_model, "
            "pass llm._module; for a PEFT model, model.merge_and_unload()"
        )
    loop = next((name for name in _OWN_LOOPS if hasattr(model.config, name)), "")
    passes = getattr(model.config, loop, None) if passes is None else passes
    if not passes or passes < 1:
        raise ValueError(
            f"passes must be an integer of at least 1, got {passes!r}; for example: dl.unroll(model, passes=3)"
        )
    if hasattr(model.config.get_text_config(), "layer_passes"):
        raise ValueError("this model is unrolled already; use the model that it was made from")
    once = on_same_weights(model).eval()
    for part in (once.config, *once.modules()):
        for name in vars(part).keys() & _OWN_LOOPS.get(loop, {}).keys():
            setattr(part, name, _OWN_LOOPS[loop][name])
    try:
        found = architecture(once.config, once)
    except ArchitectureError as error:
        raise ArchitectureError(
            f"dl.unroll needs a model whose forward pass is one stack of blocks: {error}"
        ) from error
    n_blocks = found.n_layers
    unrolled = in_order(once, found.blocks, [*range(n_blocks)] * passes)
    if bool(loop) if norm_between is None else norm_between:
        if len(found.tail) < 2:
            raise ValueError("this model has no final norm to apply between passes; use norm_between=False")
        norm = nn.ModuleList([unrolled.get_submodule(found.tail[0])])
        blocks: Any = unrolled.get_submodule(found.blocks)
        for block in [*blocks][n_blocks - 1 : -1 : n_blocks]:
            (block.norm_between,) = at_places(norm, [0])
            block.__class__ = type(type(block).__name__, (_LastOfPass, type(block)), {})
    text_config = unrolled.config.get_text_config()
    text_config.layer_passes = [p for p in range(passes) for _ in range(n_blocks)]
    for config in (unrolled.config, text_config, getattr(unrolled, "generation_config", None)):
        if config is not None:
            config.use_cache = False
    vars(unrolled)["save_pretrained"] = partial(save_whole, unrolled, "its passes share their weights")
    return unrolled


class _LastOfPass(nn.Module):
    """A block followed by the norm between passes."""

    norm_between: nn.Module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        if isinstance(output, Tensor):
            return self.norm_between(output)
        return (self.norm_between(output[0]), *output[1:])
