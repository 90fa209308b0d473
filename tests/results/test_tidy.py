"""Every result as one tidy frame."""

import re

import pytest
import torch

import depth_lib as dl
from depth_lib.results.result import Result
from depth_lib.results.schemas import MissingArtifact
from depth_lib.results.study import Study
from tests.synthetic import artifact_path, write_run


def test_load_results_is_tidy_and_holds_every_value_once(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-8l", 8, n_examples=4)
    write_run(tmp_path, "hellaswag", "toy-8l", 8, ["logit_lens"], n_examples=4)
    tidy = dl.load_results(tmp_path)
    assert list(tidy.columns) == ["model", "dataset", "probe", "layer", "key", "value", "column"]
    assert tidy.column.dtype == "Int64" and tidy.layer.dtype == "int64", "whole numbers where there is one"
    assert not tidy.duplicated(["model", "dataset", "probe", "key", "layer", "column"]).any()
    mine = tidy.query("model == 'toy-8l' and dataset == 'gsm8k'")
    lens, effects = (
        dl.load_artifact(artifact_path(tmp_path, "gsm8k", "toy-8l", probe, 4))
        for probe in ("logit_lens", "layer_effects")
    )
    curve = mine[mine.key == "res_kl_divs"].sort_values("layer")
    assert curve.value.tolist() == lens["res_kl_divs"].tolist()
    assert curve.column.isna().all() and set(curve.probe) == {"logit_lens"}
    grid = mine[mine.key == "max_future_layer"].pivot(index="layer", columns="column", values="value")
    assert grid.to_numpy().tolist() == effects["max_future_layer"].tolist()
    assert set(mine[mine.key == "erasure_effect"].layer) == set(range(9))
    assert not tidy.key.str.contains("sums|prompt|n_tokens").any()


def test_numbers_of_orders_have_the_orders_number_as_their_column(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-8l", 8, ["logit_lens", "block_orders", "block_accuracy"], n_examples=4)
    tidy = dl.load_results(tmp_path)
    for probe, key in (("block_orders", "order_loss"), ("block_accuracy", "accuracy")):
        result = dl.load_artifact(artifact_path(tmp_path, "gsm8k", "toy-8l", probe, 4))
        mine = tidy[tidy.key == key]
        assert mine.value.tolist() == result[key].tolist() and mine.layer.isna().all()
        assert mine.column.tolist() == [*range(len(result[key]))]
        assert Result(probe, result).to_frame().query(f"key == '{key}'").value.tolist() == mine.value.tolist()


def test_choices_and_maps_between_two_models_are_tables_too(toy):
    choices = dl.choice_accuracy(toy, [("5 + 7 = ", ["12", "13"], 0), ("1 + 2 = ", ["4", "5"], 1)])
    frame = choices.to_frame()
    assert frame.value.tolist() == choices["correct"].tolist() and {*frame.key} == {"correct"}
    assert frame.layer.isna().all() and frame.column.tolist() == [0, 1]
    M, N = 3, 5
    relative = torch.rand(M, N)
    values = {"relative": relative, "relative_mean": torch.rand(N), "best": relative.argmin(0).float()}
    values |= {"n_tokens": torch.ones(2), "relative_sums": torch.rand(2, M, N)}
    frame = Result("linear_map", values).to_frame()
    errors = frame[frame.key == "relative"].pivot(index="layer", columns="column", values="value")
    assert errors.to_numpy().tolist() == relative.tolist()
    best = frame[frame.key == "best"]
    assert best.value.tolist() == values["best"].tolist() and best.layer.tolist() == [*range(N)]
    assert best.column.isna().all() and len(frame) == M * N + 2 * N


def test_load_results_reads_the_papers_files_and_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(MissingArtifact, match="run: .*depth-lib sweep"):
        dl.load_results(tmp_path)
    with pytest.raises(MissingArtifact, match="nowhere; use .*run: "):
        dl.load_results("nowhere")
    write_run(tmp_path, "gsm8k", "Qwen2.5-7B", 28, ["logit_lens"], papers_keys_only=True)
    with pytest.warns(UserWarning, match="no meta"):
        assert len(dl.load_results(tmp_path)) == 2 * 28
        assert len(dl.load_results(tmp_path, models="Qwen2.5-7B", datasets="gsm8k")) == 2 * 28
    with pytest.raises(
        MissingArtifact, match="has no results for these models and data sets; it has Qwen2.5-7B on gsm8k"
    ):
        dl.load_results(tmp_path, models="Qwen2.5-14B")
    for part in ("gsm8k", "gsm8k/Qwen2.5-7B"):
        with pytest.raises(MissingArtifact, match=rf"/\*.pt. under .*{part}; use a run's OUT, load one"):
            dl.load_results(tmp_path / part)
    file = next(tmp_path.glob("*/*/*.pt"))
    file.rename(file.with_name("mine.pt"))
    for place in (file.parent, file.with_name("mine.pt")):
        with pytest.raises(MissingArtifact, match="load one file with dl.load_artifact"):
            dl.load_results(place)


def test_data_sets_with_levels_of_difficulty_only_have_no_depths(tmp_path):
    probes = {
        "gsm8k": ["logit_lens"],
        "hellaswag": ["layer_effects"],
        "sums": ["depth_by_difficulty"],
        "math": ["layer_effects"],  # it has levels
        "mquake": ["depth_by_difficulty", "relative_contribution"],
    }
    for dataset, names in probes.items():
        write_run(tmp_path, dataset, "toy-4l", 4, names)
    lines = "\n".join(Study(tmp_path).missing())
    lacking = re.findall(r"no artifact for (\w+) × toy-4l \(.*(?:logit_lens|relative_contribution).*\); run", lines)
    assert {*lacking} == {"gsm8k", "hellaswag", "mquake"}
