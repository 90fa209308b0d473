"""What the remote tests share: the loopback server, the client's model on it, and the local numbers."""

import pytest

import depth_lib as dl
from tests.calls import TEXTS
from tests.remote.loopback import MISSING
from tests.remote.loopback.fixture import hurried, loopback  # noqa: F401 (fixtures)

collect_ignore_glob = ["test_[!n]*.py"] if MISSING else []  # test_ndif.py says so


@pytest.fixture(scope="session")
def llm(loopback):  # noqa: F811
    """The client's model: without weights."""
    return loopback.model("loopback/llama")


@pytest.fixture(scope="session")
def here(loopback):  # noqa: F811
    """The same model on this machine, in the server's dtype."""
    return loopback.here("loopback/llama")


@pytest.fixture(scope="session")
def truth(here):
    return dl.logit_lens(here, TEXTS)
