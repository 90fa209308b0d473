"""What NDIF's servers say, older and newer, and what is made of it; the newer words are those of the package."""

import ast
import importlib.util
from pathlib import Path

import pytest

from depth_lib.remote.errors import job_failed

AGAIN, SMALLER, CORRECT = (
    "run again to submit the job anew",
    "make smaller jobs (set DEPTH_LIB_PROMPTS_PER_JOB or",
    "correct that",
)
SAYS = [
    # the file of ndif 0.1.x that says it (None: the server of February 2026), the words, what to do
    ("services/ray/deployments/modeling/base.py", "Your job was cancelled or preempted by the server.", AGAIN),
    ("services/api/queue/replica.py", "Replica was evicted while processing your request. Sorry for ", AGAIN),
    ("services/api/queue/replica.py", "Error submitting request to model deployment. ", AGAIN),
    ("services/api/queue/dispatcher.py", "Critical server error occurred. ", AGAIN),
    ("services/api/queue/processor.py", "Error provisioning model. ", AGAIN),
    ("services/ray/deployments/modeling/base.py", "Your job exceeded the execution timeout of ", SMALLER),
    ("services/api/queue/processor.py", "Could not deploy this model. ", CORRECT),
    (None, "Job took longer than timeout: 60 seconds", SMALLER),
    (None, "The model's process died while the job was running. Please resubmit it.", AGAIN),
    (None, "Traceback (most recent call last):\n  x\ntorch.OutOfMemoryError: CUDA out of memory. Tried", SMALLER),
    (None, "Traceback (most recent call last):\n  x\nKeyError: 3", CORRECT),
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


@pytest.mark.parametrize("file, words, advice", SAYS, ids=lambda value: str(value)[:30])
def test_each_end_of_a_job_has_its_next_step(file, words, advice):
    text = sentence(file, words) if file else words
    error = job_failed(text)
    assert error.retry == ("send" if advice == AGAIN else None) and error.server_text == text
    assert f"the server reports: {text.strip().splitlines()[-1]}; {advice}" in str(error)


def test_a_request_that_could_not_be_read_is_sent_again():
    errors = pytest.importorskip("ndif.common.errors")
    error = job_failed(str(errors.PayloadError(ValueError("truncated"))))
    assert error.retry == "send" and "could not be read (ValueError: truncated)" in str(error)


def test_another_architecture_is_named_with_the_command_that_compares_versions():
    errors = pytest.importorskip("ndif.common.errors")
    error = job_failed(str(errors.ArchitectureMismatchError("model.layers.3.mlp")))
    assert "it has no module at 'model.layers.3.mlp'" in str(error) and "nnsight.ndif.compare()" in str(error)
    assert len(str(error).splitlines()) == 1 and "align any mismatch" in error.server_text
