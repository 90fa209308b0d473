"""What is written is what was given, under the papers' names, complete or not at all."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

import depth_lib as dl
from depth_lib import files as storage
from depth_lib.results.artifacts import escape_token, load_artifact, save_artifact
from depth_lib.results.schemas import ARTIFACTS, ArtifactError, artifact_path
from depth_lib.results.study import load_results
from tests.results.conftest import META, equal
from tests.synthetic import TOKENS, result_of, write_as_the_papers

PAPERS_NAMES = {
    "relative_contribution": "relative_contribution.pt",
    "layer_effects": "layer_effects_5exps.pt",
    "logit_lens": "logitlens_5exps.pt",
    "residual_erasure": "logit_erasure_5exps.pt",
    "integrated_gradients": "igrads_igrads_5exps.pt",
}


def test_files_have_the_papers_names_in_folders_that_can_be_made():
    for probe, name in PAPERS_NAMES.items():
        assert artifact_path("outputs", "aime24", "Qwen2.5-7B", probe, 5) == Path("outputs/aime24/Qwen2.5-7B") / name
    for wrong in (("gsm8k", "toy", "logitlens"), ("gsm8k", "a/b", "logit_lens"), ("..", "toy", "logit_lens")):
        with pytest.raises(ArtifactError, match=r"the probes are relative_contribution|use a short name"):
            artifact_path("outputs", *wrong, 10)


def test_every_probe_reads_back_equal_with_its_meta(tmp_path, recwarn):
    for probe in ARTIFACTS:
        result = result_of(probe, 8)
        path = save_artifact(artifact_path(tmp_path, "gsm8k", "toy-8l", probe, 10), result, META)
        loaded = load_artifact(path)
        meta = loaded.pop("meta")
        assert equal(loaded, result) and not recwarn, probe
        assert {key: meta[key] for key in META} == META and (meta["schema"], meta["probe"]) == (2, probe)
        stored = torch.load(path, weights_only=True)  # as the papers' code does
        assert equal(stored | {"meta": {}}, result | {"meta": {}}), probe


def test_a_result_says_of_which_versions_and_commit_it_is(saved):
    versions = load_artifact(saved)["meta"]["versions"]
    assert versions.keys() == {"torch", "transformers", "nnsight", "depth_lib"}
    assert versions["torch"] == version("torch")
    assert re.fullmatch(rf"{re.escape(dl.__version__)} [0-9a-f]{{12}}(-dirty)?", versions["depth_lib"])


def test_a_view_of_a_large_tensor_is_stored_alone_and_numpys_arrays_as_tensors(lens_path):
    large = torch.rand(8, 100_000)
    save_artifact(lens_path, {"res_kl_divs": large[:, 0], "res_overlaps": np.full(8, 0.5, np.float32)}, {})
    assert lens_path.stat().st_size < 20_000
    assert torch.equal(load_artifact(lens_path)["res_kl_divs"], large[:, 0])


def test_meta_takes_the_types_people_have(lens_path):
    result = result_of("logit_lens", 8)
    meta = {"dtype": torch.bfloat16, "source": Path("a/b"), "seed": np.int64(3), "range": (1, 2), "remote": None}
    stored = load_artifact(save_artifact(lens_path, result, meta))["meta"]
    plain = {"dtype": "bfloat16", "source": "a/b", "seed": 3, "range": [1, 2], "remote": None}
    assert {key: stored[key] for key in meta} == plain


@pytest.mark.parametrize(
    ("probe", "change", "message"),
    [
        ("logit_lens", {"res_overlaps": torch.rand(7)}, r"res_overlaps has shape \[7\], not \[8\] \(L\)"),
        ("logit_lens", {"res_top1_sums": torch.rand(3, 8)}, r"has shape \[3, 8\], not \[10, 8\] \(P L\)"),
        ("logit_lens", {"res_overlaps": [0.1] * 8}, "res_overlaps is a list, not a tensor"),
        ("logit_lens", {"res_kl_divs": torch.full((8,), torch.nan)}, r"res_kl_divs is not finite at index \[0\]"),
        ("relative_contribution", {"layer_cos": torch.full((8,), torch.nan)}, "layer_cos is not finite at index"),
        ("layer_effects", {"max_future_layer": torch.rand(8, 9)}, r"has shape \[8, 9\], not \[8, 8\] \(L L\)"),
        ("residual_erasure", {"erasure_effect": None}, "no key erasure_effect"),
        ("relative_contribution", {"att_cos": torch.tensor([0.1] * 7 + [torch.nan])}, r"att_cos .* at index \[7\]"),
        ("residual_erasure", {"tokens": ["a", "b"]}, f"it has 2 tokens, but {len(TOKENS)} columns"),
        ("residual_erasure", {"tokens": None}, "no key tokens"),
    ],
)
def test_a_result_with_wrong_keys_shapes_or_values_is_refused_and_nothing_is_written(tmp_path, probe, change, message):
    path = artifact_path(tmp_path, "gsm8k", "toy", probe, 10)
    result = {key: value for key, value in (result_of(probe, 8) | change).items() if value is not None}
    with pytest.raises(ArtifactError, match=f"{path.name} was not written: .*{message}"):
        save_artifact(path, result, META)
    assert not path.parent.exists()


def test_tokens_are_one_visible_line_each_and_come_back_exactly(tmp_path):
    tokens = [" 5", "\n", "\\n", "", "␣", "a\u2028b", "\t", "é", "\udc80", "中", "\\", "\x00", " "]
    path = artifact_path(tmp_path, "gsm8k", "toy", "residual_erasure", 10)
    save_artifact(path, result_of("residual_erasure", 4, tokens=tokens), {})
    text = path.with_name("logit_erasure_tokens_10exps.txt").read_text()
    assert text.startswith("␣5\n\\n\n\\\\n\n\n\\u2423\na\\u2028b\n")
    assert text.splitlines() == [escape_token(token) for token in tokens]
    assert len(set(map(escape_token, tokens))) == len(tokens) and load_artifact(path)["tokens"] == tokens


@pytest.mark.parametrize("broken", ["write", "fsync", "replace", "interrupted"])
def test_a_write_that_fails_leaves_the_old_files_and_no_temporary_one(tmp_path, monkeypatch, broken):
    path = artifact_path(tmp_path, "gsm8k", "toy", "residual_erasure", 10)
    save_artifact(path, result_of("residual_erasure", 8), META)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}

    def fail(*arguments, **options):
        raise KeyboardInterrupt if broken == "interrupted" else OSError(28, "No space left on device")

    if broken == "write":
        monkeypatch.setattr("builtins.open", fail)
    else:
        monkeypatch.setattr(storage.os, "fsync" if broken == "interrupted" else broken, fail)
    refused = pytest.raises(ArtifactError, match="logit_erasure_10exps.pt was not written: No space left on device")
    with pytest.raises(KeyboardInterrupt) if broken == "interrupted" else refused:
        save_artifact(path, result_of("residual_erasure", 4), META)
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_files_of_others_are_kept_when_ours_takes_their_name(tmp_path):
    path = artifact_path(tmp_path, "gsm8k", "toy", "residual_erasure", 10)
    write_as_the_papers(path, "residual_erasure", result_of("residual_erasure", 8, seed=1))
    theirs = path.read_bytes()
    with pytest.warns(UserWarning, match="is not a readable result of depth_lib; it is kept as"):
        save_artifact(path, result_of("residual_erasure", 8, seed=2), META)
    assert path.with_name(path.name + ".foreign-1").read_bytes() == theirs
    assert (path.parent / "logit_erasure_tokens_10exps.txt.foreign-1").exists()
    path.write_bytes(b"half a file")
    with pytest.warns(UserWarning, match="it is kept as logit_erasure_10exps.pt.foreign-2"):
        save_artifact(path, result_of("residual_erasure", 8), META)
    assert path.with_name("logit_erasure_10exps.pt.foreign-2").read_bytes() == b"half a file"
    assert load_artifact(path)["meta"]["revision"] == "abc"


def test_a_model_of_one_block_has_curves_of_one_value_and_no_curve_is_empty(tmp_path):
    path = artifact_path(tmp_path, "gsm8k", "one", "relative_contribution", 10)
    result = result_of("relative_contribution", 1)
    loaded, tidy = load_artifact(save_artifact(path, result, META)), load_results(tmp_path)
    assert tidy[tidy.key == "rc_att"].value.tolist() == loaded["rc_att"].tolist()
    empty = dict.fromkeys(ARTIFACTS["logit_lens"].required, torch.zeros(0))
    with pytest.raises(ArtifactError, match=r"res_kl_divs has shape \[0\], not \[1\]"):
        save_artifact(path.with_name("logitlens_10exps.pt"), empty, META)


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
