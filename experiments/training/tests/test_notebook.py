"""The experiment's notebook, as papermill runs it in a clone."""

import papermill
import pytest

from experiments.training.summary import conclusion, load_measured
from tests.notebooks import ROOT, n_pictures, printed

NOTEBOOK = ROOT / "experiments/training/training.ipynb"


@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True])
def test_the_notebook_concludes_from_the_numbers_it_is_given(tmp_path, swapped):
    measured = load_measured()
    if swapped:
        measured["kind"] = measured.kind.map({"ordinary": "shared", "shared": "ordinary"})
        measured["loss"] = measured.loss.map({"all": "answers", "answers": "all"})
        measured.to_csv(tmp_path / "swapped.csv", index=False)
    given = {"MEASURED": str(tmp_path / "swapped.csv") if swapped else None}
    ran = papermill.execute_notebook(NOTEBOOK, tmp_path / "out.ipynb", given, cwd=NOTEBOOK.parent, progress_bar=False)
    assert n_pictures(ran) == 2 and f"\n{conclusion(measured)}\n" in f"\n{printed(ran)}"
    assert (conclusion(measured) == conclusion(load_measured())) != swapped
