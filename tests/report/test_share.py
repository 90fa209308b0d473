"""What is handed to others: the same numbers, described for people and programs, and refused if they were changed."""

import hashlib
import json
import subprocess
import warnings
from pathlib import Path

import huggingface_hub
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import depth_lib as dl
from depth_lib.report import share as sharing
from depth_lib.report.share import share
from depth_lib.report.tables import read_tables, write_tables
from depth_lib.results.files import os as storage_os
from depth_lib.results.schemas import ARTIFACTS, ArtifactError, MissingArtifact
from depth_lib.results.study import Study, in_order
from depth_lib.sweep import table
from depth_lib.sweep.__main__ import main
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.table import make_table
from tests.synthetic import write_run

MADE = {"model_id": "Qwen/X", "revision": "abc", "dtype": "bfloat16", "dataset": "gsm8k", "prompts_hash": "0123"}


def _content(path):
    """The bytes of a file; of a workbook, which has the time of its making in it, every sheet's cells."""
    if path.suffix != ".xlsx":
        return path.read_bytes()
    return {sheet.title: list(sheet.iter_rows(values_only=True)) for sheet in openpyxl.load_workbook(path)}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    out = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage_os, "fsync", lambda descriptor: None)
        write_run(out, "gsm8k", "toy-8l", 8, list(ARTIFACTS), n_examples=4)
        write_run(out, "hellaswag", "toy-8l", 8, ["logit_lens"], n_examples=4)
        write_run(out, "gsm8k", "Qwen2.5-7B", 28, ["relative_contribution", "logit_lens"], papers_keys_only=True)
    return out


@pytest.fixture(scope="module")
def study(own):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the papers' results have no meta
        study = Study(own)
        for probe in ARTIFACTS:
            study.of(probe)
    return study


