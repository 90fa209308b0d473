"""load_model: a registry name, a hub id or a local folder -> an nnsight model with the common names."""

import difflib
import logging
import re
import textwrap
import warnings
from pathlib import Path

import torch
from huggingface_hub import constants, errors
from nnsight import TransformersModel
from nnsight.modeling.quantization import resolve_load_kwargs
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import is_bitsandbytes_available

from .architectures import FAMILIES, ArchitectureError, adopt, aliases, candidates, unknown
from .check import check_model
from .embedded import TOYS, toy_path
from .params import find_model, registry_names

QUANTIZATIONS = ("8bit", "4bit")
SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate's ways to spread blocks over devices
_NO_NETWORK = "use a checkpoint's folder or a toy (toy-8l)"


class ModelError(ValueError):
    """The model could not be found or loaded; the message names it and the next step."""


def load_model(name, remote=False, revision=None, dtype=None, quantization=None, device_map=None):
    """An nnsight model whose blocks, contributions, final norm and unembedding go by common names.

    name: a toy ("toy-8l"), a registry name ("Qwen2.5-7B"), a hub id ("Qwen/Qwen2.5-7B") or a checkpoint folder.
    remote: False loads the weights here; True, "local" for a rehearsal, or a host: with True or a host only the
    config and the tokenizer are fetched, the weights stay on the server. revision: branch, tag or commit on the Hub.
    dtype: a torch dtype or its name (default: float32 for toys, else the checkpoint's own); with quantization ("8bit"
    or "4bit" weights, bitsandbytes) what the model computes in, bfloat16 unless given. device_map: as in transformers:
    "auto" spreads the blocks over the devices, "cuda:0" names one, a dict places each module; None is the first GPU, or
    the CPU where there is none.

    Returns nnsight's TransformersModel: `llm.model.layers` and `llm.tokenizer` work as usual, and so do `llm.blocks`,
    `llm.blocks[0].attention_contribution`, `llm.blocks[0].mlp_contribution`, `llm.ln_final` and `llm.unembed`.

    Raises ModelError (unknown name, unreachable Hub, a dtype, quantisation or device that this machine does not have:
    all before any download; unreadable weights) and ArchitectureError (unknown family, or the identities fail).
    """
    name = str(name)
    weights_here = remote is False or remote == "local"
    dtype = _dtype(dtype, default=torch.float32 if name in TOYS else "auto")
    _check_quantization(quantization, weights_here)
    if weights_here:
        _check_devices(device_map)
    source = _resolve(name)
    config, tokenizer = _fetch(name, source, revision)
    options = {"dtype": dtype}
    if quantization:
        options = {"dtype": quantization, "compute_dtype": torch.bfloat16 if dtype == "auto" else dtype}
    if device_map and weights_here:
        options["device_map"] = device_map
    row = FAMILIES.get(config.model_type)
    names = {"revision": revision, "task": "text-generation", "tokenizer": tokenizer}
    try:
        module = _load_weights(source, revision, options) if weights_here else source
        llm = TransformersModel(module, rename=aliases(row or {}), **names, **({} if weights_here else options))
    except ModelError:
        raise
    except Exception as error:  # whatever transformers, safetensors, accelerate or the allocator raise
        raise ModelError(_why(name, source, revision, error)) from error
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
            trial = TransformersModel(llm.repo_id, rename=aliases(row), **names)
        adopt(trial, row)
        try:
            check_model(trial, remote=remote)
        except ArchitectureError:
            tried.append(like)
            continue
        warnings.warn(
            f"model family {llm.config.model_type!r} is not in the table; it is read like {like!r}, on which both "
            "identities hold for this model.",
            stacklevel=3,
        )
        return trial
    raise ArchitectureError(unknown(llm.config, tried))


def _resolve(name):
    """The folder or hub id that a name stands for."""
    if name in TOYS:
        return str(toy_path(name))
    folder = Path(name).expanduser()
    registered = find_model(name)
    # results lie in folders that are named like models, so a folder without a config gives way to the registry
    if name and folder.is_dir() and (registered is None or (folder / "config.json").is_file()):
        if not (folder / "config.json").is_file():
            raise ModelError(f"{name} has no config.json; give a folder that save_pretrained or a download wrote.")
        return str(folder)
    if registered:
        return name if registered["MODEL_ID"] == name else _resolve(registered["MODEL_ID"])
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        return name
    if folder.is_file():
        raise ModelError(f"{name} is a file; give the checkpoint's folder, the one with config.json.")
    if "/" in name or name.startswith("."):
        raise ModelError(f"there is no folder {name!r}; check the path, or use a hub id (owner/name) or a toy.")
    near = difflib.get_close_matches(name, {*TOYS, *registry_names()}, n=3, cutoff=0.4) or TOYS
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


