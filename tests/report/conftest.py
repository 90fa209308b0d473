"""Studies of a few results."""

import pytest

from tests.report.studies import write_depths, write_published


@pytest.fixture(scope="package")
def published(tmp_path_factory):
    """The paper's twelve models on three data sets, and a toy without a cosine depth."""
    folder = write_published(tmp_path_factory.mktemp("paper"))
    write_depths(folder, "gsm8k", "toy-8l", 8, None, 4, 6)
    return folder
