"""Checks that the arguments of a public function are of the kinds that its signature names."""

import functools
import inspect
import reprlib
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from .params import ParamsError

# annotation -> the types that it accepts, and their names; other annotations are not checked
_KINDS = {
    bool: (bool, "True or False"),
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    str: (str, "a string"),
    Path: (Path, "a path"),
    dict: (dict, "a dict"),
    Mapping: (Mapping, "a probe's result"),
    type(None): (type(None), "None"),
}
_Function = TypeVar("_Function", bound=Callable)


def with_checked_kinds(function: _Function) -> _Function:
    """The same function, which raises ParamsError for an argument that is not of its annotation's kind.

    While it runs, tensors are made on the CPU, whatever `torch.set_default_device` says.
    """
    signature = inspect.signature(function)
    accepted = {name: _kinds(parameter.annotation) for name, parameter in signature.parameters.items()}

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        for name, value in [*zip(accepted, args, strict=False), *named.items()]:
            if (kinds := accepted.get(name)) and not any(_is(value, kind) for kind in kinds):
                got = "None" if value is None else type(value).__name__
                got = f"{reprlib.repr(value)} ({got})" if isinstance(value, str | Real) else got
                expected = " or ".join(_KINDS[kind][1] for kind in kinds)
                of = function.__qualname__.removesuffix(".__init__")
                raise ParamsError(f"{of}: {name} must be {expected}, got {got}")
        torch: Any = sys.modules.get("torch")
        elsewhere = torch and torch.get_default_device().type != "cpu"
        with torch.device("cpu") if elsewhere else nullcontext():
            return function(*args, **named)

    return cast(Any, call)


def _kinds(annotation: Any) -> tuple[type, ...]:
    """The kinds of an annotation; () if it has others than those of _KINDS."""
    union = get_origin(annotation) in (Union, types.UnionType)
    kinds = get_args(annotation) if union else (annotation,)
    return kinds if all(kind in _KINDS for kind in kinds) else ()


def _is(value: object, kind: type) -> bool:
    """Whether a value is of this kind; True, False and NaN do not count as numbers."""
    odd = isinstance(value, bool) and kind is not bool or kind is float and value != value
    return isinstance(value, _KINDS[kind][0]) and not odd
