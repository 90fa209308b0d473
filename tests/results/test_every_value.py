"""A frame has every value per layer and no other; files of several numbers of examples are read alike everywhere."""

import pytest
import torch

from depth_lib.results.artifacts import load_artifact
from depth_lib.results.asked import RunSpec
from depth_lib.results.schemas import ARTIFACTS, ArtifactError
from depth_lib.results.study import Study, frame_of
from tests.synthetic import result_of, save


def test_values_of_each_number_of_removed_blocks_have_it_in_their_key_and_token_ids_are_left_out():
    removal, answer = result_of("block_removal", 6), result_of("answer_lens", 6)
    values = frame_of("block_removal", removal)
    for size, losses in zip(removal["removal_sizes"].int().tolist(), removal["removal_loss"], strict=True):
        of_size = values[values.key == f"removal_loss:{size}"]
        assert of_size.layer.tolist() == list(range(6)) and of_size.column.isna().all()
        assert torch.allclose(torch.tensor(of_size.value.to_numpy()), losses.double(), equal_nan=True)
    answers = frame_of("answer_lens", answer)
    assert "answer_top" in answer and {*answers.key} == {"answer_log_probs", "answer_ranks", "answer_kl"}
    assert answers.column.max() < answer["answer_log_probs"].shape[1]


def test_a_value_that_is_not_finite_is_named_by_its_own_index(tmp_path):
    removal = result_of("block_removal", 6)
    removal["removal_loss"][0, 3] = torch.nan  # allowed: more blocks than there are
    removal["removal_loss"][1, 2] = torch.inf
    with pytest.raises(ArtifactError, match=r"removal_loss is not finite at index \[1, 2\]"):
        save(tmp_path, "toy-4l", "block_removal", result=removal)


def test_of_several_numbers_of_examples_a_run_judges_the_one_that_a_study_reads(tmp_path):
    for n in (4, 20, 30):
        path = save(tmp_path, "toy-4l", "logit_lens", 4, n=n, model="toy-4l")
    asked = RunSpec({"MODEL": "toy-4l", "DATASET": "gsm8k", "N_EXAMPLES": 10, "OUT": str(tmp_path)})
    with pytest.warns(UserWarning, match="reading .*logitlens_30exps.pt, not logitlens_20exps.pt beside it"):
        study = Study(tmp_path)
    assert asked.path("logit_lens").name == study.paths["gsm8k", "toy-4l", "logit_lens"].name == "logitlens_30exps.pt"
    assert load_artifact(path).keys() >= ARTIFACTS["logit_lens"].required.keys()


def test_a_file_in_the_working_directory_is_no_lens_that_was_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "None").write_text("")
    asked = RunSpec({"MODEL": "toy-4l", "DATASET": "gsm8k", "SOURCE": "embedded", "OUT": str(tmp_path)})
    assert "lens" not in asked.provenance("logit_lens")
