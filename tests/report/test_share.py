"""What is handed to others: the same numbers, described for people and programs."""

import hashlib
import json
import subprocess

import huggingface_hub
import pandas as pd
import pytest
import torch
import yaml

import depth_lib as dl
from depth_lib.report import share as sharing
from depth_lib.report.share import share
from depth_lib.results.schemas import ArtifactError
from depth_lib.results.study import Study
from depth_lib.sweep.__main__ import main
from tests.report.studies import tables_of
from tests.synthetic import write_run

MADE = {"model_id": "Qwen/X", "revision": "abc", "dtype": "bfloat16", "dataset": "gsm8k", "prompts_hash": "0123"}


def test_a_shared_folder_read_back_gives_every_table_byte_for_byte(study, shared, tmp_path):
    ours, theirs = tables_of(study, tmp_path / "ours"), tables_of(Study(shared), tmp_path / "theirs")
    assert "effective_depth.csv" in ours and "effective_depth_intervals.csv" in ours and ours == theirs


def test_every_tensor_token_and_meta_comes_back_exactly(study, shared):
    back = Study(shared)
    assert list(back) == list(study) and back.names() == study.names()
    assert any(result["meta"] for result in study.values())
    for place, result in study.items():
        again = back[place]
        assert again.keys() == result.keys()
        for key, value in result.items():
            if isinstance(value, torch.Tensor):
                assert again[key].dtype == value.dtype and torch.equal(again[key], value), (place, key)
            else:
                assert again[key] == value, (place, key)


def test_equal_results_are_shared_as_equal_files(study, shared, tmp_path):
    again = share(Study(shared), tmp_path / "shared")
    assert len(again) == 5
    for path in again:
        assert path.read_bytes() == (shared / path.name).read_bytes(), path.name


def test_the_rows_are_those_of_load_results_and_more(own, shared):
    rows = pd.read_parquet(shared / "results.parquet")
    with pytest.warns(UserWarning, match="no meta"):
        tidy = dl.load_results(own).astype({"key": str, "model": str})
    mine = rows.query("model == 'toy-8l' and dataset == 'gsm8k' and prompt.isna()")
    for key in ("res_kl_divs", "max_future_layer", "erasure_effect"):
        theirs = tidy.query(f"model == 'toy-8l' and dataset == 'gsm8k' and key == '{key}'")
        ours = mine[mine.key == key].sort_values(["layer", "column"])
        assert len(ours) == len(theirs) > 0
        assert (ours.value.to_numpy() == theirs.sort_values(["layer", "column"]).value.to_numpy()).all(), key
    sums = rows.query("key == 'res_kl_divs_sums' and dataset == 'gsm8k' and model == 'toy-8l'")
    assert set(sums.prompt) == set(range(4)) and sums.column.isna().all()


def test_the_card_says_models_prompts_versions_and_licence_in_its_head(tmp_path):
    write_run(tmp_path / "out", "gsm8k", "X", 4, ["logit_lens"])
    study = Study(tmp_path / "out")
    study["gsm8k", "X", "logit_lens"]["meta"] |= MADE | {"model": "X", "n_prompts": 10, "source": "hub"}
    share(study, tmp_path / "shared", "cc0-1.0", "someone/depths")
    text = (tmp_path / "shared/README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert head["license"] == "cc0-1.0" and head["configs"][0]["data_files"] == "results.parquet"
    assert head["depth_lib"]["models"] == {"X": {"model_id": "Qwen/X", "revision": "abc", "dtype": "bfloat16"}}
    assert head["depth_lib"]["prompts"]["gsm8k"] == {"source": "hub", "n_prompts": 10, "prompts_hash": "0123"}
    assert f"torch {torch.__version__}" in head["depth_lib"]["versions"]
    assert "make table BESIDE=someone/depths" in text and "| X @ gsm8k |" in text


def test_every_file_has_its_hash(shared):
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=shared, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.count(": OK") == 4
    described = json.loads((shared / "croissant.json").read_text())
    for file in described["distribution"]:
        assert file["sha256"] == hashlib.sha256((shared / file["name"]).read_bytes()).hexdigest()


def test_croissants_own_reader_finds_nothing_wrong_and_reads_the_records(study, shared, tmp_path, caplog):
    croissant = pytest.importorskip("mlcroissant")
    share(study, tmp_path / "named", repository="someone/depths")
    dataset = croissant.Dataset(jsonld=str(tmp_path / "named/croissant.json"))
    assert not dataset.metadata.issues.errors and not dataset.metadata.issues.warnings and not caplog.records
    rows = pd.read_parquet(shared / "results.parquet")
    records = list(dataset.records("results"))
    assert len(records) == len(rows)
    assert [record["results/value"] for record in records[:50]] == rows.value[:50].tolist()
    described = json.loads((shared / "croissant.json").read_text())
    del described["distribution"]
    (tmp_path / "wrong.json").write_text(json.dumps(described))
    with pytest.raises(croissant.ValidationError):
        croissant.Dataset(jsonld=str(tmp_path / "wrong.json"))


def test_a_folder_of_results_is_not_shared_into(study, own):
    with pytest.raises(ArtifactError, match="holds results of its own; give an empty folder"):
        share(study, own)


class Hub:
    """Stands for the Hub's client; it keeps what is asked of it."""

    asked, name = [], {"name": "someone"}

    def whoami(self):
        if not self.name:
            raise huggingface_hub.errors.LocalTokenNotFoundError("Token is required\nand more")
        return self.name

    def create_repo(self, repository, **how):
        self.asked.append((repository, how))

    def upload_folder(self, **what):
        self.asked.append(what)


def test_a_push_without_a_login_writes_nothing_and_says_what_to_do(own, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "name", None)
    with pytest.raises(SystemExit) as error:
        main(["share", "--out", str(own), "--to", str(tmp_path / "to"), "--push", "someone/depths"])
    said = "no login on the Hub (LocalTokenNotFoundError: Token is required); run: hf auth login"
    assert str(error.value) == said and not (tmp_path / "to").exists()


@pytest.mark.filterwarnings("ignore:.*no meta")
def test_a_push_uploads_the_five_files_with_the_users_own_login(own, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "asked", [])
    assert main(["share", "--out", str(own), "--to", str(tmp_path / "to"), "--push", "someone/depths"]) == 0
    (made, how), sent = Hub.asked
    assert made == sent["repo_id"] == "someone/depths" and how == {"repo_type": "dataset", "exist_ok": True}
    assert set(sent["allow_patterns"]) == {path.name for path in (tmp_path / "to").iterdir()}
    assert capsys.readouterr().out.splitlines()[-1] == "https://huggingface.co/datasets/someone/depths"


def test_a_lost_disk_is_one_line(study, tmp_path, monkeypatch):
    def full(contents):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharing, "write_together", full)
    with pytest.raises(ArtifactError, match="was not written: No space left on device; free the disk"):
        share(study, tmp_path / "to")
