"""Whatever a server sends, over real sockets: what nnsight's own client reads is read."""

import collections
import io

import numpy as np
import pytest
import torch
import zstandard
from nnsight.intervention.backends.remote import RemoteBackend
from nnsight.schema.response import Status
from nnsight.tracing.hint import Object

from depth_lib import remote
from depth_lib.remote import server
from tests.remote import replay as replaying
from tests.remote.loopback import fixture
from tests.remote.loopback.fixture import KEY
from tests.remote.replay import JOB, carried, fetched, recorded, saved

hurried, running, replay = fixture.hurried, replaying.running, replaying.replay


def by_nnsight(replay, compressed, frame=None):
    """What nnsight's own client makes of it: polled for, or of a status that came as a binary frame."""
    return read_by_nnsight(replay, compressed, frame).result["result"]


def read_by_nnsight(replay, compressed, frame=None):
    backend = RemoteBackend("", host=replay.host, api_key=KEY, blocking=False, job_id=JOB)
    backend.compress, backend.display.enabled = compressed, False
    backend.result = backend.handle(backend.parse(frame)) if frame else backend()
    return backend


def values():
    t = torch.arange(6.0).reshape(2, 3)
    leaf = t.clone().requires_grad_()
    return collections.OrderedDict(
        float32=t,
        a_view=t.t()[1:],
        half=t.half(),
        bfloat16=t.to(torch.bfloat16),
        float8=t.to(torch.float8_e4m3fn),
        uint16=torch.tensor([1, 65535], dtype=torch.uint16),
        flags=t > 2,
        parameter=torch.nn.Parameter(t),
        requires_grad=leaf,
        of_gradients=leaf * 2,
        saved_by_nnsight=t.as_subclass(Object),
        nested={"list": [t, (1, 2.5, "text", None, True)], "deeper": collections.OrderedDict(x=t)},
        numpy=np.arange(3),
        number=np.float64(0.5),
        size=t.shape,
        dtype=torch.float32,
        a_set={1, 2},
        some_bytes=b"\x00\xff",
        default=collections.defaultdict(list, {"a": [1]}),
    )


def _bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8)


def alike(ours, theirs):
    """Equal, with plain dicts and tensors on our side."""
    if isinstance(theirs, np.ndarray):
        theirs = torch.from_numpy(theirs)
    if isinstance(theirs, torch.Tensor):
        assert type(ours) is torch.Tensor and not ours.requires_grad and ours.device.type == "cpu"
        assert ours.dtype == theirs.dtype and torch.equal(_bits(ours), _bits(theirs))
    elif isinstance(theirs, dict):
        assert type(ours) is dict and ours.keys() == theirs.keys()
        for key in theirs:
            alike(ours[key], theirs[key])
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            alike(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize("how", ["address", "binary frame", "JSON"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_each_form_of_a_result_is_read_as_nnsights_own_client_reads_it(replay, hurried, protocol, new, compressed, how):
    result = values()
    if not new:  # torch itself cannot read these from the legacy format
        del result["float8"], result["uint16"]
    content = saved(result, protocol, new)
    content = zstandard.ZstdCompressor().compress(content) if compressed else content
    frame = carried(replay, content, how)
    ours, entry, _ = fetched(replay, hurried)
    assert entry.state == "done" and replay.submitted == 1
    alike(fetched(replay, hurried)[0], ours)  # from the disk
    assert replay.submitted == 1
    if how == "JSON":  # of which nnsight's client takes an address only
        carried(replay, content, "address")
    alike(ours, by_nnsight(replay, compressed, frame))


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_saved_on_a_gpu_come_to_the_cpu(replay, hurried, monkeypatch, protocol, new):
    with monkeypatch.context() as patch:  # all that a file knows of the device, and what makes reading it fail here
        patch.setattr("torch.serialization.location_tag", lambda storage: "cuda:0")
        x = torch.arange(6.0)
        replay.result = saved({"x": x, "view": x[2:4], "half": x.half(), "leaf": torch.nn.Parameter(x)}, protocol, new)
    assert b"cuda:0" in replay.result
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="on a CUDA device"):
            torch.load(io.BytesIO(replay.result), weights_only=False)
    alike(fetched(replay, hurried)[0], by_nnsight(replay, False))


def test_a_compressed_result_that_does_not_say_its_size_is_read(replay, hurried):
    replay.result = zstandard.ZstdCompressor(write_content_size=False).compress(saved({"x": torch.ones(3)}))
    assert torch.equal(fetched(replay, hurried)[0]["x"], torch.ones(3))


@pytest.mark.parametrize("how", ["JSON with a data address", "address without a host"])
def test_a_result_in_other_addresses_is_read(replay, hurried, how):
    carried(replay, zstandard.ZstdCompressor().compress(saved({"x": torch.ones(3)})), how)
    assert torch.equal(fetched(replay, hurried)[0]["x"], torch.ones(3))


@pytest.mark.parametrize("status", [s.value for s in Status if s.value not in ("COMPLETED", "ERROR")] + ["REBALANCING"])
def test_each_status_but_the_last_ones_means_that_the_job_goes_on(replay, hurried, status):
    """Those of nnsight's schema, and one that it does not know."""
    known = status in Status.__members__
    said = recorded(status if known else "QUEUED", description="your turn").model_dump_json()
    said = said if known else said.replace("QUEUED", status)
    replay.statuses = [said.encode(), recorded("RUNNING"), recorded("RUNNING").pickle(), replay.completed()]
    replay.result = saved({"x": torch.ones(3)})
    result, _, shown = fetched(replay, hurried)
    assert torch.equal(result["x"], torch.ones(3)) and f"{status.lower()} your turn" in shown


def test_an_error_status_ends_the_job_with_the_servers_words(replay, hurried):
    replay.statuses = [recorded("ERROR", description="Traceback\nCUDA out of memory", meta={"peak_memory": 8e10})]
    with pytest.raises(remote.JobFailed, match="CUDA out of memory .peak memory 80.0 GB."):
        fetched(replay, hurried)


@pytest.mark.parametrize("name", ["meta", "meta_data"])
def test_what_the_job_cost_is_kept_and_said(replay, hurried, name):
    cost = {"run_time": 12.34, "peak_memory": 4.2e9}
    replay.statuses = [replay.completed(meta=cost).model_dump_json().replace('"meta"', f'"{name}"').encode()]
    replay.result = saved({"x": torch.ones(3)})
    assert fetched(replay, hurried)[1].cost == cost
    if name == "meta":  # as nnsight's schema calls it; the names in it are the server's own
        assert read_by_nnsight(replay, False).meta == cost
    assert server.cost_in_words(cost) == "run time 12.3 s, peak memory 4.2 GB"


@pytest.mark.parametrize("name", ["NDIF_API_KEY", "NDIF_API", "NDIF_TOKEN"])
def test_the_key_may_have_the_names_of_published_notebooks_which_is_said_once(
    replay, hurried, monkeypatch, capsys, name
):
    server._say_once.cache_clear()
    monkeypatch.delenv("NDIF_API_KEY")
    monkeypatch.setattr("nnsight.CONFIG.API.APIKEY", None)
    monkeypatch.setenv(name, "my-secret")
    replay.result = saved({"x": torch.ones(3)})
    fetched(replay, hurried)
    server.Server(replay.host)
    assert replay.keys == ["my-secret"]
    said = capsys.readouterr().err
    assert said.count(name + ";") == (name != "NDIF_API_KEY") and "my-secret" not in said
