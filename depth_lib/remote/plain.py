"""Reads a result's bytes as tensors and plain values, without running anything that a server sends."""

import functools
import io
import itertools
import math
import pickle
import pickletools
import zipfile
from collections import OrderedDict

import torch
import zstandard
from torch.serialization import StorageType

from .errors import ResultRefused, one_line

_PIECE = 2**20  # bytes
LARGEST = 4_000_000_000  # bytes of one result, compressed or not, and of one tensor in it

_OPCODES = set(
    "PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT "
    "BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET "
    "GLOBAL STACK_GLOBAL REDUCE BINPERSID".split()
)


class BrokenDownload(Exception):
    """The bytes that arrived are not those that were sent; fetching them again may help."""


def plain(content: bytes) -> dict:
    """What a session saved, from the compressed bytes of torch.save, read without running any of it.

    torch.load would run code: it hands an archive that looks like TorchScript to torch.jit, and its
    `weights_only=True` reads pickle protocol 2 only, where servers write 4. So the archive is read by Python's zipfile
    alone, which also checks each record's CRC, and the pickle by a reader that knows tensors and plain containers.
    Raises ResultRefused, which names what else the result asks for, or BrokenDownload for a wrong length or CRC.
    """
    try:
        records = _records(content)
    except (ResultRefused, BrokenDownload, MemoryError):
        raise
    except Exception as error:  # zstandard and zipfile raise a dozen kinds for what is cut or damaged
        raise BrokenDownload(one_line(error)) from error
    try:
        return _Unpickler(records).load()["result"]
    except (ResultRefused, MemoryError):
        raise
    except Exception as error:
        raise ResultRefused(
            f"the result arrived whole, and cannot be read as tensors and plain containers ({one_line(error)}); have "
            "the probe return only those"
        ) from error


def _records(content):
    """The records of the compressed archive, by name."""
    announced = zstandard.get_frame_parameters(content).content_size
    check_size(announced)
    # piece by piece: a damaged header may announce more than there is, or less
    reader = zstandard.ZstdDecompressor().stream_reader(content)
    pieces = iter(functools.partial(reader.read, _PIECE), b"")
    data = b"".join(itertools.islice(pieces, announced // _PIECE + 1))
    if len(data) != announced:
        raise BrokenDownload(f"{len(data)} bytes of {announced}")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        # torch stores records as they are: compressed ones, or several of the same bytes, are there to fill memory
        if sum(record.file_size for record in archive.infolist()) > len(data):
            raise BrokenDownload("its records are larger than the archive")
        return {name: archive.read(name) for name in archive.namelist()}


def check_size(n_bytes: int) -> None:
    """Raise ResultRefused for more bytes than a result can have."""
    if n_bytes > LARGEST:
        raise ResultRefused(
            f"the result has {n_bytes / 1e9:,.0f} GB, more than the {LARGEST / 1e9:.0f} GB that are read; send fewer "
            "prompts in a job (DEPTH_LIB_PROMPTS_PER_JOB)"
        )


class _Unpickler(pickle.Unpickler):
    """Reads an archive's `data.pkl`: no opcode but those that build plain containers, no name but those below.

    BUILD is not among the opcodes: it sets attributes, of torch's own classes too.
    """

    def __init__(self, records: dict[str, bytes]):
        (name,) = (name for name in records if name.endswith("/data.pkl"))
        self._records, self._folder = records, name.removesuffix("data.pkl")
        self._storage = functools.cache(self._read)  # tensors that shared a storage on the server share it here
        pickled = records[name]
        for opcode, argument, _ in pickletools.genops(pickled):
            # the reader's memory grows with the largest number that a value is kept under
            if opcode.name not in _OPCODES or (opcode.name == "LONG_BINPUT" and argument > len(pickled)):
                raise _refused(f"the pickle opcode {opcode.name}")
        super().__init__(io.BytesIO(pickled))

    def find_class(self, module: str, name: str) -> object:
        """What a name stands for; a kind of storage is its dtype."""
        if (module, name) in _NAMES:
            return _NAMES[module, name]
        if module == "torch" and name.endswith("Storage"):
            return StorageType(name).dtype
        raise _refused(f"{module}.{name}")

    def persistent_load(self, saved_id: tuple) -> torch.Tensor:
        """A storage, as a tensor of one axis."""
        _, dtype, key, _, n_items = saved_id  # "storage", …, the device it was on
        storage = self._storage(key, dtype)
        if len(storage) != n_items:
            raise ValueError(f"a storage of {n_items} numbers has {len(storage)}")
        return storage

    def _read(self, key, dtype):
        byte_order, record = (self._records[self._folder + name] for name in ("byteorder", f"data/{key}"))
        storage = torch.UntypedStorage.from_buffer(record, byte_order=byte_order.decode(), dtype=dtype)
        return torch.empty(0, dtype=dtype).set_(storage)


def _refused(what):
    return ResultRefused(
        f"the result asks for {what}, which no tensor or plain container needs and which may run code here; it was not "
        "loaded: ask those who run the server what they changed"
    )


def _tensor(storage, offset, shape, stride, requires_grad, hooks):
    """torch._utils._rebuild_tensor_v2, without gradients."""
    check_size(math.prod(shape) * storage.element_size())  # with a stride of 0, it can exceed the storage
    return storage.as_strided(shape, stride, offset)


_NAMES = {("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)} | {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
}
