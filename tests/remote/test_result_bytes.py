"""A result's bytes are read as tensors and plain values or refused, whatever a server sends: nothing runs, no file is
written, no attribute changes, and what asks for more memory than there is takes none."""

import codecs
import io
import itertools
import os
import pickle
import pickletools
import random
import resource
import struct
import sys
import zipfile
from collections import OrderedDict

import pytest
import torch
import zstandard

from depth_lib import remote
from depth_lib.remote import plain as reading

pytestmark = pytest.mark.filterwarnings("ignore:Duplicate name")


def legitimate():
    """One of each thing that results have: views, offsets, shared and empty storages, all kinds of numbers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 4, 5, generator=generator)
    return {
        "model": {"dtype": "bfloat16", "quantized": False, "attention": None, "torch": "2.13.0+cpu"},
        "results": {
            "result": OrderedDict(
                {
                    "x": x,
                    "view": x.mT[1:, ::2],
                    "row": x[1, 2],
                    "empty": x[:0],
                    "scalar": x[0, 0, 0],
                    "repeated": x[:1, :1, :1].expand(2, 3, 4),
                }
            ),
            "dtypes": [
                x.to(dtype)
                for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)
            ],
            "numbers": [(1, -3, 255, 65_536, 2**40, -(2**70), 2.5, True, None), (), [], {}, {3: "three", (1, 2): "é"}],
            "kinds": [torch.float32, torch.bfloat16, x.shape],
            "many": [str(i) for i in range(300)],
        },
    }


def archive(value, protocol=2):
    buffer = io.BytesIO()
    torch.save({"result": value}, buffer, pickle_protocol=protocol)
    return buffer.getvalue()


def compressed(data):
    return zstandard.ZstdCompressor(level=3).compress(data)


def rezipped(data, edit, method=zipfile.ZIP_STORED):
    """An archive of the same records after edit(records), each with the right size and CRC."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        records = {name: old.read(name) for name in old.namelist()}
    edit(records)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as new:
        for name, content in records.items():
            new.writestr(name, content)
    return buffer.getvalue()


def with_pickle(pickled):
    """An archive whose data.pkl are these bytes, with the storages of a legitimate one."""
    return compressed(rezipped(archive(legitimate()), lambda records: records.update({"archive/data.pkl": pickled})))


def equal(found, value):
    if type(found) is not type(value):
        return False
    if isinstance(value, torch.Tensor):
        return found.dtype == value.dtype and found.shape == value.shape and torch.equal(found, value)
    if isinstance(value, dict):
        return list(found) == list(value) and all(equal(found[key], value[key]) for key in value)
    if isinstance(value, list):
        return len(found) == len(value) and all(map(equal, found, value))
    return found == value


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_all_that_results_have_is_read_as_it_was(protocol):
    value = legitimate()
    found = reading.plain(compressed(archive(value, protocol)))
    assert equal(found, value)
    result = found["results"]["result"]
    assert result["view"].stride() == value["results"]["result"]["view"].stride()
    assert result["x"].untyped_storage().data_ptr() == result["row"].untyped_storage().data_ptr()


