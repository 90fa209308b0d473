"""What NDIF's servers say, older and newer, and what is made of it; the newer words are those of the package."""

import ast
import importlib.util
from pathlib import Path

import pytest

from depth_lib.remote.errors import job_failed, refused

AGAIN, SMALLER = "run again to submit the job anew", "make smaller jobs (set DEPTH_LIB_PROMPTS_PER_JOB or"
SAYS = [
    # the file of ndif 0.1.x that says it (None: the server of February 2026), the words, what it is, what to do
    ("services/ray/deployments/modeling/base.py", "Your job was cancelled or preempted by the server.", True, AGAIN),
    ("services/api/queue/replica.py", "Replica was evicted while processing your request. Sorry for ", True, AGAIN),
    ("services/api/queue/replica.py", "Error submitting request to model deployment. ", True, AGAIN),
    ("services/api/queue/dispatcher.py", "Critical server error occurred. ", True, AGAIN),
    ("services/api/queue/processor.py", "Error provisioning model. ", True, AGAIN),
    ("services/ray/deployments/modeling/base.py", "Your job exceeded the execution timeout of ", False, SMALLER),
    ("services/api/queue/processor.py", "Could not deploy this model. ", False, "correct that"),
    (None, "Job took longer than timeout: 60 seconds", False, SMALLER),
    (None, "The model's process died while the job was running. Please resubmit it.", True, AGAIN),
]


def sentence(file, words):
    """The text that begins with these words in a file of the package, 60 in the place of each value."""
    package = importlib.util.find_spec("ndif") or pytest.skip("ndif is not installed")
    source = (Path(package.submodule_search_locations[0]) / file).read_text()
    for node in ast.walk(ast.parse(source)):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "60" for part in parts)
        if text.startswith(words):
            return text
    pytest.fail(f"{file} does not say {words!r}")


@pytest.mark.parametrize("file, words, interrupted, advice", SAYS, ids=lambda value: str(value)[:30])
def test_each_end_of_a_job_has_its_kind_and_its_next_step(file, words, interrupted, advice):
    text = sentence(file, words) if file else words
    error = job_failed(text)
    assert (error.retry == "send") == interrupted
    assert f"the server reports: {text.strip()}; " in str(error) and advice in str(error)


def test_a_request_that_could_not_be_read_is_sent_again():
    errors = pytest.importorskip("ndif.common.errors")
    error = job_failed(str(errors.PayloadError(ValueError("truncated"))))
    assert error.retry == "send" and "could not be read (ValueError: truncated)" in str(error)


def test_another_architecture_is_named_with_the_command_that_compares_versions():
    errors = pytest.importorskip("ndif.common.errors")
    error = job_failed(str(errors.ArchitectureMismatchError("model.layers.3.mlp")))
    assert "it has no module at 'model.layers.3.mlp'" in str(error) and "nnsight.ndif.compare()" in str(error)
    assert len(str(error).splitlines()) == 1 and "align any mismatch" in error.server_text


@pytest.mark.parametrize(
    "last, advice", [("torch.OutOfMemoryError: CUDA out of memory. Tried", SMALLER), ("KeyError: 3", "correct that")]
)
def test_of_a_traceback_the_last_line_is_shown(last, advice):
    error = job_failed(f"Traceback (most recent call last):\n  File x\n{last}\n")
    assert f"the server reports: {last}; {advice}" in str(error) and "File x" in error.server_text


@pytest.mark.parametrize(
    "code, text, advice",
    [
        (400, "Client python version 3.9 does not match server version: 3.12. Please", "python=3.12"),
        (400, "Client python version 3.10 is below the minimum supported 3.12. Please update python.", "python=3.12"),
        (
            400,
            "Client nnsight version 0.1 is incompatible. The minimum supported version is 0.9.1. Please",
            "nnsight>=0.9.1",
        ),
        (400, "Client nnsight version 0.8 is below the minimum supported 0.9.1. Please `pip", "nnsight>=0.9.1"),
        (400, "Invalid API key format: 'x'. API keys must be in the format", "check NDIF_API_KEY"),
        (401, "Missing or invalid API key. Please visit", "check NDIF_API_KEY"),
        (403, "Invalid API key.", "check NDIF_API_KEY"),
        (422, "[{'type': 'missing'}]", "change what it says"),
    ],
)
def test_each_refusal_has_its_remedy_found_in_any_line(code, text, advice):
    error = refused(code, "Bad request.\n" + text)
    assert f"(HTTP {code}: Bad request.); " in str(error) and advice in str(error) and error.server_text.endswith(text)
