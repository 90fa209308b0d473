"""load_model: a registry name, a hub id or a local folder -> an nnsight model with the common names."""

import difflib
import importlib.util
import warnings
from pathlib import Path

import torch
from nnsight import TransformersModel
from transformers import AutoConfig, AutoTokenizer

from .architectures import FAMILIES, ArchitectureError, adopt, aliases, candidates, unknown
from .check import check_model
from .embedded import TOYS, toy_path
from .params import find_model, registry_names

QUANTIZATIONS = ("8bit", "4bit")


class ModelError(ValueError):
    """The model could not be found or loaded; the message names it and the next step."""


def load_model(name, remote=False, revision=None, dtype=None, quantization=None, device_map=None):
    """An nnsight model whose blocks, contributions, final norm and unembedding go by common names.

    name: a toy ("toy-8l"), a registry name ("Qwen2.5-7B"), a hub id ("Qwen/Qwen2.5-7B") or a checkpoint folder.
    remote: False loads the weights here; True, "local" for a rehearsal, or a host: with True or a host only the
    config and the tokenizer are fetched, the weights stay on the server. revision: branch, tag or commit on the Hub.
    dtype: a torch dtype or its name (default: float32 for toys, else the checkpoint's own); with quantization ("8bit"
    or "4bit", bitsandbytes) what the model computes in. device_map: as in transformers ("auto" spreads the blocks).

    Returns nnsight's TransformersModel: `llm.model.layers` and `llm.tokenizer` work as usual, and so do `llm.blocks`,
    `llm.blocks[0].attention_contribution`, `llm.blocks[0].mlp_contribution`, `llm.ln_final` and `llm.unembed`.

    Raises ModelError (unknown name, unreachable Hub, unusable quantisation) and ArchitectureError (unknown family).
    """
    source = _resolve(name)
    weights_here = remote is False or remote == "local"
    dtype = _dtype(dtype, default=torch.float32 if name in TOYS else "auto")
    _check_quantization(quantization)
    config, tokenizer = _fetch(name, source, revision)
    options = {"dtype": dtype}
    if quantization and weights_here:
        options = {"dtype": quantization, "compute_dtype": torch.bfloat16 if dtype == "auto" else dtype}
    if device_map and weights_here:
        options["device_map"] = device_map
    row = FAMILIES.get(config.model_type)
    names = {"task": "text-generation", "tokenizer": tokenizer}
    llm = TransformersModel(
        source, revision=revision, rename=aliases(row or {}), dispatch=weights_here, **names, **options
    )
    if weights_here:
        llm._module.eval().requires_grad_(False)  # a backward pass would otherwise fill a second copy of the model
    if row is None:
        return _by_trial(llm, names, remote)
    if weights_here:
        check_model(llm)
    return llm


def _by_trial(llm, names, remote):
    """A model of an unknown family under the first known row on which both identities hold."""
    tried = []
    for like, row in candidates(llm._module):
        if remote is False or remote == "local":
            trial = TransformersModel(llm._module, rename=aliases(row), **names)
        else:
            trial = TransformersModel(llm.repo_id, revision=llm.revision, rename=aliases(row), **names)
        adopt(trial, row)
        try:
            check_model(trial, remote=remote)
        except ArchitectureError:
            tried.append(like)
            continue
        warnings.warn(
            f"model family {llm.config.model_type!r} is not in the table; it is read like {like!r}, on which both "
            "identities hold for this model.", stacklevel=3,
        )  # fmt: skip
        return trial
    raise ArchitectureError(unknown(llm.config, tried))


def _resolve(name):
    """The folder or hub id that a name stands for."""
    if name in TOYS:
        return str(toy_path(name))
    if Path(name).is_dir():
        return str(name)
    registered = find_model(name)
    if registered:
        return registered["MODEL_ID"]
    if "/" in name:
        return name
    names = [*TOYS, *registry_names()]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names
    raise ModelError(
        f"no model is called {name!r}; did you mean {', '.join(near)}? A hub id (owner/name) or a folder works too."
    )


def _dtype(dtype, default):
    if dtype is None:
        return default
    found = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype).removeprefix("torch."), None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ModelError(f"dtype {dtype!r} is not a torch floating-point type; use float32, bfloat16 or float16.")
    return found


def _check_quantization(quantization):
    """Refuse before any download what this machine cannot do."""
    if quantization is None:
        return
    if quantization not in QUANTIZATIONS:
        raise ModelError(f"quantization {quantization!r} is not known; use {' or '.join(QUANTIZATIONS)}, or None.")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(f"{quantization} weights need bitsandbytes; pip install bitsandbytes, or QUANTIZATION: null.")


def _fetch(name, source, revision):
    """Config and tokenizer, or a ModelError that says what to do."""
    try:
        config = AutoConfig.from_pretrained(source, revision=revision)
        return config, AutoTokenizer.from_pretrained(source, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"could not load {name!r} from {source!r}: {reason} "
            "Check the name, the network and `huggingface-cli login`; without a network use a folder or a toy (toy-8l)."
        ) from error
