"""What is written is what was given, under the papers' names, complete or not at all."""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from depth_lib import files as storage
from depth_lib.results.artifacts import escape_token, load_artifact, save_artifact
from depth_lib.results.provenance import read_meta
from depth_lib.results.schemas import ARTIFACTS, ArtifactError, artifact_path
from depth_lib.results.study import load_results
from tests.results.conftest import META
from tests.synthetic import TOKENS, result_of, write_as_the_papers


@pytest.mark.parametrize(
    ("probe", "name"),
    [
        ("relative_contribution", "relative_contribution.pt"),
        ("layer_effects", "layer_effects_5exps.pt"),
        ("logit_lens", "logitlens_5exps.pt"),
        ("residual_erasure", "logit_erasure_5exps.pt"),
        ("integrated_gradients", "igrads_igrads_5exps.pt"),
    ],
)
def test_files_have_the_papers_names(probe, name):
    assert artifact_path("outputs", "aime24", "Qwen2.5-7B", probe, 5) == Path("outputs/aime24/Qwen2.5-7B") / name


@pytest.mark.parametrize(
    "arguments",
    [
        ("gsm8k", "toy", "logitlens"),
        ("gsm8k", "Qwen/Qwen2.5-7B", "logit_lens"),
        ("..", "toy", "logit_lens"),
        ("", "toy", "logit_lens"),
    ],
)
def test_a_path_is_refused_for_an_unknown_probe_or_a_name_that_is_no_folder(arguments):
    with pytest.raises(ArtifactError, match=r"the probes are relative_contribution|use a short name"):
        artifact_path("outputs", *arguments, 10)


@pytest.mark.parametrize("probe", ARTIFACTS)
def test_every_probe_reads_back_equal_with_its_meta(tmp_path, probe):
    result = result_of(probe, 8)
    path = save_artifact(artifact_path(tmp_path, "gsm8k", "toy-8l", probe, 10), result, META)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_artifact(path)
    meta = loaded.pop("meta")
    assert loaded.keys() == result.keys()
    for key, value in result.items():
        assert torch.equal(loaded[key], value) if isinstance(value, torch.Tensor) else loaded[key] == value
    assert {key: meta[key] for key in META} == META
    assert (meta["schema"], meta["probe"]) == (1, probe)
    assert meta["versions"].keys() == {"torch", "transformers", "nnsight", "depth_lib"}
    assert meta["versions"]["torch"] == torch.__version__


def test_a_model_of_one_block_has_no_turn_and_only_there_a_curve_may_be_empty(tmp_path):
    path = artifact_path(tmp_path, "gsm8k", "one", "relative_contribution", 10)
    result = result_of("relative_contribution", 1) | {"turn": torch.zeros(0), "turn_sums": torch.zeros(10, 0)}
    loaded = load_artifact(save_artifact(path, result, META))
    assert loaded["turn"].shape == (0,) and loaded["turn_sums"].shape == (10, 0) and read_meta(path)[1] is None
    tidy = load_results(tmp_path)
    assert "turn" not in set(tidy.key) and tidy[tidy.key == "rc_att"].value.tolist() == loaded["rc_att"].tolist()
    for wrong in (
        {"turn_sums": torch.zeros(0, 0), "n_tokens": torch.zeros(0)},
        {"turn": torch.zeros(1)},
        dict.fromkeys(result, torch.zeros(0)),
        result_of("relative_contribution", 2) | {"turn": torch.zeros(0)},
    ):
        with pytest.raises(ArtifactError, match="has shape"):
            save_artifact(path, result | wrong, META)


def test_the_papers_own_reading_code_reads_our_file(saved, tmp_path):
    read = torch.load(f"{tmp_path}/gsm8k/toy-8l/logitlens_10exps.pt", weights_only=True)["res_kl_divs"]
    assert torch.equal(read, result_of("logit_lens", 8)["res_kl_divs"])


def test_a_view_of_a_large_tensor_is_stored_alone(lens_path):
    large = torch.rand(8, 100_000)
    save_artifact(lens_path, {"res_kl_divs": large[:, 0], "res_overlaps": np.full(8, 0.5, np.float32)}, {})
    assert lens_path.stat().st_size < 20_000
    assert torch.equal(load_artifact(lens_path)["res_kl_divs"], large[:, 0])


def test_meta_takes_the_types_people_have_and_names_what_it_cannot_store(lens_path):
    result = result_of("logit_lens", 8)
    meta = {"dtype": torch.bfloat16, "source": Path("a/b"), "seed": np.int64(3), "range": (1, 2), "remote": None}
    stored = load_artifact(save_artifact(lens_path, result, meta))["meta"]
    assert {key: stored[key] for key in meta} == {
        "dtype": "bfloat16",
        "source": "a/b",
        "seed": 3,
        "range": [1, 2],
        "remote": None,
    }
    with pytest.raises(TypeError, match=r"meta\.settings\.device_map is a set"):
        save_artifact(lens_path, result, {"settings": {"device_map": {1}}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("res_overlaps"), "no key res_overlaps"),
        (lambda r: r.update(res_overlaps=torch.rand(7)), r"res_overlaps has shape \[7\], not \[L\] with L = 8"),
        (lambda r: r.update(res_kl_divs=torch.rand(8, 1)), r"res_kl_divs has shape \[8, 1\], not \[L\]"),
        (lambda r: r.update(res_top1_sums=torch.rand(3, 8)), r"res_top1_sums has shape \[3, 8\], not \[P, L\].*P = 10"),
        (lambda r: r.update(res_overlaps=[0.1] * 8), "res_overlaps is a list, not a tensor"),
        (lambda r: r["res_kl_divs"].__setitem__(3, float("nan")), r"res_kl_divs is nan at index \[3\]"),
        (lambda r: r["res_mrr_sums"].__setitem__((2, 3), float("inf")), r"res_mrr_sums is inf at index \[2, 3\]"),
    ],
)
def test_a_result_with_wrong_keys_shapes_or_values_is_refused_and_nothing_is_written(lens_path, change, message):
    result = result_of("logit_lens", 8)
    change(result)
    with pytest.raises(ArtifactError, match=f"logitlens_10exps.pt was not written: .*{message}"):
        save_artifact(lens_path, result, META)
    assert not lens_path.parent.exists()


