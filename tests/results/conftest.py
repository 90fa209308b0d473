"""A small result, and the file it is saved in."""

import pytest
import torch

from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.shared import share
from depth_lib.results.study import Study
from tests.synthetic import FIVE_PROBES, result_of, write_run

META = {"model_id": "nobody/toy", "revision": "abc", "n_examples": 10, "settings": {"mode": "future", "seed": 1}}


def equal(one, other):
    """Whether two results have the same keys and values."""
    return one.keys() == other.keys() and all(
        torch.equal(one[key], other[key]) if isinstance(one[key], torch.Tensor) else one[key] == other[key]
        for key in one
    )


@pytest.fixture
def lens_path(tmp_path):
    return artifact_path(tmp_path, "gsm8k", "toy-8l", "logit_lens", 10)


@pytest.fixture
def saved(lens_path):
    return save_artifact(lens_path, result_of("logit_lens", 8), META)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of three runs, one of them in the papers' own files."""
    out = tmp_path_factory.mktemp("own")
    write_run(out, "gsm8k", "toy-8l", 4, FIVE_PROBES, n_examples=4)
    write_run(out, "hellaswag", "toy-8l", 4, ["logit_lens"], n_examples=4)
    write_run(out, "gsm8k", "Qwen2.5-7B", 4, ["relative_contribution"], papers_keys_only=True)
    with pytest.warns(UserWarning, match="no meta"):
        return Study(out)


@pytest.fixture(scope="module")
def shared(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs") / "shared"
    share(study, folder, "cc-by-4.0")
    return folder
