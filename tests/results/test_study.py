"""What a study says of results that do not belong together: one line each."""

import pytest
import torch

from depth_lib.results.schemas import ARTIFACTS
from depth_lib.results.study import Study
from tests.synthetic import save, write_run

LENS, NOW = "logit_lens", ARTIFACTS["logit_lens"].version


def problems(folder):
    with pytest.warns(UserWarning):
        return Study(folder).problems


def test_a_result_of_an_earlier_probe_or_of_another_model_is_named(tmp_path):
    path = save(tmp_path, "toy", LENS, model="toy", dataset="gsm8k")
    stored = torch.load(path)
    stored["meta"]["version"] = NOW - 1
    torch.save(stored, path)
    assert problems(tmp_path) == [f"gsm8k × toy: logit_lens is by version {NOW - 1} of the probe, which has {NOW}"]
    save(tmp_path, "toy", LENS, dataset="gsm8k", model="other")
    stored = torch.load(path)
    stored["meta"] |= {"version": NOW, "model": "other", "dataset": "gsm8k"}
    torch.save(stored, path)
    assert problems(tmp_path) == ["gsm8k × toy has the logit_lens of other; move it to the folder other"]


def test_prompts_and_weights_that_differ_in_a_row_are_named(tmp_path):
    save(tmp_path, "small", LENS, commit="a", n_prompts=3, prompts_hash="x")
    save(tmp_path, "large", LENS, commit="b", n_prompts=3, prompts_hash="y")
    save(tmp_path, "large", LENS, dataset="aime24", commit="c")
    assert problems(tmp_path) == [
        "gsm8k has results of different prompts, which are not comparable: "
        "3 prompts, hash y (large), 3 prompts, hash x (small)",
        "large has results of different weights: b (gsm8k), c (aime24)",
    ]


def test_results_without_meta_are_counted_and_of_two_files_of_one_result_one_is_read(tmp_path):
    write_run(tmp_path, "gsm8k", "toy", 4, probes=[LENS], papers_keys_only=True)
    assert problems(tmp_path) == ["1 of 1 results have no meta (not written by depth_lib): settings unknown (gsm8k)"]
    write_run(tmp_path, "gsm8k", "toy", 4, probes=[LENS], n_examples=11, papers_keys_only=True)
    with pytest.warns(UserWarning, match="reading .*logitlens_11exps.pt, not logitlens_10exps.pt beside it; remove"):
        assert [path.name for path in Study(tmp_path).paths.values()] == ["logitlens_11exps.pt"]