class Code:
    """What, unpickled by anybody who trusts it, creates a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_code_in_a_result_is_never_run(tmp_path, protocol):
    code = Code(tmp_path / "x")
    for value in (code, {"deeper": [torch.ones(2), code]}, torch.nn.Linear(2, 2), torch.storage._load_from_bytes):
        with pytest.raises(remote.ResultRefused, match="may run code"):
            reading.plain(compressed(archive(value, protocol)))
    assert not list(tmp_path.iterdir())


def test_no_reader_of_torch_is_asked(monkeypatch):
    """torch.load hands what looks like TorchScript to torch.jit, which runs it; and where one reader looks whether it
    does and another reads it, an archive can be made that they read differently."""
    content = compressed(archive(legitimate()))
    for owner, name in ((torch, "load"), (torch.jit, "load"), (torch._C, "PyTorchFileReader")):
        monkeypatch.setattr(owner, name, None)
    assert equal(reading.plain(content), legitimate())


# Pickles


# those that set attributes, make objects or call back, and some that are only needless
OTHERS = "BUILD INST OBJ NEWOBJ NEWOBJ_EX EXT1 PERSID NEXT_BUFFER BYTEARRAY8 DUP STRING BINBYTES FROZENSET".split()


@pytest.mark.parametrize("name", OTHERS)
def test_an_opcode_that_no_tensor_needs_is_refused_by_name(name):
    (opcode,) = [opcode for opcode in pickletools.opcodes if opcode.name == name]
    argument = {"INST": b"os\nmkdir\n", "PERSID": b"a\n", "STRING": b"'a'\n"}.get(name, bytes(9))
    with pytest.raises(remote.ResultRefused, match=f"pickle opcode {name}, "):
        reading.plain(with_pickle(b"\x80\x04(" + opcode.code.encode("latin-1") + argument + b"."))


# Memory


@pytest.fixture
def little_memory():
    """This process may take 600 MB more than it has."""
    pages = int(open("/proc/self/statm").read().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 600_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def bomb_of_zstd(announced):
    """2 GB of zeros in few bytes, under a header that announces another size."""
    header = struct.pack("<LBQ", 0xFD2FB528, 0b11100000, announced)  # one segment, whose size has 8 bytes
    zeros = (131_072 << 3 | 2).to_bytes(3, "little") + b"\0"  # a block of one byte, repeated
    return header + zeros * 16_000 + b"\1\0\0"


def bomb_of_zip():
    """A compressed record of 700 MB of zeros."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
        new.writestr("archive/data.pkl", numbers(175_000_000, (1,), (1,)))
        with new.open("archive/data/0", "w") as record:
            for _ in range(700):
                record.write(bytes(1_000_000))
    return compressed(buffer.getvalue())


def numbers(n_items, shape, stride):
    """A pickle of one tensor of so many numbers."""
    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
        + pickle.dumps(n_items, 2)[2:-1]
        + b"tQ"
    )
    rest = (
        b"K\x00" + pickle.dumps(shape, 2)[2:-1] + pickle.dumps(stride, 2)[2:-1] + b"\x89ccollections\nOrderedDict\n)RtR"
    )
    return b"\x80\x02}X\x06\x00\x00\x00resultctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest + b"s."


BOMBS = {
    "a zstd frame that announces a petabyte": lambda: bomb_of_zstd(10**15),
    "a zstd frame that announces 3 GB": lambda: bomb_of_zstd(3 * 10**9)[:1000],
    "a zstd frame that has more than it announces": lambda: bomb_of_zstd(1000),
    "a compressed record": bomb_of_zip,
    "a storage that has fewer numbers than it says": lambda: with_pickle(numbers(2**40, (2**40,), (1,))),
    "a tensor that is larger than its storage": lambda: with_pickle(numbers(60, (2**20,), (1,))),
    "a value kept under a large number": lambda: with_pickle(b"\x80\x02Nr\xff\xff\xff\x7f."),
    "a text that is not there": lambda: with_pickle(b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"a."),
    "a frame that is not there": lambda: with_pickle(b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"N."),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_result_that_asks_for_more_memory_than_there_is_is_not_read(kind, request):
    content = BOMBS[kind]()
    request.getfixturevalue("little_memory")
    with pytest.raises(remote.ResultRefused):
        reading.plain(content)


# Mutations


def anywhere(draw, content):
    """Bytes of it changed, inserted, removed, or cut off."""
    content = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at, sizes = draw.randrange(len(content)), [0, 1, 4, 64]
        end = draw.choice([*(at + size for size in sizes), *[at] * 4, len(content)])
        flipped = bytes([content[at] ^ 1 << draw.randrange(8)])
        content[at:end] = draw.choice([flipped, draw.randbytes(draw.choice(sizes))])
        content = content or bytearray(1)
    return bytes(content)


def of_records(draw, data):
    """A record dropped, renamed, in the place of another, longer or shorter, with a right CRC."""

    def edit(records):
        name, other = draw.choices(list(records), k=2)
        content = records.pop(name)
        content = draw.choice([content, content + draw.randbytes(9), content[: draw.randrange(1 + len(content))]])
        others = [name, name, other, "archive/constants.pkl", "x/data.pkl", "../../x", "/x", "data.pkl", None]
        records[draw.choice(others)] = content
        records.pop(None, None)

    return rezipped(data, edit, draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))


