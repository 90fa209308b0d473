"""The table: the papers' own numbers come back, and what is missing is said."""

import re
import warnings

import pytest

from depth_lib.effective_depth.published import published_depths
from depth_lib.effective_depth.rules import most_removed
from depth_lib.params import command, in_order
from depth_lib.report.table import summary_lines
from depth_lib.results.schemas import TABLE_PROBES, MissingArtifact
from depth_lib.results.study import Study
from tests.report.studies import table_of
from tests.synthetic import DATASETS, artifact_path, save, write_run


def test_the_published_table_comes_back_number_for_number(published):
    paper = published_depths()
    models = list(paper.model.unique())
    lines = summary_lines(table_of(published, models))
    runs = paper.groupby(["model", "dataset"])
    expected = {f"{m} @ {d}": [f"{row.ed}({row.ratio:.2f})" for row in rows.itertuples()] for (m, d), rows in runs}
    halves = (re.sub(" +", " ", line).split(" : ") for line in lines)
    assert {run: depths.split() for run, depths in halves} == expected and len(lines) == 36
    assert len({line.index(" : ") for line in lines}) == 1
    assert in_order(sorted(models)) == models
    assert in_order(["Llama-3.1-70B", "nameless", "SmolLM2-135M-Instruct", "toy-8l"])[0] == "SmolLM2-135M-Instruct"


def test_missing_results_and_missing_depths_are_missing_values(gaps):
    table = table_of(gaps)
    assert list(table.index) == ["toy-4l", "toy-16l"]
    for value in ("ED", "RATIO"):
        assert list(table.loc["toy-16l", (slice(None), "gsm8k", value)].isna()) == [False, True, False]
    assert table.loc[:, (slice(None), ["hellaswag", "aime24"], slice(None))].isna().all(axis=None)
    assert summary_lines(table)[1] == "toy-4l  @ gsm8k     :  0(0.25)  1(0.50)  2(0.75)"
    assert summary_lines(table)[4] == "toy-16l @ gsm8k     :  9(0.62)        – 12(0.81)"


def test_removal_is_a_column_where_blocks_were_removed_and_the_others_keep_every_value(gaps):
    papers = table_of(gaps)
    write_run(gaps, "sums", "toy-4l", 4, ["block_removal"])
    assert table_of(gaps, datasets=[*DATASETS, "sums"]).equals(papers)  # a dataset that has no column
    write_run(gaps, "gsm8k", "toy-4l", 4, ["block_removal"])
    table = table_of(gaps)
    assert table[papers.columns].equals(papers) and list(table.columns.unique("metric"))[3:] == ["removal"]
    result = Study(gaps)["gsm8k", "toy-4l", "block_removal"]
    left = 4 - most_removed(result["removal_loss"], result["removal_sizes"])
    assert table.loc["toy-4l", ("removal", "gsm8k", "RATIO")] == left / 4
    assert table.loc["toy-16l", "removal"].isna().all()


def test_a_folder_with_only_the_papers_keys_gives_the_same_table_and_a_warning(tmp_path):
    for folder, theirs in (("ours", False), ("theirs", True)):
        for n, dataset in ((10, "gsm8k"), (5, "aime24")):
            write_run(tmp_path / folder, dataset, "Qwen2.5-7B", 28, n_examples=n, papers_keys_only=theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = table_of(tmp_path / "ours")
    with pytest.warns(UserWarning, match=r"10 of 10 results have no meta .*\(gsm8k, aime24\)"):
        theirs = table_of(tmp_path / "theirs")
    assert theirs.equals(ours) and theirs.notna().to_numpy().sum() == 12


def test_a_result_of_another_model_is_named(tmp_path):
    save(tmp_path, "toy-4l", "logit_lens", model="toy-8l")
    problem = "gsm8k × toy-4l has the logit_lens of toy-8l; move it to the folder toy-8l"
    with pytest.warns(UserWarning, match=problem):
        study = Study(tmp_path)
    assert study.problems == [problem]


def test_missing_runs_name_each_probe_and_the_command_that_makes_it(gaps):
    write_run(gaps, "gsm8k", "toy-8l", 8)
    missing = Study(gaps, datasets=["gsm8k", "aime24"]).missing()
    begins = "no artifact for gsm8k × toy-4l (layer_effects, residual_erasure, integrated_gradients); run: "
    assert missing[0].startswith(begins)
    table = "no artifact for aime24 × toy-8l (relative_contribution, logit_lens)"
    command_of = command("sweep", MODELS="toy-8l", DATASETS="aime24", PROBES=[*TABLE_PROBES], OUT=gaps)
    assert f"{table}; run: {command_of}" in missing
    assert not any(line.startswith("no artifact for gsm8k × toy-8l") for line in missing)
    (line,) = Study(gaps, ["Qwen2.5-7B"], ["gsm8k"]).missing()
    assert "gsm8k × Qwen2.5-7B" in line
    save(gaps, "toy-8l", "local_effects")
    (line,) = Study(gaps, ["toy-4l"], ["gsm8k"]).missing()
    assert "--probes 'layer_effects residual_erasure integrated_gradients local_effects' --out" in line


def test_an_empty_folder_says_what_to_run(tmp_path):
    said = f"no artifacts under {tmp_path}; run: .*depth-lib sweep --out {tmp_path}"
    with pytest.raises(MissingArtifact, match=said):
        Study(tmp_path)


def test_an_unreadable_result_is_named_left_where_it_is_and_its_cells_are_missing(gaps):
    path = artifact_path(gaps, "gsm8k", "toy-4l", "logit_lens", 10)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.warns(UserWarning, match="it is truncated or damaged; .*run: depth-lib sweep --models toy-4l"):
        table = table_of(gaps)
    assert list(table.loc["toy-4l", (slice(None), "gsm8k", "ED")].isna()) == [False, True, True]
    assert path.exists()


def test_the_probes_of_a_table_are_missing_until_they_are_there_and_of_a_dataset_with_levels_its_own(tmp_path):
    save(tmp_path, "toy-8l", "relative_contribution", n=10)
    study = Study(tmp_path, datasets=["gsm8k", "sums"])
    assert [line.partition(";")[0] for line in study.missing()] == [
        "no artifact for gsm8k × toy-8l (logit_lens)",
        "no artifact for sums × toy-8l (depth_by_difficulty)",
    ]
    assert study.with_depths == ["gsm8k"]
    (line,) = Study(tmp_path, ["toy-4l"], ["gsm8k"]).missing()
    assert "(relative_contribution, logit_lens)" in line
