"""Folders of results that figures are drawn of, once, and axes to draw into."""

import itertools

import pytest

from depth_lib.results.schemas import ARTIFACTS
from depth_lib.results.study import Study
from tests.synthetic import DATASETS, PAPER_MODELS, write_run

THREE_PROBES = tuple(ARTIFACTS)[:3]
SIZES = {"toy-4l": 4, "SmolLM2-135M-Instruct": 30, "Llama-3.1-70B-Instruct": 80}


def write_models(out, models, datasets=DATASETS, probes=tuple(ARTIFACTS)):
    """Results of every probe on GSM8K and of the first three on the others."""
    for (model, n_layers), dataset in itertools.product(models.items(), datasets):
        here = [probe for probe in probes if dataset == "gsm8k" or probe in THREE_PROBES]
        write_run(out, dataset, model, n_layers, here, n_examples=3)
    return Study(out)


@pytest.fixture(scope="session")
def sizes(tmp_path_factory):
    """Models of 4, 30 and 80 blocks on three data sets."""
    return write_models(tmp_path_factory.mktemp("sizes"), SIZES)


@pytest.fixture(scope="session")
def paper(tmp_path_factory):
    """The papers' twelve models."""
    probes = (*THREE_PROBES, "integrated_gradients")
    return write_models(tmp_path_factory.mktemp("paper"), PAPER_MODELS, ("gsm8k", "hellaswag"), probes)
