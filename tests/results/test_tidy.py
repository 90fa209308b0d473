"""Every result as one tidy frame."""

import numpy as np
import pytest
import torch

import depth_lib as dl
from depth_lib.results.schemas import MissingArtifact, artifact_path
from tests.synthetic import write_run


def test_load_results_is_tidy_and_holds_every_value_once(tmp_path):
    folder = tmp_path
    write_run(folder, "gsm8k", "toy-8l", 8, n_examples=4)
    write_run(folder, "hellaswag", "toy-8l", 8, ["logit_lens"], n_examples=4)
    tidy = dl.load_results(folder)
    assert list(tidy.columns) == ["model", "dataset", "probe", "layer", "key", "value", "column"]
    assert not tidy.duplicated(["model", "dataset", "probe", "key", "layer", "column"]).any()
    lens = torch.load(artifact_path(folder, "gsm8k", "toy-8l", "logit_lens", 4), weights_only=True)
    mine = tidy.query("model == 'toy-8l' and dataset == 'gsm8k'")
    curve = mine[mine.key == "res_kl_divs"].sort_values("layer")
    np.testing.assert_allclose(curve.value, lens["res_kl_divs"], rtol=1e-6)
    assert curve.column.isna().all() and set(curve.probe) == {"logit_lens"}
    effects = torch.load(artifact_path(folder, "gsm8k", "toy-8l", "layer_effects", 4), weights_only=True)
    grid = mine[mine.key == "max_future_layer"].pivot(index="layer", columns="column", values="value")
    np.testing.assert_allclose(grid, effects["max_future_layer"], rtol=1e-6)
    assert set(mine[mine.key == "erasure_effect"].layer) == set(range(9))
    assert not tidy.key.str.contains("sums|prompt|n_tokens").any()


def test_load_results_reads_the_papers_files_and_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(MissingArtifact, match="run: .*depth-lib sweep"):
        dl.load_results(tmp_path)
    with pytest.raises(MissingArtifact, match="nowhere; run: .* or give the folder of a study"):
        dl.load_results("nowhere")
    write_run(tmp_path, "gsm8k", "Qwen2.5-7B", 28, ["logit_lens"], papers_keys_only=True)
    with pytest.warns(UserWarning, match="no meta"):
        assert len(dl.load_results(tmp_path)) == 2 * 28
