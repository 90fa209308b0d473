"""The origin of a result that was just computed, its `meta`: model, prompts, settings, device, versions."""

import datetime
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec

import torch
from nnsight import TransformersModel

from ..models.bos import begins_with_bos
from ..models.check import model_hash, name_of
from ..models.families import known, remark
from ..remote.server import host_of
from .artifacts import versions
from .provenance import prompts_hash
from .result import Result

_TEXTS = ("prompts", "examples", "baseline_prompts", "choices")
_Arguments = ParamSpec("_Arguments")


def with_origin(probe: Callable[_Arguments, Result]) -> Callable[_Arguments, Result]:
    """The same probe, whose result has its origin as `meta`."""
    signature = inspect.signature(probe)

    @functools.wraps(probe)
    def measured(*args: Any, **named: Any) -> Result:
        args = tuple(list(value) if isinstance(value, Iterator) else value for value in args)  # it is read twice
        named = {name: list(value) if isinstance(value, Iterator) else value for name, value in named.items()}
        result = probe(*args, **named)
        call = signature.bind(*args, **named)
        call.apply_defaults()
        given = call.arguments
        llm, remote = given.pop("llm"), given.pop("remote")
        texts = next((given.pop(name) for name in _TEXTS if name in given), None)
        defaults = {name: argument.default for name, argument in signature.parameters.items()}
        settings = {name: plain(value) for name, value in given.items() if value is not defaults[name]}
        return result | {"meta": origin(llm, remote) | of_texts(texts) | {"settings": settings}}

    return measured


def origin(llm: TransformersModel, remote: bool | str) -> dict:
    """The model as it ran: name, commit, hash, passes, dtype, where, its check, versions and date."""
    record = known(llm)
    found = {
        "model": re.sub(r"(?i)\.gguf$", "", Path(name_of(llm)).name),
        "commit": getattr(llm.config, "_commit_hash", None),
        "model_hash": model_hash(llm),
        "passes": getattr(llm.config.get_text_config(), "layer_passes", [0])[-1] + 1,
    }
    found |= {"dtype": record.running["dtype"] if record.running else None, "where": _where(llm, remote)}
    found |= {"check": record.checked, "runs": record.running, "blocks": remark(llm), "order": record.order}
    found |= {"bos": begins_with_bos(llm.tokenizer), "versions": versions()}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {name: value for name, value in found.items() if value is not None} | {"date": now}


def of_texts(texts: Any) -> dict:
    """The number and a hash of prompts, examples or choices; {} for None."""
    if texts is None:
        return {}
    texts = [texts] if isinstance(texts, str) else list(texts)
    return {"n_prompts": len(texts), "prompts_hash": prompts_hash(texts)}


def _where(llm: TransformersModel, remote: bool | str) -> str:
    if remote not in (False, "local"):
        return f"NDIF {host_of(remote)}"
    device = next(llm._module.parameters()).device
    named = device.type == "cuda" and torch.cuda.is_available()
    here = f"local {torch.cuda.get_device_name(device) if named else device}"
    return f"{here}, as a remote call" if remote else here


def plain(value: Any) -> Any:
    """A setting as JSON: itself if it is short, or a hash of its content."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "tolist"):  # an array, a tensor or a column of a table
        if isinstance(items := value.tolist(), list) and str in map(type, items):
            return plain(items)
        content = torch.as_tensor(value).detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        return f"{value.dtype} {[*value.shape]} {hashlib.sha256(content.tobytes()).hexdigest()[:16]}"
    if isinstance(value, list | tuple):
        return list(value) if len(repr(value)) < 1000 else f"{len(value)} items {prompts_hash([repr(value)])}"
    return value
