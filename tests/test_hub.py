"""A Hub that cannot be reached is done in seconds; nobody's settings are changed."""

import re
import socket

import datasets
import pytest
from huggingface_hub import constants

import depth_lib as dl
from depth_lib import hub
from depth_lib.data.prompts import PromptError


@pytest.fixture
def silent():
    """A host that takes a connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("endpoint", [None, "http://no-such-name.invalid", "http://192.0.2.1"])
def test_without_a_network_each_message_is_one_line_and_nobodys_settings_are_changed(
    silent, endpoint, tmp_path, monkeypatch
):
    """A host that says nothing; a name that nobody has; an address that nobody may have."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint or silent)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "_PATIENCE", 0.2)
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    hub._is_reachable.cache_clear()
    for call, name, kind, words in (
        (dl.load_prompts, "gsm8k", PromptError, "could not load openai/gsm8k for gsm8k from the Hub: Couldn't reach"),
        (
            dl.load_model,
            "Qwen/Qwen2.5-7B",
            dl.ModelError,
            "'Qwen/Qwen2.5-7B' is neither a folder here nor in the cache, and",
        ),
    ):
        with pytest.raises(kind, match=f"^{re.escape(words)}.*$"):
            call(name)
    assert not constants.HF_HUB_OFFLINE and not datasets.config.HF_HUB_OFFLINE
