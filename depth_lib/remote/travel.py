"""What travels: functions as source text, under names that hold a hash of it and nothing of this machine.

A server compiles a function that it is sent, and nnsight there caches each trace block by file name and line, for as
long as the server lives: an edited helper would run as it was first seen. So every function that a probe reaches is
copied under the file name `depth_lib/probes/layer_effects.py#<hash of the file's source>`: edited source is another
file, and the path of this machine's home stays here.
"""

import dis
import hashlib
import json
import linecache
from types import CellType, CodeType, FunctionType, ModuleType

import torch

from .errors import NotReady

# What a function may use by name: the server imports these and refuses others. It has the module time as well, but
# where several processes run one request, what depends on a clock differs between them, and they wait for ever.
ON_SERVER = set("builtins torch numpy math einops collections typing operator pandas enum".split())


def travelling(function: FunctionType, copies: dict | None = None) -> FunctionType:
    """A copy of `function` that may be sent, with copies of all functions it reaches; `copies` collects them by id.

    Raises NotReady if a source was edited after it was imported (what would travel is not what runs here), or if the
    server does not have a module that a function uses.
    """
    copies = {} if copies is None else copies
    if id(function) in copies:
        return copies[id(function)]
    for module in _names(function.__code__, "IMPORT_NAME"):
        _check_module(module, function)
    globals_ = {"__name__": function.__module__, "__builtins__": __builtins__}
    cells = tuple(CellType() for _ in function.__closure__ or ())
    code = _renamed(function.__code__, _public_name(function))
    copy = FunctionType(code, globals_, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__, copy.__module__ = function.__kwdefaults__, function.__module__
    copy.__qualname__ = function.__qualname__
    copies[id(function)] = copy
    # A trace block runs from its source as its own code, but its names are in the function's code too.
    for name in sorted(_names(function.__code__, "_GLOBAL")):
        if name in function.__globals__:
            globals_[name] = _value_to_send(function.__globals__[name], function, copies)
    for mine, theirs in zip(cells, function.__closure__ or (), strict=True):
        mine.cell_contents = _value_to_send(theirs.cell_contents, function, copies)
    return copy


def settings_hash(copies: dict, **settings: object) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all that decides what the copies of `travelling` compute.

    That is their files with the hash of the source, the values they find in their module, closure and defaults, and the
    settings. Equal settings, equal hash, in any process.
    """
    functions = []
    for copy in copies.values():
        values = {name: value for name, value in copy.__globals__.items() if not name.startswith("__")}
        closure = [cell.cell_contents for cell in copy.__closure__ or ()]
        found = [values, closure, copy.__defaults__, copy.__kwdefaults__]
        functions.append([copy.__code__.co_filename, copy.__qualname__, json.dumps(found, default=_described)])
    text = json.dumps([sorted(functions), settings], sort_keys=True, default=_described)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _described(value):
    """A value that JSON does not have: a tensor as its digest, a set in order, a function or module by its name."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [str(value.dtype), list(value.shape), hashlib.sha256(raw).hexdigest()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return getattr(value, "__name__", None) or repr(value)


def _value_to_send(value, function, copies):
    if isinstance(value, ModuleType):
        _check_module(value.__name__, function)
    elif isinstance(value, FunctionType) and value.__module__.split(".")[0] not in ON_SERVER:
        return travelling(value, copies)
    return value


def _check_module(module, function):
    if module.split(".")[0] not in ON_SERVER:
        raise NotReady(
            f"{function.__qualname__} uses the module {module}, which has no place on a server; use torch and builtins "
            "only in functions that travel"
        )


def _public_name(function):
    """The name a function's file goes by on the server; its source is put where inspect and nnsight look for it."""
    filename = function.__code__.co_filename
    linecache.checkcache(filename)
    lines = linecache.getlines(filename, function.__globals__)
    source = "".join(lines)
    if function.__code__ not in _codes(compile(source, filename, "exec", dont_inherit=True)):
        raise NotReady(
            f"the source of {function.__qualname__} was edited after it was imported: restart the kernel, so that what "
            "travels is what you see (a function typed at a prompt has none: define it in a file or a cell)"
        )
    path = function.__module__.replace(".", "/")
    public = f"{path}.py#{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    # Without a time of modification, so that nobody looks for the file on the disk and drops the entry.
    linecache.cache[public] = (len(source), None, lines, public)
    return public


def _codes(code):
    """The code of a function or file, and of all functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _renamed(code, filename):
    constants = tuple(_renamed(c, filename) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)


def _names(code, operation):
    """The names that a function reads by operations of this kind of its bytecode, such as imports."""
    return {step.argval for inner in _codes(code) for step in dis.get_instructions(inner) if operation in step.opname}
