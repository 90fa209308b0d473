"""The experiment's notebook, as papermill runs it in a clone."""

import papermill
import pytest

from experiments.training.summary import conclusion, contrasts, load_measured
from tests.notebooks import ROOT, n_pictures, printed

NOTEBOOK = ROOT / "experiments/training/training.ipynb"


@pytest.mark.slow
def test_the_notebook_concludes_from_the_numbers_it_is_given(tmp_path):
    measured = load_measured()
    measured["kind"] = measured.kind.map({"ordinary": "shared", "shared": "ordinary"})
    measured.to_csv(tmp_path / "swapped.csv", index=False)
    given = {"MEASURED": str(tmp_path / "swapped.csv")}
    ran = papermill.execute_notebook(NOTEBOOK, tmp_path / "out.ipynb", given, cwd=NOTEBOOK.parent, progress_bar=False)
    assert n_pictures(ran) == 2
    assert f"{contrasts(measured).round(2).to_string()}\n{conclusion(measured)}\n" in printed(ran)
