"""The architecture of a loaded model, as probes need it.

nnsight aliases let probes and users read `llm.blocks[l]`, `llm.ln_final` and `llm.unembed` on every family.
"""

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from inspect import isdatadescriptor

import torch
from nnsight import Envoy, TransformersModel
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import import_utils

from ..residual.arch import Arch
from .discovery import discover
from .errors import ArchitectureError, ModelError, reason


@dataclass
class Record:
    """What is known about a loaded model."""

    found: Arch  # once measured, without the shortcuts that do not work
    checked: dict | None = None  # what check_model returns
    state: list | None = None  # `state_of` the model, when it was checked
    running: dict | None = None  # the device and dtype of its last run
    remote: bool | str = False  # the server that it was loaded for
    order: list[int] | None = None  # the blocks that `reorder_blocks` left, by their numbers in the original

    def __str__(self) -> str:
        """A line for each fact and error; the parts of equal blocks are counted."""
        kinds = Counter(map(str, self.found.parts or ()))
        parts = "; ".join(f"{kind} (blocks: {n})" for kind, n in kinds.items())
        facts = vars(self.found) | {"parts": parts} | (self.checked or {})
        return "\n".join(f"{name}: {value}" for name, value in facts.items() if value not in (None, "", ()))


# What transformers computes with its own code. It downloads and runs others, if the package kernels is installed.
_OWN_CODE = {
    "attn_implementation": ("sdpa", "eager", "flex_attention"),
    "experts_implementation": ("grouped_mm", "batched_mm", "eager"),
}
_ASKED = ("output_router_logits", "output_hidden_states", "output_attentions")  # what a config may request
RECORDS = weakref.WeakKeyDictionary()  # nnsight model -> Record


def known(llm: TransformersModel) -> Record:
    """The record of a model; ArchitectureError if load_model did not make one."""
    if isinstance(llm, TransformersModel):
        if llm in RECORDS:
            return RECORDS[llm]
        problem = "this model is a copy, or was not loaded by dl.load_model"
        raise ArchitectureError(f"{problem}; use dl.load_model(llm._module, llm.tokenizer)")
    if isinstance(llm, str):
        raise ArchitectureError(f"{llm!r} is a name; pass the model itself, dl.load_model({llm!r})")
    remedy = "use dl.load_model(model, tokenizer)"
    if isinstance(getattr(llm, "model", None), TransformersModel):  # of a Pruned
        remedy = "pass its .model, or save it with its .save(folder)"
    raise ArchitectureError(f"a {type(llm).__name__} is not a model from dl.load_model; {remedy}")


def read_config(source: str, revision: str | None = None) -> PreTrainedConfig:
    """The config of a folder or Hub id; ModelError if it names attention or experts from outside transformers."""
    config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    for part in _with_parts(config):
        for setting, own in _OWN_CODE.items():
            asked = getattr(part, f"_{setting}", None)
            version = re.fullmatch(r"flash_attention_(\d)", str(asked))
            installed = version and getattr(import_utils, f"is_flash_attn_{version[1]}_available", lambda: False)()
            if asked is not None and asked not in own and not installed:
                raise ModelError(
                    f'{source} asks for {setting} "{asked}", which is not part of transformers and is not run; set '
                    f'"{setting}": "{own[0]}" in its config.json'
                )
    return config


def _with_parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for name in config.sub_configs:
        if isinstance(part := getattr(config, name, None), PreTrainedConfig):
            yield from _with_parts(part)


