"""A run with a lens: a second result of the logit lens, of its own name, whose depths stand beside the first's."""

import torch

import depth_lib as dl
from depth_lib.effective_depth.tables import depths
from depth_lib.results.schemas import label_of
from depth_lib.results.study import Study
from depth_lib.run import Run
from tests.sweep.cells import parameters


def test_a_lens_is_a_second_result_whose_depths_stand_beside_those_of_the_logit_lens(toy, tmp_path):
    texts, path = dl.load_prompts("gsm8k", 3, source="embedded"), tmp_path / "ridge.pt"
    fitted = dl.fit_lens(toy, texts, "ridge", path)
    cell = parameters(tmp_path / "out") | {"DATASET": "gsm8k", "N_EXAMPLES": 3}
    cell |= {"PROBES": ["logit_lens"], "LENS": str(path)}
    run = Run(cell)
    first = run.result("logit_lens")
    assert run.lacking == ["logit_lens@lens"]
    ((_, second),) = run.further()
    assert torch.equal(second["res_kl_divs"], dl.logit_lens(toy, run.prompts, lens=fitted)["res_kl_divs"])
    assert not torch.equal(second["res_kl_divs"], first["res_kl_divs"]) and not Run(cell).lacking

    study = Study(tmp_path / "out")
    rows = depths(study).query("rule == 'kl'").set_index("variant")
    by_ridge = label_of({"lens": path})
    for variant, result in (("", first), (by_ridge, second)):
        own = dl.effective_depths(result).loc["kl"]
        assert rows.loc[variant, ["ed", "low", "high"]].tolist() == own[["ed", "low", "high"]].tolist()
    assert any(line.startswith(f"toy-4l @ gsm8k, kl {by_ridge}: ") for line in run.depths())

    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / path.name)
    assert not Run(cell | {"LENS": str(moved)}).lacking
    dl.fit_lens(toy, texts[:2], "ridge", moved)
    assert Run(cell | {"LENS": str(moved)}).lacking == ["logit_lens@lens"]