@pytest.fixture(scope="module")
def shared(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs") / "shared"
    share(study, folder)
    return folder


@pytest.fixture
def copy(shared, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in shared.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def tables_of(study, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {path.name: _content(path) for path in write_tables(read_tables(study), folder)}


def rewrite(folder, name, content):
    """A changed file whose hash in SHA256SUMS is changed too."""
    (folder / name).write_bytes(content)
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    ours = f"{hashlib.sha256(content).hexdigest()}  {name}"
    lines = [ours if line.endswith(f"  {name}") else line for line in sums]
    (folder / "SHA256SUMS").write_text("\n".join(lines))


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


@pytest.mark.parametrize("name", ["results.parquet", "runs.parquet", "README.md", "croissant.json"])
def test_a_tampered_file_is_refused_by_its_hash(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=rf"{name} is not the file that was shared: its sha256 is .*; get it again"):
        Study(copy)


def test_another_number_in_a_valid_table_is_refused_by_its_hash_too(copy):
    table = pq.read_table(copy / "results.parquet")
    values = table["value"].to_numpy().copy()
    values[0] += 1
    pq.write_table(table.set_column(7, "value", pa.array(values)), copy / "results.parquet")
    with pytest.raises(ArtifactError, match=r"results.parquet is not the file that was shared"):
        Study(copy)


def test_a_folder_without_its_hashes_is_refused(copy):
    (copy / "SHA256SUMS").unlink()
    with pytest.raises(ArtifactError, match="SHA256SUMS cannot be read: .*; get the whole folder"):
        Study(copy)


def test_a_list_of_hashes_that_is_none_is_refused(copy):
    (copy / "SHA256SUMS").write_text("hello\n\nx y z\n")
    with pytest.raises(ArtifactError, match="results.parquet is not the file that was shared: .* SHA256SUMS has None"):
        Study(copy)


def test_another_list_of_results_whose_hash_fits_is_refused_or_left_out_by_name(copy):
    runs = pq.read_table(copy / "runs.parquet")
    pq.write_table(pa.concat_tables([runs.slice(1), runs.slice(0, 1)]), copy / "changed.parquet")
    rewrite(copy, "runs.parquet", (copy / "changed.parquet").read_bytes())
    with pytest.warns(UserWarning, match="does not fit runs.parquet|holds no"):
        for probe in ARTIFACTS:
            Study(copy).of(probe)


def test_names_that_lead_out_of_a_folder_are_refused(copy):
    runs = pq.read_table(copy / "runs.parquet").to_pandas()
    runs.loc[0, "dataset"] = "../../x"
    runs.to_parquet(copy / "changed.parquet")
    rewrite(copy, "runs.parquet", (copy / "changed.parquet").read_bytes())
    with pytest.raises(ArtifactError, match="is no list of results: .* is no name"):
        Study(copy)


def test_shapes_that_are_not_the_probes_are_left_out_with_a_warning(copy):
    runs = pq.read_table(copy / "runs.parquet").to_pandas()
    place = runs.index[(runs.probe == "logit_lens") & (runs.dataset == "hellaswag")][0]
    arrays = json.loads(runs.loc[place, "arrays"])
    arrays["res_kl_divs"][1] = [4]
    runs.loc[place, "arrays"] = json.dumps(arrays)
    runs.to_parquet(copy / "changed.parquet")
    rewrite(copy, "runs.parquet", (copy / "changed.parquet").read_bytes())
    with pytest.warns(UserWarning, match="holds no logit_lens result"):
        assert ("hellaswag", "toy-8l", "logit_lens") not in Study(copy).of("logit_lens")


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
    assert {run.model for run in both.missing()} == {"toy-4l", "toy-8l"}  # what others lack, they run


@pytest.fixture
def tables_alone(monkeypatch):
    """make table runs no notebook: its cells of tables run here, and it leaves what a notebook leaves."""

    def run(given, **_):
        out = Path(given["OUT"])
        study = Study(out, in_order(given["MODELS"]) or None, given["DATASETS"], given.get("BESIDE", ()))
        write_tables(read_tables(study), out)
        (out / "report.html").touch()
        notebook = {"cells": [], "metadata": {"papermill": {"parameters": given}}}
        (out / "effective_depth.partial.ipynb").write_text(json.dumps(notebook))
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr(table, "execution", lambda notebook, partial, given: given)
    monkeypatch.setattr(table.subprocess, "run", run)


@pytest.mark.filterwarnings("ignore:.*no meta")
def test_make_table_of_what_is_shared_is_that_of_ones_own(own, shared, tmp_path, tables_alone):
    tables = {}
    for name, given in {
        "own": {"out": str(own)},
        "alone": {"out": str(shared)},
        "beside": {"beside": (str(shared),)},
    }.items():
        plan = Plan(**({"out": str(tmp_path)} | given), models=("toy-8l", "Qwen2.5-7B"), datasets=("gsm8k",))
        assert make_table(plan) == 0
        tables[name] = Path(plan.folder, "effective_depth.csv").read_bytes()
    assert tables["own"] == tables["alone"] == tables["beside"]


@pytest.mark.filterwarnings("ignore:.*no meta")
def test_a_table_is_made_again_when_other_folders_are_asked_for_and_not_for_the_same(
    own, shared, tmp_path, tables_alone
):
    def made(*beside):
        assert make_table(Plan(out=str(tmp_path), beside=tuple(map(str, beside)), datasets=("gsm8k",))) == 0
        return (tmp_path / "effective_depth.ipynb").stat().st_mtime_ns

    first = made(shared)
    assert made(shared) == first < made(shared, own)
    assert b"toy-8l (own" in (tmp_path / "effective_depth.csv").read_bytes()


def test_the_notebook_that_make_table_runs_reads_what_is_shared_beside_its_folder(tmp_path):
    write_run(tmp_path / "own", "gsm8k", "toy-8l", 8, ["relative_contribution", "logit_lens"], n_examples=4)
    study = Study(tmp_path / "own")
    share(study, tmp_path / "shared")
    ours = tables_of(study, tmp_path / "ours")
    plan = Plan(out=str(tmp_path / "nothing"), beside=(str(tmp_path / "shared"),), datasets=("gsm8k",))
    assert make_table(plan) == 0
    assert (tmp_path / "nothing/effective_depth.csv").read_bytes() == ours["effective_depth.csv"]


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


def test_a_dataset_of_the_hub_is_fetched_and_read_like_a_folder(shared, monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **how: asked.append((name, how)) or shared)
    study = Study("nothing-here", beside=["someone/depths"])
    assert study.models == ["Qwen2.5-7B", "toy-8l"]
    assert asked[0][0] == "someone/depths" and asked[0][1]["repo_type"] == "dataset"


def test_what_is_neither_a_folder_nor_a_dataset_is_named(monkeypatch):
    with pytest.raises(ArtifactError, match="no-one/nothing is neither a folder here nor a dataset that the Hub gives"):
        Study("nothing-here", beside=["no-one/nothing"])
    with pytest.raises(MissingArtifact):
        Study("nothing-here")


def test_a_lost_disk_is_one_line(study, tmp_path, monkeypatch):
    def full(contents):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharing, "write_together", full)
    with pytest.raises(ArtifactError, match="was not written: No space left on device; free the disk"):
        share(study, tmp_path / "to")
