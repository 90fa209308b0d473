"""Studies of a few results, and one that is shared; nothing waits for the disk."""

import warnings

import pytest

from depth_lib import files as storage
from depth_lib.results.schemas import ARTIFACTS
from depth_lib.results.shared import share
from depth_lib.results.study import Study
from tests.report.studies import write_depths, write_published
from tests.synthetic import write_run


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="package")
def published(tmp_path_factory):
    """The paper's twelve models on three datasets, and a toy without a cosine depth."""
    folder = write_published(tmp_path_factory.mktemp("paper"))
    write_depths(folder, "gsm8k", "toy-8l", 8, None, 4, 6)
    return folder


@pytest.fixture
def gaps(tmp_path):
    """toy-4l complete on gsm8k; toy-16l without a kl crossing there, and nothing elsewhere."""
    write_depths(tmp_path, "gsm8k", "toy-16l", 16, 9, None, 12)
    write_depths(tmp_path, "gsm8k", "toy-4l", 4, 0, 1, 2)
    return tmp_path


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    out = tmp_path_factory.mktemp("own")
    write_run(out, "gsm8k", "toy-8l", 8, list(ARTIFACTS), n_examples=4)
    write_run(out, "hellaswag", "toy-8l", 8, ["logit_lens"], n_examples=4)
    write_run(out, "gsm8k", "Qwen2.5-7B", 28, ["relative_contribution", "logit_lens"], papers_keys_only=True)
    return out


@pytest.fixture(scope="module")
def study(own):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the papers' results have no meta
        study = Study(own)
        for probe in ARTIFACTS:
            study.of(probe)
    return study


@pytest.fixture(scope="module")
def shared(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs") / "shared"
    share(study, folder, "cc-by-4.0")
    return folder
