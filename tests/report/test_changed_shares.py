"""What others shared is refused, or left out by name, where it was changed."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depth_lib.results.schemas import ARTIFACTS, ArtifactError
from depth_lib.results.study import Study


@pytest.fixture
def copy(shared, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in shared.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def rewrite(folder, name, content):
    """A changed file whose hash in SHA256SUMS is changed too."""
    (folder / name).write_bytes(content)
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    ours = f"{hashlib.sha256(content).hexdigest()}  {name}"
    lines = [ours if line.endswith(f"  {name}") else line for line in sums]
    (folder / "SHA256SUMS").write_text("\n".join(lines))


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