def test_erasure_has_one_row_more_than_there_are_layers_effects_are_square_and_columns_have_tokens(tmp_path):
    effects = result_of("layer_effects", 8) | {"max_future_layer": torch.rand(8, 9)}
    with pytest.raises(ArtifactError, match=r"max_future_layer has shape \[8, 9\], not \[L, L\]"):
        save_artifact(artifact_path(tmp_path, "gsm8k", "toy", "layer_effects", 10), effects, {})
    path = artifact_path(tmp_path, "gsm8k", "toy", "residual_erasure", 10)
    erasure = result_of("residual_erasure", 8)
    with pytest.raises(ArtifactError, match=f"it has 3 tokens, but {len(TOKENS)} columns"):
        save_artifact(path, erasure | {"tokens": ["a", "b", "c"]}, {})
    erasure.pop("tokens")
    with pytest.raises(ArtifactError, match="no key tokens"):
        save_artifact(path, erasure, {})


def test_tokens_are_one_visible_line_each_and_come_back_exactly(tmp_path):
    tokens = [" 5", "\n", "\\n", "", "␣", "a\u2028b", "\t", "é", "\udc80", "中", "\\", "\x00", " "]
    path = artifact_path(tmp_path, "gsm8k", "toy", "residual_erasure", 10)
    save_artifact(path, result_of("residual_erasure", 4, tokens=tokens), {})
    text = path.with_name("logit_erasure_tokens_10exps.txt").read_text()
    assert text.startswith("␣5\n\\n\n\\\\n\n\n\\u2423\na\\u2028b\n")
    assert text.splitlines() == [escape_token(token) for token in tokens]
    assert len(set(map(escape_token, tokens))) == len(tokens) and load_artifact(path)["tokens"] == tokens


def test_writing_again_replaces_our_own_file_and_leaves_nothing_beside_it(saved):
    save_artifact(saved, result_of("logit_lens", 6), META | {"revision": "def"})
    assert len(load_artifact(saved)["res_kl_divs"]) == 6
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.parametrize("broken", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, broken):
    path = artifact_path(tmp_path, "gsm8k", "toy", "residual_erasure", 10)
    save_artifact(path, result_of("residual_erasure", 8), META)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}

    def full_disk(*arguments, **options):
        raise OSError(28, "No space left on device")

    if broken == "write":
        monkeypatch.setattr("builtins.open", full_disk)
    else:
        monkeypatch.setattr(storage.os, broken, full_disk)
    with pytest.raises(ArtifactError, match="logit_erasure_10exps.pt was not written: No space left on device"):
        save_artifact(path, result_of("residual_erasure", 4), META)
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_an_interrupted_write_leaves_the_old_file_and_no_temporary_one(saved, monkeypatch):
    def interrupt(descriptor):
        raise KeyboardInterrupt

    before = saved.read_bytes()
    monkeypatch.setattr(storage.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_artifact(saved, result_of("logit_lens", 4), META)
    assert os.listdir(saved.parent) == [saved.name] and saved.read_bytes() == before


def test_a_reader_beside_two_writers_always_sees_a_whole_file(saved):
    def write_often(n_layers):
        for _ in range(20):
            save_artifact(saved, result_of("logit_lens", n_layers), META)

    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write_often, n) for n in (4, 8)]
        while not all(writer.done() for writer in writers):
            assert len(load_artifact(saved)["res_kl_divs"]) in (4, 8)
    assert [writer.result() for writer in writers] == [None, None]
    assert os.listdir(saved.parent) == [saved.name]


def test_the_papers_file_is_kept_when_ours_takes_its_name(tmp_path):
    path = artifact_path(tmp_path, "gsm8k", "toy", "residual_erasure", 10)
    write_as_the_papers(path, "residual_erasure", result_of("residual_erasure", 8, seed=1))
    theirs = path.read_bytes()
    with pytest.warns(UserWarning, match="was not written by depth_lib and is kept as"):
        save_artifact(path, result_of("residual_erasure", 8, seed=2), META)
    assert path.with_name(path.name + ".without-meta-1").read_bytes() == theirs
    assert (path.parent / "logit_erasure_tokens_10exps.txt.without-meta-1").exists()
    assert load_artifact(path)["meta"]["revision"] == "abc"


def test_an_unreadable_file_is_kept_when_ours_takes_its_name(lens_path):
    lens_path.parent.mkdir(parents=True)
    lens_path.write_bytes(b"half a file")
    with pytest.warns(UserWarning, match="was unreadable and is kept as logitlens_10exps.pt.unreadable-1"):
        save_artifact(lens_path, result_of("logit_lens", 8), META)
    assert lens_path.with_name("logitlens_10exps.pt.unreadable-1").read_bytes() == b"half a file"
