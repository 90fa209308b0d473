"""A result's bytes are read as tensors and plain values or refused, whatever a server sends: nothing runs, no file is
written, no attribute changes, and what asks for more memory than there is takes none."""

import io
import itertools
import os
import pickletools
import random
import resource
import struct
import zipfile
from collections import Counter, OrderedDict

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


BOMBS = {
    "a zstd frame that announces a petabyte": lambda: bomb_of_zstd(10**15),
    "a zstd frame that has more than it announces": lambda: bomb_of_zstd(1000),
    "a value kept under a large number": lambda: with_pickle(b"\x80\x02Nr\xff\xff\xff\x7f."),
    "a text that is not there": lambda: with_pickle(b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"a."),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_result_that_asks_for_more_memory_than_there_is_is_not_read(kind, request):
    content = BOMBS[kind]()
    request.getfixturevalue("little_memory")
    with pytest.raises(remote.ResultRefused):
        reading.plain(content)


def changed_anywhere(draw, content):
    """Some bytes changed, inserted, removed, or cut off."""
    content = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at = draw.randrange(len(content))
        end = draw.choice([at, at, at + 1, at + 4, at + 64, len(content)])
        flipped = bytes([content[at] ^ 1 << draw.randrange(8)])
        content[at:end] = draw.choice([flipped, draw.randbytes(draw.choice([0, 1, 4, 64]))])
        content = content or bytearray(1)
    return bytes(content)


STEPS = [b"cos\nmkdir\n", b"b", b"}b", b"\x93", b"R", b"cbuiltins\neval\n", b"\x81", b"Q", b"u", b""]


def changed_opcodes(draw, data):
    """One or three of the pickle's opcodes replaced, repeated or removed, with a right CRC."""

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

    return compressed(rezipped(data, edit))


def test_a_changed_result_is_refused_or_equal_and_nothing_it_names_is_called(tmp_path, monkeypatch, little_memory):
    monkeypatch.chdir(tmp_path)
    value, draw, ends = legitimate(), random.Random(0), Counter()
    originals = [archive(value, protocol) for protocol in (2, 4)]
    for number in range(300):
        data = draw.choice(originals)
        content = (
            changed_opcodes(draw, data)
            if number % 3 == 0
            else changed_anywhere(draw, compressed(data))
            if number % 3 == 1
            else compressed(changed_anywhere(draw, data))
        )
        try:
            found = reading.plain(content)
            ends["equal" if equal(found, value) else "changed"] += 1
            assert number % 3 == 0 or equal(found, value), "a wrong CRC is not noticed"
        except remote.ResultRefused as error:
            ends["damaged" if error.retry == "ask" else "refused"] += 1
    assert not list(tmp_path.iterdir()) and not hasattr(torch, "mkdir")
    assert ends["refused"] > 50 and ends["damaged"] > 50 and ends["equal"] < 100, ends
