"""A model without some of its blocks, or with its blocks in a different order."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import init_empty_weights
from nnsight import TransformersModel
from transformers import PreTrainedModel

from ..data.orders import checked_order
from ..files import empty_folder, path_of, writable_folder
from ..params import warn, whole
from .bare import differ, logits_of
from .errors import ModelError, reason
from .families import known
from .load import at_places, in_memory

_OF_NNSIGHT = ("forward", "__nnsight__")


def remove_blocks(llm: TransformersModel, s: Any, n: Any = None) -> TransformersModel:
    """A copy of a model without blocks s..s + n − 1; the blocks that are kept share their weights with the original.

    >>> llm = dl.load_model("toy-4l")
    >>> len(dl.remove_blocks(llm, 1, 2).blocks)
    2

    - llm: from `load_model`
    - s: the first block to remove, or a Removable from `dl.removable`
    - n: the number of blocks to remove; None: one

    Returns a model that works with every probe and with `dl.save_model`. `model._module` is the transformers model,
    for `generate`. If the config cannot express which blocks run, you get a warning, and the model cannot be saved.

    Raises ValueError for blocks that the model does not have, or if no block would be left. It also does so for a
    Removable of a model with a different number of blocks, or if the model is spread over several devices.
    Cost: no weight is copied; a few passes of 4 to 8 tokens.
    """
    known(llm)
    if isinstance(s, Mapping):
        raise ValueError("remove_blocks got a result; pass dl.removable(result), or s and n")
    if hasattr(s, "n"):
        if n is not None:
            raise ValueError(f"n={n!r} conflicts with the Removable, which already sets n; leave n out")
        s, n = stretch_of(s, len(llm.blocks))
    return reorder_blocks(llm, order_without(s, 1 if n is None else n, len(llm.blocks)))


def stretch_of(removed: Any, n_layers: int) -> tuple[int, int]:
    """The first block and the number of blocks of (s, n), or of a Removable of a model with n_layers blocks.

    ValueError if it removes none, or if the model has another number of blocks.
    """
    if not hasattr(removed, "n"):
        if not isinstance(removed, Sequence) or isinstance(removed, str) or len(removed) != 2:
            raise ValueError(f"removed must be (s, n) or dl.removable(result), got {removed!r}")
        return removed[0], removed[1]
    if not removed.n:
        known = "no block can be removed at this cost; use dl.removable with a larger at_most"
        raise ValueError(f"{removed if removed.note else known}")
    if removed.n_layers != n_layers:
        raise ValueError(
            f"the Removable is for a model with {removed.n_layers} blocks, but this one has {n_layers}; compute one "
            "for this model: dl.removable(dl.block_removal(llm, prompts))"
        )
    return removed.s, removed.n


def order_without(s: int, n: int, n_layers: int) -> list[int]:
    """The blocks except s..s + n − 1. Raises ValueError if the model does not have them, or has only them."""
    for name, value in (("s", s), ("n", n)):
        if not whole([value]):
            raise ValueError(
                f"{name} must be an integer, got {value!r}; to remove blocks that are not consecutive, use "
                "dl.reorder_blocks(llm, blocks_to_keep)"
            )
    s, n = whole([s, n])
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if s < 0 or n == n_layers or s + n > n_layers:
        which = f"block {s}" if n == 1 else f"blocks {s}..{s + n - 1}"
        can = f"choose from blocks 0 to {n_layers - 1} and leave at least one"
        raise ValueError(f"cannot remove {which}: {can}")
    return [*range(s), *range(s + n, n_layers)]


def reorder_blocks(llm: TransformersModel, order: Sequence[int]) -> TransformersModel:
    """A copy of a model; the copy runs the blocks in this order and shares the original's weights.

    >>> llm = dl.load_model("toy-4l")
    >>> len(dl.reorder_blocks(llm, [0, 1, 2, 1, 2, 3]).blocks)
    6

    - llm: from `load_model`
    - order: block numbers, which may be repeated or left out

    Returns a model that works with every probe and with `dl.save_model`, which saves a repeated block as several
    copies. If the config cannot express which blocks run, you get a warning, and the model cannot be saved.

    Raises ValueError for an order that is empty or has unknown numbers, or if the model is spread over several
    devices, and ModelError if its weights are on a server.
    Cost: no weight is copied; a few passes of 4 to 8 tokens.
    """
    blocks_path = _with_weights(llm).found.blocks
    module, order = llm._module, checked_order(order, len(llm.blocks))
    if len({weight.device for weight in module.parameters()}) > 1:
        raise ValueError("the model is spread over several devices; load it on one to change its blocks")
    changed = in_order(module, blocks_path, order)
    problem = _cannot_be_saved(changed)
    if problem and not hasattr(changed.config.get_text_config(), "layer_passes"):
        warn(f"it cannot be saved: {problem}")
    vars(changed)["save_pretrained"] = partial(save_whole, changed, problem)
    reordered, before = in_memory(changed, llm.tokenizer), known(llm).order
    known(reordered).order = [before[l] for l in order] if before else list(order)
    return reordered


def in_order(module: PreTrainedModel, blocks_path: str, order: Sequence[int]) -> PreTrainedModel:
    """A copy of a model with its blocks in this order, on the same weights."""
    changed = on_same_weights(module)
    blocks: Any = changed.get_submodule(blocks_path)
    n_blocks, copies = len(blocks), at_places(blocks, order)
    del blocks[:]
    blocks.extend(copies)
    _reorder(changed.config.get_text_config(), order, n_blocks)
    return changed


def on_same_weights(module: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model that shares its weights."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    of_nnsight = {  # nnsight's attributes refer to the whole model
        id(part.__dict__.get(name)): None for part in module.modules() for name in _OF_NNSIGHT
    }
    changed = copy.deepcopy(module, shared | of_nnsight)
    for part in changed.modules():
        for name in _OF_NNSIGHT:
            part.__dict__.pop(name, None)
    return changed


def _reorder(config, order, n_layers):
    """Put the layers of a config into this order."""
    for name, value in vars(config).items():
        if not isinstance(value, list) or "token" in name:
            continue
        numbers = all(type(item) is int for item in value)
        if numbers and (sorted(value) == [*range(n_layers)] or ("layer" in name and len(value) != n_layers)):
            value[:] = [place for place, l in enumerate(order) if l in value]  # layers by their numbers
        elif len(value) == n_layers:  # one item per layer
            value[:] = [value[l] for l in order]
    if hasattr(config, "attention_types"):  # gpt_neo's: [kinds, how often]
        config.attention_types = [[config.attention_layers, 1]]
    if hasattr(config, "layer_passes"):
        config.layer_passes = _passes(config.layer_passes, order)
    config.num_hidden_layers = len(order)


def _passes(passes_of_kept, order):
    """The pass of each layer of a reordered loop: a new pass begins with another old pass, or a layer's second run."""
    passes, ran = [], set()
    for place, (l, old) in enumerate(zip(order, passes_of_kept, strict=True)):
        if place and (old != passes_of_kept[place - 1] or l in ran):
            ran = set()
        passes.append(passes[-1] + (not ran) if passes else 0)
        ran.add(l)
    return passes


