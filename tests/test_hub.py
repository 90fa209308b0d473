"""A Hub that cannot be reached is done in seconds; nobody's settings are changed."""

import os
import socket
import subprocess
import sys

import pytest

CODE = """
import time, sys
import datasets, transformers, depth_lib as dl
from huggingface_hub import constants
calls = dl.load_prompts, dl.load_model
for call, name in zip(calls, ("gsm8k", "Qwen/Qwen2.5-7B")):
    start = time.monotonic()
    try:
        call(name)
    except ValueError as error:
        print(time.monotonic() - start, type(error).__name__, error, sep="|")
assert not constants.HF_HUB_OFFLINE and not datasets.config.HF_HUB_OFFLINE
"""
MESSAGES = (
    ("PromptError", "could not load openai/gsm8k for gsm8k from the Hub: Couldn't reach 'openai/gsm8k'"),
    ("ModelError", "'Qwen/Qwen2.5-7B' is not in the cache, and the Hub cannot be reached; check the network, or use"),
)


SLOW = [pytest.param(url, marks=pytest.mark.slow) for url in ("http://no-such-name.invalid", "http://192.0.2.1")]


@pytest.fixture(params=["http://127.0.0.1:{}", *SLOW])
def endpoint(request):
    """A name that nobody has; an address that nobody may have; and a host that takes a connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        yield request.param.format(silent.getsockname()[1])


def test_without_a_network_each_message_is_one_line_within_five_seconds(endpoint, tmp_path):
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "HF_ENDPOINT": endpoint}
    environment.pop("HF_DATASETS_CACHE", None)
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    lines = [line.split("|") for line in done.stdout.splitlines()]
    assert len(lines) == len(MESSAGES)
    for (seconds, kind, message), (expected, words) in zip(lines, MESSAGES, strict=True):
        assert kind == expected and message.startswith(words) and float(seconds) < 5
