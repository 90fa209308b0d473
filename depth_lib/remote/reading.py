"""What a server sends, read without running any of it, in every form that nnsight's own client takes.

A pickle runs code only through names that its reader looks up. Here a name is looked up in a list of tensors and plain
containers, whatever the pickle's protocol and torch's format; `torch.load(weights_only=True)` takes protocol 2 only.
"""

import collections
import importlib
import io
import os
import pickle
import tarfile
import types
import zipfile

import numpy as np
import torch
import zstandard

TRUST = "DEPTH_LIB_TRUST_SERVER"  # "1": what a server sends may run code here


class NotPlain(Exception):
    """The content asks for something that is neither a tensor nor a plain container; the message names it."""


def load(content: bytes) -> object:
    """The object in torch.save's bytes, compressed or not, as plain containers of tensors on the CPU.

    Raises NotPlain, unless DEPTH_LIB_TRUST_SERVER is 1, and whatever a damaged content leads to.
    """
    content = _decompressed(content)
    if os.environ.get(TRUST) == "1":
        return _plain(torch.load(io.BytesIO(content), map_location="cpu", weights_only=False))
    if zipfile.is_zipfile(io.BytesIO(content)):
        if any(name.endswith("/constants.pkl") for name in zipfile.ZipFile(io.BytesIO(content)).namelist()):
            raise NotPlain("a TorchScript archive")
    elif tarfile.is_tarfile(io.BytesIO(content)):
        raise NotPlain("a tar archive")  # torch's format of 2016, which it unpacks on the disk
    return _plain(torch.load(io.BytesIO(content), map_location="cpu", weights_only=False, pickle_module=_PICKLE))


def _decompressed(content):
    while content.startswith(zstandard.FRAME_HEADER):
        reader = zstandard.ZstdDecompressor().decompressobj()  # takes frames that do not say their size, too
        content = reader.decompress(content)
        if not reader.eof:
            raise ValueError("the compressed content is cut off")
    return content


def _plain(value):
    """The same as plain dicts, lists and tuples of tensors without gradients."""
    if isinstance(value, torch.Tensor):
        return value.detach().as_subclass(torch.Tensor).cpu()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value) if value.dtype.kind in "biufc" else _plain(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | collections.deque):
        return [_plain(entry) for entry in value]
    return tuple(_plain(entry) for entry in value) if type(value) is tuple else value


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        module = {"__builtin__": "builtins"}.get(module, module)  # as protocols before 3 call it
        if (module, name) in _NAMES:
            return _NAMES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype | torch.memory_format):
            return getattr(torch, name)
        raise NotPlain(f"{module}.{name}")


_PICKLE = types.ModuleType("depth_lib.remote.plain_pickle")  # what torch.load takes its unpickler from
_PICKLE.Unpickler = _Unpickler
_PICKLE.load = lambda file, **how: _Unpickler(file, **how).load()

# What a pickle may name, by module; `list` is a defaultdict's.
_PLAIN = {
    "builtins": "set frozenset bytes bytearray complex slice range list dict int float",
    "collections": "OrderedDict defaultdict deque",
    "torch": "Tensor Size device",
    "torch.nn.parameter": "Parameter",
    "torch.serialization": "_get_layout",
    "torch.storage": "UntypedStorage",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter "
    "_rebuild_parameter_with_state _rebuild_sparse_tensor",
    "numpy": "ndarray dtype",
}
_NAMES = {
    (module, name): getattr(importlib.import_module(module), name)
    for module, names in _PLAIN.items()
    for name in names.split()
}
_NAMES |= {
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),  # bytes in protocols before 3
    ("torch.storage", "_load_from_bytes"): load,
    # a tensor of a class of its own comes as a tensor
    ("torch._tensor", "_rebuild_from_type_v2"): lambda rebuild, kind, args, state: rebuild(*args),
    ("nnsight.tracing.hint", "Object"): torch.Tensor,
    ("nnsight.schema.response", "Status"): str,
}
for _module in ("numpy.core", "numpy._core"):  # before and since numpy 2
    _NAMES[f"{_module}.multiarray", "_reconstruct"] = np._core.multiarray._reconstruct
    _NAMES[f"{_module}.multiarray", "scalar"] = np._core.multiarray.scalar
    _NAMES[f"{_module}.numeric", "_frombuffer"] = np._core.numeric._frombuffer
