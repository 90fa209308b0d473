"""Whatever a server sends, over real sockets: what could run code, is damaged or is not finite is refused."""

import functools
import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from depth_lib import remote
from depth_lib.remote import journal, reading, server
from depth_lib.remote.deployment import Call, Deployment
from tests.remote import replay as replaying
from tests.remote.loopback import fixture
from tests.remote.replay import carried, fetched, recorded, saved

hurried, running, replay = fixture.hurried, replaying.running, replaying.replay


class Code:
    """What, unpickled by anybody who trusts it, creates a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("how", ["address", "binary frame", "JSON"])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_code_in_a_result_is_never_run_and_its_bytes_are_kept_and_named(
    replay, hurried, tmp_path, monkeypatch, protocol, new, how
):
    there = tmp_path / "was here"
    carried(replay, saved({"x": torch.ones(3), "bad": Code(there)}, protocol, new), how)
    for _ in range(2):  # and not asked for again
        with pytest.raises(remote.ResultRefused, match="posix.mkdir.*DEPTH_LIB_TRUST_SERVER=1") as refused:
            fetched(replay, hurried)
        assert not there.exists() and replay.submitted == 1
    (kept,) = journal.cache_folder("jobs").glob("*.result")
    assert kept.read_bytes() == replay.result and str(kept) in str(refused.value)
    monkeypatch.setenv("DEPTH_LIB_TRUST_SERVER", "1")
    result, _, _ = fetched(replay, hurried)
    assert torch.equal(result["x"], torch.ones(3)) and there.is_dir() and replay.submitted == 1


ATTACKS = {
    "builtins.eval": lambda path: functools.partial(eval, f"__import__('os').mkdir({str(path)!r})"),
    "builtins.getattr": lambda path: _Reduced(getattr, (dict, "fromkeys")),
    "os.path": lambda path: _Reduced(os.path.join, ("a", "b")),
    "torch.load": lambda path: _Reduced(torch.load, (str(path),)),
    "torch.hub": lambda path: _Reduced(torch.hub.load, ("owner/repository", "model")),
    "numpy": lambda path: _Reduced(np.save, (str(path), np.ones(1))),
}


class _Reduced:
    def __init__(self, function, arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("attack", ATTACKS)
def test_other_ways_to_run_something_are_refused(attack, tmp_path):
    content = saved({"bad": ATTACKS[attack](tmp_path / "x")})
    with pytest.raises(reading.NotPlain):
        reading.load(content)
    assert not list(tmp_path.iterdir())


def test_code_in_bytes_of_a_storage_and_in_a_status_is_refused_too(tmp_path):
    inner = saved(Code(tmp_path / "x"))
    with pytest.raises(reading.NotPlain):
        reading.load(saved(_Reduced(torch.storage._load_from_bytes, (inner,))))
    with pytest.raises(reading.NotPlain):
        reading.load(recorded("COMPLETED", data=Code(tmp_path / "y")).pickle())
    assert not list(tmp_path.iterdir())


def test_a_torchscript_archive_is_refused():
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    assert any(name.endswith("constants.pkl") for name in zipfile.ZipFile(buffer).namelist())
    with pytest.raises(reading.NotPlain, match="TorchScript"):
        reading.load(buffer.getvalue())


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", pickle.dumps({"result": 1}), saved({"x": torch.ones(99)})[:200]]
)
def test_what_is_damaged_is_asked_for_again_and_then_the_job_is_submitted_again(replay, hurried, content):
    replay.result = content
    with pytest.raises(remote.ResultLost, match="could not be fetched"):
        fetched(replay, hurried)
    assert replay.submitted == 2


@pytest.mark.parametrize(
    "over, arguments, value, says",
    [
        (
            "prompts",
            {"prompts": [[1]] * 2},
            [[1.0, 2.0, 3.0], [1.0, float("nan"), 3.0]],
            "prompt 1 of the job, layer 1",
        ),
        ("layers", {"layers": [5, 6]}, [[1.0], [float("inf")]], "layer 6"),
    ],
)
def test_a_result_that_is_not_finite_is_refused_before_it_is_kept(replay, hurried, over, arguments, value, says):
    def a_probe(llm):
        pass

    there = object.__new__(Deployment)
    there.server = server.Server(replay.host)
    call = Call(a_probe, arguments, over)

    def accept(found):
        there._check_finite(call, found["results"]["s"], found["model"])

    model = {"dtype": "float16", "weights": "Linear8bitLt of int8"}
    replay.result = saved({"model": model, "results": {"s": {"fine": torch.ones(2), "key": torch.tensor(value)}}})
    with pytest.raises(remote.ResultNotFinite, match=f"a_probe: key is (nan|inf) at {says}.*float16.*Linear8bitLt"):
        fetched(replay, hurried, accept)
    assert not list(journal.cache_folder("jobs").glob("*.result"))
