"""Serialises functions as source text, under file names with a hash of it and without paths of this machine.

nnsight on the server caches each trace block by file name and line, as long as the server lives. So a function is
sent as `depth_lib/probes/layer_effects.py#<hash of the source>`: edited source has a new name.
"""

import contextlib
import functools
import hashlib
import io
import json
import linecache
import re
from types import CodeType, FunctionType

import torch
from nnsight.intervention.serialization import DEFAULT_PROTOCOL, CustomCloudPickler
from nnsight.tracing.util import SerializedFrame

from .errors import NotReady

# What a function finds on the server by name, and may use: an older server refuses others. It has the module time as
# well, but where several processes run one request, what depends on a clock differs, and they wait for ever.
ON_SERVER = set("builtins torch numpy math einops collections typing operator pandas enum".split())
_DOCSTRING = re.compile(r'(?<=:\n)([ ]+)"""((?:[^"\\]|"(?!""))*)"""')  # docstrings are a third of the source
_OF_REQUESTS = {"nnsight", "cloudpickle", "copyreg"}  # parts of every request


class Pickler(CustomCloudPickler):
    """nnsight's pickler, with public names in place of this machine's paths.

    `reached` has every function that it wrote, with the values it finds by name and by default. Raises NotReady if
    a source was edited after it was imported: the server would run something different.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=DEFAULT_PROTOCOL)
        self.reached = {}

    def reducer_override(self, value: object) -> object:
        if isinstance(value, SerializedFrame):  # the session's block
            value.f_code.co_filename = "session"
        return super().reducer_override(value)

    def _function_reduce(self, function):
        if function.__module__.split(".")[0] in ON_SERVER | _OF_REQUESTS:
            return super()._function_reduce(function)
        return self._dynamic_function_reduce(function)

    def _dynamic_function_reduce(self, function):
        public = _public_name(function)
        load, (source, name, *defaults, _, _, line), values, *rest = super()._dynamic_function_reduce(function)
        found = json.dumps([values, defaults], sort_keys=True, default=_described)
        self.reached[function] = [public, function.__qualname__, found]
        source = _DOCSTRING.sub(lambda found: f'{found[1]}""' + "\n" * found[2].count("\n"), source)  # lines stay
        return load, (source, name, *defaults, {}, public, line), values, *rest


def pickled(value: object) -> tuple[bytes, dict]:
    """A value as bytes, and the functions that it reaches."""
    buffer = io.BytesIO()
    pickler = Pickler(buffer)
    pickler.dump(value)
    return buffer.getvalue(), pickler.reached


def settings_hash(function: FunctionType, **settings: object) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all that decides a function's result on a server.

    It covers the source of all functions that it reaches, the values in their modules, closures and defaults, and
    the settings. Raises NotReady for a setting that is neither JSON nor a tensor.
    """
    _, reached = pickled(function)
    text = json.dumps([sorted(reached.values()), settings], sort_keys=True, default=_digest)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _described(value):
    """The JSON form of a value that a function finds; functions and modules by name, as their source is hashed too."""
    return getattr(value, "__name__", None) or _digest(value)


def _digest(value):
    """The JSON form of a tensor; NotReady for anything else."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [str(value.dtype), list(value.shape), hashlib.sha256(raw).hexdigest()]
    raise NotReady(
        f"a {type(value).__name__} cannot be sent to the server as an argument; pass numbers, strings, lists or dicts"
    )


def _public_name(function):
    """The name of a function's file on the server."""
    filename = function.__code__.co_filename
    linecache.checkcache(filename)
    source = "".join(linecache.getlines(filename, function.__globals__))
    with contextlib.suppress(SyntaxError):  # it was Python when it was imported
        if function.__code__ in _codes(_compiled(source, filename, "exec", dont_inherit=True)):
            digest = hashlib.sha256(source.encode()).hexdigest()[:16]
            return f"{function.__module__.replace('.', '/')}.py#{digest}"
    raise NotReady(
        f"the source of {function.__qualname__} was edited after it was imported; restart the kernel to send the "
        "current code (a function typed at a prompt has no source: define it in a file or a cell)"
    )


_compiled = functools.cache(compile)


def _codes(code: CodeType) -> set[CodeType]:
    """The code of a function or file, and of all functions inside it."""
    return {code}.union(*(_codes(inner) for inner in code.co_consts if isinstance(inner, CodeType)))
