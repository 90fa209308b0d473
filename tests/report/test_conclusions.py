"""What the page concludes from the numbers."""

from depth_lib.report.conclusions import conclusions
from depth_lib.report.table import read_tables
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import curves_with_depths


def test_the_conclusions_are_those_of_the_numbers(tmp_path):
    for model, n_layers, kl in (("Qwen2.5-1.5B", 4, 1), ("Qwen2.5-7B-Instruct", 8, 1)):
        for dataset in ("hellaswag", "gsm8k"):
            for probe, result in curves_with_depths(n_layers, 1, kl, None).items():
                save_artifact(artifact_path(tmp_path, dataset, model, probe, 10), result, {})
    tables = read_tables(Study(tmp_path))
    said = conclusions(tables.intervals, tables.beside_the_paper)
    assert "25% to 50% (median 38%; 4 of 4 runs) by kl." in said[0] and "overlap" not in said[0]
    assert said[1] == (
        "Size: from 1.5 to 7 billion parameters the mean ratio goes from 0.50 to 0.25 by cosine, 0.50 to 0.25 by kl."
    )
    assert said[2].startswith("Training: from base to instruct the mean ratio goes from 0.50 to 0.25 by cosine")
    assert said[3].startswith("Task: from hellaswag to gsm8k the mean ratio goes from 0.38 to 0.38 by cosine")
    assert said[4] == (
        "Of 12 depths, 0 are known to within a layer, 0 less well, and 12 have no closed interval; "
        "4 have no effective depth."
    )
