"""What the page concludes from the numbers, and where it says that they come from."""

import re
import warnings

from depth_lib.report import page as report
from depth_lib.report.conclusions import conclusions
from depth_lib.report.tables import read_tables
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import curves_with_depths, result_of, write_run


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


def test_results_with_only_the_papers_keys_give_a_report_that_says_so(tmp_path):
    write_run(
        tmp_path, "gsm8k", "Qwen2.5-7B-Instruct", 28, ["relative_contribution", "logit_lens"], papers_keys_only=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = Study(tmp_path)
        page, runs = report.write_report(study, read_tables(study)).read_text(), report.provenance(study)
    assert page.count("no interval</small>") == 3 and "<b>" in page
    assert "not written by depth_lib" in runs["Made from"].item()


def test_provenance_names_probes_that_were_made_otherwise(tmp_path):
    made = {"model_id": "Qwen/X", "revision": "abc", "dtype": "bfloat16", "n_prompts": 10, "source": "hub"}
    for probe, dtype in (("logit_lens", "bfloat16"), ("relative_contribution", "float32")):
        save_artifact(artifact_path(tmp_path, "gsm8k", "X", probe, 10), result_of(probe, 4), made | {"dtype": dtype})
    runs = report.provenance(Study(tmp_path))
    assert len(runs) == 2 and set(runs.Run) == {"X, gsm8k"}
    assert re.search(r"logit_lens: Qwen/X @ abc; bfloat16; 10 prompts \(hub\); .*torch", " ".join(runs["Made from"]))
