"""A folder like a clone, once for each module, and the two ways to run a sweep in it; see study.py."""

from functools import partial

import pytest

from tests.sweep.study import Command, clean, new_study, run_make


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return new_study(tmp_path_factory.mktemp("study"))


@pytest.fixture
def make(study):
    """make(*arguments, **variables) in the study, which is without results again afterwards."""
    yield partial(run_make, study)
    clean(study)


@pytest.fixture
def command(study, monkeypatch, capsys):
    """command(*words) runs depth-lib in the study, which is without results again afterwards."""
    yield Command(study, monkeypatch, capsys)
    clean(study)