def _check_quantization(quantization, weights_here):
    """Refuse before any download what this machine cannot do, found out on one small layer."""
    if quantization is None:
        return
    if quantization not in QUANTIZATIONS:
        raise ModelError(f"quantization {quantization!r} is not known; use {' or '.join(QUANTIZATIONS)}, or None.")
    if not weights_here:
        raise ModelError(
            f"{quantization} weights were asked of a remote model, but its server decides how weights are held; "
            "use quantization=None (QUANTIZATION: null)."
        )
    if not is_bitsandbytes_available():
        raise ModelError(
            f"{quantization} weights need bitsandbytes, which is missing or too old; "
            "pip install -U bitsandbytes, or quantization=None (QUANTIZATION: null)."
        )
    try:
        _run_quantized_layer(quantization)
    except Exception as error:  # a native library that is missing fails in many ways
        raise ModelError(
            f"{quantization} weights do not work with the installed bitsandbytes on this machine ({_reason(error)}); "
            "use a device that it supports, or quantization=None (QUANTIZATION: null)."
        ) from error


def _run_quantized_layer(quantization):
    import bitsandbytes  # takes seconds

    # It says for every single product that it computes in float16, which is known.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if quantization == "8bit":
        layer = bitsandbytes.nn.Linear8bitLt(64, 64, has_fp16_weights=False)
    else:
        layer = bitsandbytes.nn.Linear4bit(64, 64, quant_type="nf4", compute_dtype=torch.float16)
    with torch.no_grad():
        layer.to(device)(torch.ones(1, 64, dtype=torch.float16, device=device))


def _check_devices(device_map):
    """Refuse before any download a device that this machine does not have."""
    if device_map is None or (isinstance(device_map, str) and device_map in SPREADS):
        return
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count()
    here = ["cpu", *(f"{accelerator.type}:{index}" for index in range(count))] if count else ["cpu"]
    for place in device_map.values() if isinstance(device_map, dict) else [device_map]:
        if place in ("cpu", "disk"):
            continue
        try:
            device = torch.device(place)
            known = device.type == "cpu" or (count and device.type == accelerator.type and (device.index or 0) < count)
        except (RuntimeError, TypeError):  # torch knows no device of that name
            known = False
        if not known:
            raise ModelError(
                f"device_map names {place!r}, which is not here (found: {', '.join(here)}); "
                "use one of those, or one of " + ", ".join(SPREADS) + "."
            )


def _fetch(name, source, revision):
    """Config and tokenizer, or a ModelError that says what to do."""
    # trust_remote_code stays off: the default asks on the terminal, where a notebook or a job would hang
    options = {"revision": revision, "trust_remote_code": False}
    try:
        return AutoConfig.from_pretrained(source, **options), AutoTokenizer.from_pretrained(source, **options)
    except Exception as error:  # a broken tokenizer.json raises a bare Exception
        raise ModelError(_why(name, source, revision, error)) from error


def _load_weights(source, revision, options):
    """The model itself, not through transformers' pipeline: that would answer an error with a retry in float32."""
    options = {"revision": revision, "ignore_mismatched_sizes": True, **resolve_load_kwargs(options)}
    model, report = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **options)
    drawn = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    if drawn:  # at random, by transformers, which says so and goes on
        more = f" and {len(drawn) - 1} more" if len(drawn) > 1 else ""
        raise ModelError(f"{source} has no weights that fit {drawn[0]}{more}; give a whole checkpoint of its config.")
    return model


def _why(name, source, revision, error):
    """One line: which model could not be loaded, why, and the next step that fits."""
    what = repr(name) if name == source else f"{name!r} ({source})"
    chain = [error]
    while chain[-1].__cause__ or chain[-1].__context__:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)

    def caused_by(*kinds):
        return any(isinstance(one, kinds) for one in chain)

    page = f"{constants.ENDPOINT}/{source}"
    if caused_by(errors.GatedRepoError):
        return f"{what} is gated; accept its licence on {page} and log in with `hf auth login`."
    if caused_by(errors.RepositoryNotFoundError):
        return f"the Hub has no {what}, or it is private; check the name, or log in with `hf auth login`."
    if caused_by(errors.RevisionNotFoundError):
        return f"{what} has no revision {revision!r} on the Hub; choose a branch, tag or commit of {page}/tree/main."
    if constants.is_offline_mode() and caused_by(errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        return f"{what} is not in the cache, and HF_HUB_OFFLINE forbids the network; unset it, or {_NO_NETWORK}."
    if caused_by(errors.LocalEntryNotFoundError, ConnectionError):
        return f"{what} is not in the cache, and the Hub cannot be reached; check the network, or {_NO_NETWORK}."
    if caused_by(MemoryError, torch.OutOfMemoryError):
        return f'{what} does not fit into memory; use device_map="auto", quantization="8bit" or "4bit", or remote=True.'
    return (
        f"{what} could not be loaded: {_reason(error)}; "
        "give a whole checkpoint (config, tokenizer and safetensors) of a kind that this transformers knows."
    )


def _reason(error):
    """The first sentence of an error's text: transformers' go on for paragraphs."""
    text = " ".join(str(error).split())
    if not text or isinstance(error, KeyError):
        text = f"{type(error).__name__} {text}".strip()
    return textwrap.shorten(re.split(r"[.:;] (?=[A-Z])", text)[0], 200, placeholder=" …").rstrip(".")
