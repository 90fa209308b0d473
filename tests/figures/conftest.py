"""Folders of results that figures are drawn of, once for each module, and axes to draw into."""

import itertools

import matplotlib.pyplot as plt
import pytest

from depth_lib.results import files as storage
from depth_lib.results.schemas import ARTIFACTS
from tests.synthetic import DATASETS, write_run

THREE_PROBES = tuple(ARTIFACTS)[:3]
TOYS = {"toy-4l": 4, "toy-8l": 8, "toy-16l": 16}


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.os, "fsync", lambda descriptor: None)
        yield


def write_models(out, models, datasets=DATASETS, probes=tuple(ARTIFACTS)):
    for (model, n_layers), dataset in itertools.product(models.items(), datasets):
        here = [probe for probe in probes if dataset == "gsm8k" or probe in THREE_PROBES]
        write_run(out, dataset, model, n_layers, here, n_examples=3)
    return out


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("one"), {"toy-8l": 8}, ["gsm8k"])


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("toys"), TOYS)


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)
