"""What others shared, here or on the Hub, stands beside one's own results in study and table."""

import huggingface_hub
import pytest
import torch

from depth_lib.report.table import read_tables
from depth_lib.results.schemas import ArtifactError, MissingArtifact
from depth_lib.results.shared import share
from depth_lib.results.study import Study
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.table import make_table
from tests.report.studies import tables_of
from tests.synthetic import write_run


def test_results_of_others_stand_beside_ones_own_under_names_of_their_own(own, shared, tmp_path):
    write_run(tmp_path / "mine", "gsm8k", "toy-8l", 8, ["logit_lens"], seed=7)
    write_run(tmp_path / "mine", "gsm8k", "toy-4l", 4, ["logit_lens"])
    both = Study(tmp_path / "mine", beside=[shared])
    assert both.models == ["toy-4l", "Qwen2.5-7B", "toy-8l", "toy-8l (shared)"]
    lens = {model: both["gsm8k", model, "logit_lens"]["res_kl_divs"] for model in ("toy-8l", "toy-8l (shared)")}
    assert not torch.equal(*lens.values())
    assert torch.equal(lens["toy-8l (shared)"], Study(shared)["gsm8k", "toy-8l", "logit_lens"]["res_kl_divs"])
    with pytest.warns(UserWarning, match="no meta"):
        assert len(read_tables(both).effective_depth) == 4
    assert {line.split()[5] for line in both.missing()} == {"toy-4l", "toy-8l"}  # what others lack, they run


@pytest.mark.slow
def test_the_notebook_that_make_table_runs_reads_what_is_shared_beside_its_folder(tmp_path):
    write_run(tmp_path / "own", "gsm8k", "toy-8l", 8, ["relative_contribution", "logit_lens"], n_examples=4)
    study = Study(tmp_path / "own")
    share(study, tmp_path / "shared")
    ours = tables_of(study, tmp_path / "ours")
    plan = Plan(out=str(tmp_path / "nothing"), beside=(str(tmp_path / "shared"),), datasets=("gsm8k",))
    assert make_table(plan) == 0
    assert (tmp_path / "nothing/effective_depth.csv").read_bytes() == ours["effective_depth.csv"]


def test_a_dataset_of_the_hub_is_fetched_and_read_like_a_folder(shared, monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **how: asked.append((name, how)) or shared)
    study = Study("nothing-here", beside=["someone/depths"])
    assert study.models == ["Qwen2.5-7B", "toy-8l"]
    assert asked[0][0] == "someone/depths" and asked[0][1]["repo_type"] == "dataset"


def test_what_is_neither_a_folder_nor_a_dataset_is_named(monkeypatch):
    with pytest.raises(ArtifactError, match="no-one/nothing is neither a folder nor a dataset of the Hub"):
        Study("nothing-here", beside=["no-one/nothing"])
    with pytest.raises(MissingArtifact):
        Study("nothing-here")
