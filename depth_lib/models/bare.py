"""What is given as a model in memory: the transformers model in it, or one line that says why there is none."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .errors import ModelError, reason

_INSIDE = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}


def underlying(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The transformers model that `model` is, or that PEFT wraps, in evaluation mode.

    Raises ModelError for anything else, and for a wrapper that computes other logits than the model in it, as PEFT's
    prompt and prefix tuning do.
    """
    if inside := _INSIDE.get(type(model).__name__):
        raise ModelError(f"the model is wrapped in {type(model).__name__}; give the one inside: model.{inside}.")
    if any(part._compiled_call_impl is not None for part in model.modules()):
        raise ModelError("the model was compiled in place, and no module of it can be read; load it again, uncompiled.")
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not isinstance(base, PreTrainedModel):
        raise ModelError(
            f"a {type(model).__name__} is no transformers model; give a model of AutoModelForCausalLM, or a name."
        )
    if base.get_output_embeddings() is None:
        raise ModelError(f"a {type(base).__name__} has no head that gives logits; give one of AutoModelForCausalLM.")
    model.eval()
    if base is not model:
        _check_same(model, base, tokenizer)
    return base


def _check_same(model, base, tokenizer):
    """ModelError if the base model's logits are not the wrapper's."""
    ids = torch.tensor([tokenizer("The quick brown fox")["input_ids"]], device=base.device)
    try:
        with torch.no_grad():
            ours, theirs = (_logits(one, ids) for one in (base, model))
        off = float((ours - theirs).abs().max()) if ours.shape == theirs.shape else None
    except Exception as error:  # whatever adapters raise
        raise ModelError(f"the adapted model does not run: {reason(error)}.") from error
    if off is None or not off <= 4 * torch.finfo(ours.dtype).eps * float(ours.abs().max()):
        how = "logits of other tokens" if off is None else f"logits that differ by {off:.2g}"
        raise ModelError(
            f"what {type(model).__name__} adds is not in its base model, which alone would be measured ({how}): so it "
            "is with prompt and prefix tuning; give a model whose adapters are in its layers, such as LoRA's."
        )


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, use_cache=False).logits


def check_tokenizer_works(tokenizer: object) -> None:
    """ModelError for what is no tokenizer of text."""
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    inside = "the one inside: processor.tokenizer" if hasattr(tokenizer, "tokenizer") else "that of AutoTokenizer"
    raise ModelError(f"a {type(tokenizer).__name__} is no tokenizer of transformers; give {inside}.")