def save_model(llm: TransformersModel, folder: str | Path) -> None:
    """Write a model and its tokenizer as a folder that transformers' `from_pretrained` reads.

    >>> llm = dl.load_model("toy-4l")
    >>> dl.save_model(dl.remove_blocks(llm, 1, 2), "shorter")
    >>> len(dl.load_model("shorter").blocks)
    2

    - llm: a model, such as one from `dl.remove_blocks`
    - folder: the folder to write to, which must be new or empty

    Raises ModelError for a folder that is not empty, or a model that would give different results after reloading.
    Cost: writes the weights.
    """
    _with_weights(llm)
    if problem := _adapters(llm._module):
        raise ModelError(problem)
    changed = vars(llm._module).get("save_pretrained")  # of a model whose blocks were changed
    (changed or partial(save_whole, llm._module, ""))(folder, into=empty_folder)
    llm.tokenizer.save_pretrained(path_of(folder))


def _with_weights(llm):
    """The Record of a model; ModelError if its weights are on a server."""
    record = known(llm)
    if llm._module.device.type == "meta":
        raise ModelError("the model's weights are on the server; load the model on this machine: dl.load_model(name)")
    return record


def _adapters(model: PreTrainedModel) -> str:
    """Why a model with adapters cannot be saved; "" for one without."""
    added = ("peft.", "torch.nn.utils.parametrize")
    if any(type(part).__module__.startswith(added) for part in model.modules()):
        return (
            "adapters or parametrizations would be saved under names that nothing loads; merge them first: "
            "dl.load_model(model.merge_and_unload(), tokenizer), or remove_parametrizations(module, name)"
        )
    return ""


def _cannot_be_saved(model: PreTrainedModel) -> str:
    """Why a saved copy of this model would compute something else, or ""."""
    if problem := _adapters(model):
        return problem
    if hasattr(model.config.get_text_config(), "layer_passes"):
        return "its passes share their weights"
    ids = [n % model.config.get_text_config().vocab_size for n in range(8)]
    try:
        config = type(model.config).from_dict(model.config.to_dict())
        config._attn_implementation = model.config._attn_implementation
        with init_empty_weights(include_buffers=False):
            built = type(model)(config)
        built.load_state_dict(model.state_dict(), assign=True)
        built.tie_weights(missing_keys=set())  # as loading does: those that are equal
        problem = differ(logits_of(model, ids), logits_of(built.to(model.device).eval(), ids))  # pyright: ignore[reportArgumentType]
    except Exception as error:  # noqa: BLE001 (whatever a config without its layers, or a quantised weight, raises)
        return f"the model's config does not build it ({reason(error)})"
    return problem and f"a model of its config computes other logits ({problem})"


def save_whole(
    model: PreTrainedModel, problem: str, folder: str | Path, into: Callable = writable_folder, **options: Any
) -> None:
    """save_pretrained of a changed model: refused, or with the weights of repeated blocks copied."""
    if problem:
        raise ModelError(f"{problem}, so a saved copy would compute something else; keep it in memory")
    folder = into(folder, ModelError)
    tied = model.get_input_embeddings().weight if model.config.get_text_config().tie_word_embeddings else None
    weights, seen = {}, set()
    for name, weight in model.state_dict(keep_vars=True).items():
        again = id(weight) in seen and weight is not tied  # the unembedding may be tied
        weights[name] = weight.clone() if again else weight
        seen.add(id(weight))
    shared = {"state_dict": weights} if len(seen) < len(weights) else {}
    type(model).save_pretrained(model, folder, **shared, **options)
