"""The transformers model inside a model in memory."""

from inspect import ismethod

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..params import warn
from .errors import ModelError, reason

_INSIDE = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}


def underlying(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The transformers model that `model` is, or that PEFT wraps, in evaluation mode.

    Raises ModelError for anything else, and for wrappers that compute different logits, as PEFT's prompt and prefix
    tuning.
    """
    check_kind(tokenizer)
    if inside := _INSIDE.get(type(model).__name__):
        raise ModelError(f"the model is wrapped in {type(model).__name__}; pass the model inside: model.{inside}")
    if any(part._compiled_call_impl is not None for part in model.modules()):
        raise ModelError(
            "the model was compiled in place, so its modules cannot be read; load it again, without compiling"
        )
    base = getattr(model, "get_base_model", lambda: model)()
    if not isinstance(base, PreTrainedModel):
        raise ModelError(
            f"a {type(model).__name__} is not a transformers model; load one with AutoModelForCausalLM, or pass a name"
        )
    if any(ismethod(getattr(part, "weight", None)) for part in base.modules()):  # torch packs them
        raise ModelError("the model is quantised by quantize_dynamic and holds no weights; pass the model from before")
    if base.config.is_encoder_decoder:
        raise ModelError(f"a {type(base).__name__} is an encoder-decoder; use a decoder-only language model")
    if base.get_output_embeddings() is None:
        raise ModelError(
            f"a {type(base).__name__} has no head that computes logits; load one with AutoModelForCausalLM"
        )
    if (held := next((name for name, weight in base.named_parameters() if weight.is_meta), "")) and not hasattr(
        base, "hf_device_map"
    ):
        raise ModelError(f"the weight {held} is on the meta device and holds no numbers; load it with from_pretrained")
    if not base.config.return_dict:
        raise ModelError("config.return_dict is False; set it to True")
    if not base.can_generate():
        raise ModelError(
            f"a {type(base).__name__} cannot generate text; load a causal language model with AutoModelForCausalLM"
        )
    known, wanted = len(tokenizer), base.config.get_text_config().vocab_size
    if known < wanted / 10:  # padding is less
        warn(
            f"the tokenizer has {known} tokens and the model {wanted}; if it belongs to a different model, use the "
            "model's own"
        )
    model.eval()
    if base is model:
        return base
    ids = tokenizer("The quick brown fox")["input_ids"]
    try:
        problem = differ(logits_of(base, ids), logits_of(model, ids))
    except Exception as error:  # adapters raise anything
        raise ModelError(f"the adapted model does not run: {reason(error)}") from error
    if problem:
        raise ModelError(
            f"{type(model).__name__} changes the model outside its layers, such as by tuned prompts or prefixes (of "
            f"the logits, {problem}), which cannot be measured; use adapters inside the layers, such as LoRA's"
        )
    return base


def check_kind(tokenizer: object) -> None:
    """Raise ModelError for anything but a transformers tokenizer."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        from_hub = "one from AutoTokenizer.from_pretrained(...)"
        remedy = "the one inside: llm.tokenizer or processor.tokenizer" if hasattr(tokenizer, "tokenizer") else from_hub
        raise ModelError(f"a {type(tokenizer).__name__} is not a transformers tokenizer; pass {remedy}")


def logits_of(model: nn.Module, ids: list[int]) -> Tensor:
    """The logits of one text, computed without nnsight."""
    device = next(model.parameters()).device
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits


def differ(ours: Tensor, theirs: Tensor) -> str:
    """How much two models' logits of one text differ, if by more than rounding; else ""."""
    if ours.shape != theirs.shape:
        return "they are for different tokens"
    off = float((ours - theirs.to(ours.device)).abs().max() / ours.abs().max())
    return "" if off <= 4 * torch.finfo(ours.dtype).eps else f"they differ by {off:.1%}"
