"""What is handed to others: the same numbers, described; what was changed is refused, or left out by name."""

import huggingface_hub
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.results.schemas import ArtifactError
from depth_lib.results.shared import share
from depth_lib.results.study import Study
from depth_lib.sweep.cli import main
from tests.report.studies import tables_of

FILES = {"results.parquet", "runs.parquet", "README.md"}


def test_a_shared_folder_read_back_gives_every_table_byte_for_byte(study, shared, tmp_path):
    ours, theirs = tables_of(study, tmp_path / "ours"), tables_of(Study(shared), tmp_path / "theirs")
    assert "effective_depth.csv" in ours and "effective_depth_intervals.csv" in ours and ours == theirs


def test_every_tensor_token_and_meta_comes_back_exactly(study, shared):
    back = Study(shared)
    assert list(back) == list(study) and not back.paths
    assert any(result["meta"] for result in study.values())
    for place, result in study.items():
        again = back[place]
        assert again.keys() == result.keys()
        for key, value in result.items():
            if isinstance(value, torch.Tensor):
                assert again[key].dtype == value.dtype and torch.equal(again[key], value), (place, key)
            else:
                assert again[key] == value, (place, key)


def test_the_rows_are_those_of_load_results_and_per_prompt(own, shared):
    rows = pd.read_parquet(shared / "results.parquet").query("model == 'toy-8l' and dataset == 'gsm8k'")
    with pytest.warns(UserWarning, match="no meta"):
        tidy = dl.load_results(own).query("model == 'toy-8l' and dataset == 'gsm8k'")
    for key in ("res_kl_divs", "max_future_layer", "erasure_effect"):
        theirs = tidy[tidy.key == key].sort_values(["layer", "column"])
        ours = rows[rows.prompt.isna() & (rows.key == key)].sort_values(["layer", "column"])
        assert len(ours) == len(theirs) > 0 and (ours.value.to_numpy() == theirs.value.to_numpy()).all(), key
    sums = rows.query("key == 'res_kl_divs_sums'")
    assert set(sums.prompt) == set(range(4)) and sums.column.isna().all()


def test_a_folder_of_results_is_not_shared_into_and_a_full_disk_is_one_line(study, own, tmp_path):
    with pytest.raises(ArtifactError, match="holds results of its own; give an empty folder"):
        share(study, own)
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="was not written: .*; free the disk or choose another TO"):
        share(study, tmp_path / "file" / "to")


class Hub:
    """Stands for the Hub's client; it keeps what is asked of it."""

    asked, token = [], "theirs"

    def create_repo(self, repository, **options):
        if not self.token:
            raise huggingface_hub.errors.LocalTokenNotFoundError("Token is required\nand more")
        self.asked.append((repository, options))

    def upload_folder(self, **options):
        self.asked.append(options)


@pytest.mark.filterwarnings("ignore:.*no meta")
def test_a_push_uploads_the_files_with_the_users_own_login_and_without_one_says_what_to_do(
    own, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "asked", [])
    words = ["share", "--out", str(own), "--to", str(tmp_path / "to"), "--push", "someone/depths"]
    assert main(words) == 0
    (made, options), sent = Hub.asked
    assert made == sent["repo_id"] == "someone/depths" and options == {"repo_type": "dataset", "exist_ok": True}
    assert set(sent["allow_patterns"]) == {path.name for path in (tmp_path / "to").iterdir()} == FILES
    assert capsys.readouterr().out.splitlines()[-1] == "https://huggingface.co/datasets/someone/depths"
    assert "toy-8l" in (tmp_path / "to/README.md").read_text().split("```")[1]  # the effective depths
    monkeypatch.setattr(Hub, "token", None)
    with pytest.raises(SystemExit, match=r"\(LocalTokenNotFoundError: Token is required\); log in with hf auth login"):
        main(words)


@pytest.fixture
def copy(shared, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in shared.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize(("name", "part"), [("runs.parquet", 2), ("results.parquet", 3)])
def test_a_changed_file_is_refused_by_its_checksum(copy, name, part):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // part] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ArtifactError, match="holds no shared results .*; get it again"):
        Study(copy)
