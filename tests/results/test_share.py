"""What is handed to others: the same results, one table of all numbers, and a card that describes them."""

import re
from pathlib import Path

import pandas as pd
import pytest

import depth_lib as dl
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import ArtifactError
from depth_lib.results.shared import share
from depth_lib.results.study import Study
from depth_lib.sweep.cli import main
from tests.report.studies import tables_of
from tests.synthetic import result_of


@pytest.mark.filterwarnings("ignore:.*no meta")
def test_a_shared_folder_gives_every_table_byte_for_byte(study, shared, tmp_path):
    back = Study(shared)
    assert [path.relative_to(shared) for path in back.paths.values()] == [
        path.relative_to(study.folder) for path in study.paths.values()
    ]
    ours, theirs = tables_of(study, tmp_path / "ours"), tables_of(back, tmp_path / "theirs")
    assert "effective_depth.csv" in ours and "effective_depth_intervals.csv" in ours and ours == theirs
    assert {path.name for path in shared.rglob("*.txt")} == {path.name for path in study.folder.rglob("*.txt")}


@pytest.mark.filterwarnings("ignore:.*no meta")
def test_the_parquet_table_is_what_load_results_returns(study, shared):
    pd.testing.assert_frame_equal(pd.read_parquet(shared / "results.parquet"), dl.load_results(study.folder))


def test_shared_again_the_files_are_equal_and_other_results_are_not_mixed_in(study, shared, tmp_path):
    before = {path: path.read_bytes() for path in shared.rglob("*") if path.is_file()}
    share(study, shared, "cc-by-4.0")
    assert {path: path.read_bytes() for path in shared.rglob("*") if path.is_file()} == before
    (other := shared / "gsm8k/other/logitlens_4exps.pt").parent.mkdir()
    other.touch()
    for folder in (study.folder, shared):
        with pytest.raises(ArtifactError, match="has results of its own; give an empty folder"):
            share(study, folder, "cc-by-4.0")
    other.unlink()
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="was not written: .*; free the disk or choose another TO"):
        share(study, tmp_path / "file" / "to", "cc-by-4.0")


@pytest.mark.filterwarnings("ignore:.*no meta")
def test_the_command_writes_the_folder_with_the_effective_depths_on_its_card(study, tmp_path):
    asked = ["share", "--out", str(study.folder), "--to", str(tmp_path / "to")]
    with pytest.raises(SystemExit, match="give one: --licence cc-by-4.0"):
        main(asked)
    assert main([*asked, "--licence", "mit"]) == 0
    card = (tmp_path / "to/README.md").read_text()
    assert "toy-8l" in card.split("```")[1] and "license: mit" in card


def test_a_card_has_no_path_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (out := tmp_path / "out" / "gsm8k" / "own").mkdir(parents=True)
    meta = {"model_id": "/home/me/models/own", "source": str(tmp_path / "mine.jsonl"), "n_prompts": 4}
    save_artifact(out / "logitlens_4exps.pt", result_of("logit_lens", 4), meta)
    notes = [f"{out}/a.pt is damaged", f"{Path.home()}/x is not there"]
    _, page = share(Study(tmp_path / "out"), tmp_path / "to", "cc-by-4.0", notes=notes)
    card = page.read_text()
    assert "own; 4 prompts; mine.jsonl" in card and "gsm8k/own/a.pt is damaged" in card
    assert not any(str(folder) in card for folder in (tmp_path, "/home/me", f"{Path.home()}/"))


@pytest.mark.filterwarnings("ignore:.*no logit_lens artifact")
def test_results_that_cannot_be_read_are_not_shared_and_that_is_one_line(tmp_path):
    (path := tmp_path / "gsm8k/toy-4l/logitlens_2exps.pt").parent.mkdir(parents=True)
    path.write_bytes(b"half a file")
    with pytest.raises(SystemExit, match=f"{re.escape(str(tmp_path))} has no readable result"):
        main(["share", "--out", str(tmp_path), "--to", str(tmp_path / "to"), "--licence", "mit"])
