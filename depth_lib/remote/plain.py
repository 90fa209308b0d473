"""Reads a result's bytes as tensors and plain values, without running anything from the server."""

import functools
import io
import pickle
import pickletools
import zipfile
from collections import OrderedDict

import torch
import zstandard
from torch.serialization import StorageType

from .errors import ResultRefused, one_line

_OPCODES = set(
    "PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT "
    "BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET "
    "GLOBAL STACK_GLOBAL REDUCE BINPERSID".split()
)


def plain(content: bytes) -> dict:
    """The saved values of a session, from the compressed bytes of torch.save.

    torch.load could run code: it passes an archive that looks like TorchScript to torch.jit, and its
    `weights_only=True` reads pickle protocol 2 only. So Python's zipfile reads the archive and checks each record's
    CRC. A reader that knows tensors and plain containers reads the pickle. Raises ResultRefused, with retry="ask"
    if the bytes are damaged.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(zstandard.decompress(content)))
        records = {name: archive.read(name) for name in archive.namelist()}
    except Exception as error:  # zstandard and zipfile raise many kinds for damaged bytes
        raise ResultRefused(
            f"the job has completed, but its result arrived damaged ({one_line(error)}); run again to fetch it again",
            retry="ask",
        ) from error
    try:
        return _Unpickler(records).load()["result"]
    except ResultRefused:
        raise
    except Exception as error:
        raise ResultRefused(
            f"the result arrived whole, but cannot be read as tensors and plain containers ({one_line(error)}); have "
            "the probe return only those"
        ) from error


class _Unpickler(pickle.Unpickler):
    """Reads an archive's `data.pkl`, with the opcodes that build plain containers and the names below only.

    BUILD is not among them: it sets attributes, also on torch's own classes.
    """

    def __init__(self, records: dict[str, bytes]):
        self._records = records
        self._storage = functools.cache(self._read)  # tensors that share a storage on the server share it here
        for opcode, _, _ in pickletools.genops(records["archive/data.pkl"]):
            if opcode.name not in _OPCODES:
                raise _refused(f"the pickle opcode {opcode.name}")
        super().__init__(io.BytesIO(records["archive/data.pkl"]))

    def find_class(self, module: str, name: str) -> object:
        """The meaning of a name; a kind of storage is its dtype."""
        if (module, name) in _NAMES:
            return _NAMES[module, name]
        if module == "torch" and name.endswith("Storage"):
            return StorageType(name).dtype
        raise _refused(f"{module}.{name}")

    def persistent_load(self, saved_id: tuple) -> torch.Tensor:
        """A storage, as a tensor of one axis."""
        _, dtype, key, *_ = saved_id  # "storage", …, the device it was on, its length
        return self._storage(key, dtype)

    def _read(self, key, dtype):
        byte_order, record = self._records["archive/byteorder"], self._records[f"archive/data/{key}"]
        storage = torch.UntypedStorage.from_buffer(record, byte_order=byte_order.decode(), dtype=dtype)
        return torch.empty(0, dtype=dtype).set_(storage)


def _refused(what):
    return ResultRefused(
        f"the result asks for {what}, which no tensor or plain container needs and which may run code on this "
        "machine; it was not loaded: ask those who run the server what they changed"
    )


def _tensor(storage, offset, shape, stride, requires_grad, hooks):
    """torch._utils._rebuild_tensor_v2, without gradients."""
    return storage.as_strided(shape, stride, offset)


_NAMES = {("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)} | {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
}