def auto_class(config: PreTrainedConfig) -> type:
    """The Auto class of transformers for a config of a language model; ArchitectureError if there is none."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise ArchitectureError(f"{kind} is an encoder-decoder; use a decoder-only language model")
    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText):
        if type(config) in auto._model_mapping:
            return auto
    raise ArchitectureError(f"{kind} is not a causal language model; use a decoder-only one")


def architecture(config: PreTrainedConfig, module: PreTrainedModel | None = None) -> Arch:
    """The architecture of the loaded `module`, or of a model of its config if some weights are in other processes.

    Raises ArchitectureError with the reason if it cannot be read.
    """
    build = auto_class(config).from_config if module is None else type(module)._from_config
    sharded = getattr(config, "distributed_config", None) is not None
    try:
        if module is not None and not sharded and not any(weight.is_meta for weight in module.parameters()):
            return discover(module, nullcontext())
        return discover(without_weights(config, build), FakeTensorMode(allow_non_fake_inputs=True))
    except (DataDependentOutputException, DynamicOutputShapeException):
        problem = "its code needs the values of its weights; load it on this machine (remote=False)"
    except ArchitectureError as error:
        problem = f"{error}{_of_other_depth(config, module)}"
    except Exception as error:  # noqa: BLE001 (whatever a model raises that does not run)
        problem = f"it does not run ({reason(error)})"
        if "nference tensor" in problem:
            problem = "its weights were made in torch.inference_mode(); build and load the model outside it"
        elif "FlexAttention" in problem:
            problem += '; load it with attn_implementation="sdpa"'
        elif "dtype" in problem:
            problem += "; convert all weights to one dtype: model.to(torch.float32)"
        else:
            other = "; call the model itself on token ids to see where it fails"
            if getattr(config, "quantization_config", None) is not None:
                other = "; if its weights are not quantised, delete quantization_config from its config"
            problem += _of_other_depth(config, module) or other
    raise ArchitectureError(f"{config.model_type}: {problem}{of_hooks(module)}")


def _of_other_depth(config, model):
    """A remark on a model that has no list of as many modules, or kinds of layers, as its config says; else ""."""
    n_layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    kinds = getattr(config.get_text_config(), "layer_types", None)
    lengths = [] if model is None else [len(part) for part in model.modules() if isinstance(part, nn.ModuleList)]
    if n_layers is None or not lengths:
        return ""
    if n_layers not in lengths:
        return f"; its config says {n_layers} layers, and it has {max(lengths)}: correct config.num_hidden_layers"
    if kinds and len(kinds) != n_layers:
        return f"; its config says {n_layers} layers, and layer_types has {len(kinds)}: correct config.layer_types"
    return ""


def of_hooks(model: PreTrainedModel | None) -> str:
    """Advice for a model whose forward hooks hide a contribution; "" without hooks."""
    modules = {} if model is None else dict(model.named_modules())
    hooked = [path or "the model" for path, part in modules.items() if part._forward_hooks or part._forward_pre_hooks]
    if not hooked:
        return ""
    return (
        f"; the change by the hook of {hooked[0]} is not read: change a module instead, such as block.mlp = "
        "nn.Sequential(block.mlp, AddVector(vector)), and load the model again"
    )


def without_weights(config: PreTrainedConfig, build: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """A model of this config on the meta device, in its published size."""
    config = deepcopy(config)
    for part in (config, config.get_text_config()):
        part._experts_implementation = "batched_mm"  # the one that does not read values
    with torch.device("meta"):
        return build(config).eval()


def aliases(found: Arch) -> dict[str, str]:
    """nnsight's `rename` dictionary that gives a model the common names."""
    names = {found.blocks: "blocks"} | dict(zip(found.tail, found.tail_names, strict=True))
    return {_spelled(path): alias for path, alias in names.items() if path != alias}


def _spelled(path):
    """A module's path as nnsight writes it; a name such as "output" is reserved there."""
    taken = {name for name in path.split(".") if isdatadescriptor(getattr(Envoy, name, None))}
    return ".".join(Envoy.OVERLOAD_PREFIX + name if name in taken else name for name in path.split("."))


def describe(llm: TransformersModel) -> Arch:
    """The architecture of `llm`, with what its config and its weights say."""
    config = llm.config.get_text_config()
    return known(llm).found.but(
        remembers="dynamic" in _rope_types(config),
        head_dtype=_head_dtype(llm),
        asks=tuple(name for name in _ASKED if getattr(config, name, False)),
    )


def _head_dtype(llm):
    """The unembedding's dtype, if its weights are local and not quantised."""
    head = llm._module.get_output_embeddings() if llm.dispatched else None
    weight = getattr(head, "weight", None)
    return weight.dtype if weight is not None and weight.is_floating_point() and weight.element_size() > 1 else None


def remark(llm: TransformersModel) -> str:
    """A note for results about blocks without attention or MLP, and about unknown a and m; else ""."""
    found = known(llm).found
    if found.parts is None:
        return f"read block by block, a and m are missing: {found.missing}"
    n_alone = sum(not all(parts.values()) for parts in found.parts)
    return f"one mixer only (a = 0 or m = 0) in {n_alone} of {len(found.parts)} blocks" if n_alone else ""


def _rope_types(config):
    """The kinds of rotary frequencies; each kind of layer may have its own."""
    rope = getattr(config, "rope_parameters", None) or {}
    return {kind.get("rope_type") for kind in (rope, *rope.values()) if isinstance(kind, dict)}
