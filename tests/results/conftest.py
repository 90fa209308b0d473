"""A small result, and the file it is saved in."""

import pytest

from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from tests.report.conftest import own, shared, study  # noqa: F401 (fixtures)
from tests.synthetic import result_of

META = {"model_id": "nobody/toy", "revision": "abc", "n_examples": 10, "settings": {"mode": "future", "seed": 1}}


@pytest.fixture
def lens_path(tmp_path):
    return artifact_path(tmp_path, "gsm8k", "toy-8l", "logit_lens", 10)


@pytest.fixture
def saved(lens_path):
    return save_artifact(lens_path, result_of("logit_lens", 8), META)
