"""What is handed to others: the same numbers, described; what was changed is refused, or left out by name."""

import pandas as pd
import pyarrow.parquet as pq
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


@pytest.mark.filterwarnings("ignore:.*no meta")
def test_the_command_writes_the_folder_with_the_effective_depths_on_its_card(own, tmp_path):
    assert main(["share", "--out", str(own), "--to", str(tmp_path / "to")]) == 0
    assert FILES == {path.name for path in (tmp_path / "to").iterdir()}
    assert "toy-8l" in (tmp_path / "to/README.md").read_text().split("```")[1]


@pytest.fixture
def copy(shared, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in shared.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("name", ["runs.parquet", "results.parquet"])
def test_a_changed_byte_in_any_column_is_refused_by_its_checksum(copy, name):
    intact, groups = (copy / name).read_bytes(), pq.ParquetFile(copy / name).metadata.row_group(0)
    for column in map(groups.column, range(groups.num_columns)):
        content = bytearray(intact)
        begin = column.dictionary_page_offset or column.data_page_offset
        content[begin + column.total_compressed_size - 2] ^= 1  # of its values
        (copy / name).write_bytes(content)
        with pytest.raises(ArtifactError, match="holds no shared results .*; get it again"):
            Study(copy)


def test_files_that_do_not_belong_together_are_refused(copy):
    runs = pd.read_parquet(copy / "runs.parquet")
    others = runs.copy()
    others.loc[0, "model"] = "another-model"
    others.to_parquet(copy / "runs.parquet")
    with pytest.raises(ArtifactError, match="the rows of .* × another-model × .* are not where runs.parquet says"):
        Study(copy)
    runs[:-1].to_parquet(copy / "runs.parquet")
    with pytest.raises(ArtifactError, match="rows, of which runs.parquet describes"):
        Study(copy)