STEPS = [b"cos\nmkdir\n", b"b", b"}b", b"\x93", b"R", b"cbuiltins\neval\n", b"\x81", b"Q", b"u", b""]


def of_opcodes(draw, data):
    """The pickle's opcodes replaced, repeated or removed, with a right CRC."""

    def edit(records):
        pickled = records["archive/data.pkl"]
        starts = [at for *_, at in pickletools.genops(pickled)] + [len(pickled)]
        steps = [pickled[at:end] for at, end in itertools.pairwise(starts)]
        for _ in range(draw.choice([1, 1, 3])):
            at, other = draw.choices(range(len(steps)), k=2)
            opcode = draw.choice(pickletools.opcodes).code.encode("latin-1")
            others = [opcode + steps[at][1:], draw.choice(STEPS), steps[other], steps[at] + steps[other], b""]
            steps[at] = draw.choice(others)
        records["archive/data.pkl"] = b"".join(steps) or b"."

    return rezipped(data, edit)


# how a result is changed: whether the bytes' CRCs are then wrong, so that a changed number must be noticed
MUTATIONS = [
    (True, lambda draw, data: anywhere(draw, compressed(data))),
    (True, lambda draw, data: compressed(anywhere(draw, data))),
    (False, lambda draw, data: compressed(of_records(draw, data))),
    (False, lambda draw, data: compressed(of_opcodes(draw, data))),
]
WATCHED = []  # what the hook below has seen; None while nobody asks


def _hook(event, arguments):
    if WATCHED and WATCHED[0] is not None:
        writes = event == "open" and (
            set(str(arguments[1])) & set("wax+") or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        )
        if writes or event in (
            "exec",
            "compile",
            "os.system",
            "os.mkdir",
            "subprocess.Popen",
            "socket.connect",
            "import",
        ):
            WATCHED[0].append((event, arguments))


def attributes():
    """What the classes and modules that a result may name have."""
    owners = [torch, torch._utils, torch.storage, torch.Tensor, torch.Size, torch.UntypedStorage, torch.FloatStorage]
    owners += [
        type(torch.FloatStorage),
        OrderedDict,
        sys.modules["depth_lib.remote.plain"],
        reading.plain,
        torch.serialization,
    ]
    named = [(owner, key, id(value)) for owner in owners for key, value in sorted(vars(owner).items())]
    return [entry for entry in named if entry[1] != "__warningregistry__"]  # in which Python notes a module's warnings


def is_plain(value):
    if isinstance(value, dict):
        return all(is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    kinds = int | float | str | bool | torch.Tensor | torch.dtype | torch.device | None
    return isinstance(value, kinds) or value in (OrderedDict, torch.Size) or "_tensor" in repr(value)


def test_mutations_of_a_result_end_in_an_equal_result_or_are_refused(tmp_path, monkeypatch, little_memory):
    monkeypatch.chdir(tmp_path)
    value, draw, ends, n_mutations = legitimate(), random.Random(0), {}, 300
    originals = [archive(value, protocol) for protocol in (2, 4)]
    if not WATCHED:
        WATCHED.append(None)
        sys.addaudithook(_hook)
    for codec in ("raw_unicode_escape", "unicode_escape", "cp437"):  # of texts in old pickles and names in old zips
        codecs.lookup(codec)
    before = attributes()
    for number in range(n_mutations):
        damaging, mutate = MUTATIONS[number % len(MUTATIONS)]
        content = mutate(draw, draw.choice(originals))
        WATCHED[0] = events = []
        try:
            found = reading.plain(content)
            end = "equal" if equal(found, value) else "changed"
        except remote.ResultRefused as error:
            end = "damaged" if error.retry == "ask" else "refused"
        finally:
            WATCHED[0] = None
        assert not events, (number, events)
        assert end != "changed" or (not damaging and is_plain(found)), number
        ends[end] = ends.get(end, 0) + 1
    assert attributes() == before and not list(tmp_path.iterdir())
    assert {"equal", "refused", "damaged"} <= ends.keys() and ends["equal"] < n_mutations / 3, ends
