"""A result's file: what a probe returns comes back; what does not fit, or is damaged, is refused and left alone."""

import os
import pickle
import re

import numpy as np
import pytest
import torch

import depth_lib as dl
from depth_lib import files as storage
from depth_lib.results.artifacts import escape_token, load_artifact, save_artifact, versions
from depth_lib.results.result import Result
from depth_lib.results.schemas import ARTIFACTS, ArtifactError, MissingArtifact, parse_name
from depth_lib.results.study import Study, frame_of
from tests.synthetic import TOKENS, artifact_path, result_of, write_as_the_papers

META = {"model_id": "nobody/toy", "revision": "abc", "n_examples": 10, "settings": {"mode": "future", "seed": 1}}
NAMES = {  # the papers' own code looks for these
    "relative_contribution": "relative_contribution.pt",
    "layer_effects": "layer_effects_5exps.pt",
    "logit_lens": "logitlens_5exps.pt",
    "residual_erasure": "logit_erasure_5exps.pt",
    "integrated_gradients": "igrads_igrads_5exps.pt",
}


def equal(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[key], other[key]) if isinstance(one[key], torch.Tensor) else one[key] == other[key]
        for key in one
    )


@pytest.fixture
def saved(tmp_path):
    path = artifact_path(tmp_path, "gsm8k", "toy-8l", "residual_erasure", 10)
    return save_artifact(path, result_of("residual_erasure", 8), META)


@pytest.mark.parametrize("probe", ARTIFACTS)
def test_every_probe_reads_back_equal_with_its_meta_under_the_papers_name(tmp_path, probe, recwarn):
    result = result_of(probe, 8)
    path = save_artifact(artifact_path(tmp_path, "gsm8k", "toy-8l", probe, 5), result, META)
    assert path.name == NAMES.get(probe, path.name) and parse_name(path).probe == probe
    loaded, stored = load_artifact(path), torch.load(path, weights_only=True)  # as the papers' code does
    meta = loaded.pop("meta")
    assert equal(loaded, result) and equal(stored | {"meta": {}}, result | {"meta": {}}) and not recwarn
    assert meta.items() >= (META | {"probe": probe, "version": ARTIFACTS[probe].version}).items()
    assert meta["versions"].keys() == {"torch", "transformers", "nnsight", "depth_lib"}


@pytest.mark.parametrize(
    ("probe", "change", "message"),
    [
        ("logit_lens", {"res_overlaps": torch.rand(7)}, r"res_overlaps has shape \[7\], not \[8\]"),
        ("logit_lens", {"res_top1_sums": torch.rand(3, 8)}, r"has shape"),
        ("logit_lens", {"res_overlaps": [0.1] * 8}, "res_overlaps is a list, not a tensor"),
        ("logit_lens", {"res_kl_divs": torch.full((8,), torch.nan)}, "res_kl_divs is not finite"),
        ("relative_contribution", {"layer_cos": torch.full((8,), torch.nan)}, "layer_cos is not finite"),
        ("layer_effects", {"max_future_layer": torch.rand(8, 9)}, r"has shape \[8, 9\]"),
        ("residual_erasure", {"erasure_effect": None}, "it lacks erasure_effect"),
        ("relative_contribution", {"att_cos": torch.tensor([0.1] * 7 + [torch.nan])}, "att_cos is not finite"),
        ("residual_erasure", {"tokens": ["a", "b"]}, f"it has 2 tokens, but {len(TOKENS)} columns"),
        ("depth_by_difficulty", {"levels": None}, "without levels"),
        ("logit_lens", {"mine": np.array([None])}, "object.*leave out what is no tensor"),
        ("block_removal", {"removal_loss": torch.full((3, 8), torch.inf)}, "removal_loss is not finite"),
    ],
)
def test_a_result_with_wrong_keys_shapes_or_values_is_refused_and_nothing_is_written(tmp_path, probe, change, message):
    path = artifact_path(tmp_path, "gsm8k", "toy", probe, 10)
    result = {key: value for key, value in (result_of(probe, 8) | change).items() if value is not None}
    with pytest.raises(ArtifactError, match=f"{path.name} was not written: .*{message}"):
        save_artifact(path, result, META)
    assert not path.parent.exists()


@pytest.mark.parametrize("name", ["x\0.pt", "x\ud800.pt"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(ArtifactError, match="was not written: .*use another path"):
        Result("logit_lens", result_of("logit_lens", 8)).save(tmp_path / name)


def test_a_link_stays_and_the_file_that_it_points_to_is_written(tmp_path):
    (tmp_path / "scratch").mkdir()
    link, there, nowhere = tmp_path / "link.pt", tmp_path / "scratch/there.pt", tmp_path / "none.pt"
    result = Result("logit_lens", result_of("logit_lens", 8))
    link.symlink_to("scratch/there.pt")
    for _ in range(2):
        assert result.save(link) == link
        assert link.is_symlink() and torch.equal(load_artifact(there)["res_kl_divs"], result["res_kl_divs"])
    there.write_text("a diary")
    result.save(link)
    assert (tmp_path / "scratch/there.pt.replaced-1").read_text() == "a diary" and link.is_symlink()
    nowhere.symlink_to("/nowhere/x.pt")
    with pytest.raises(ArtifactError, match="none.pt was not written: No such file"):
        result.save(nowhere)
    assert nowhere.is_symlink() and not [*tmp_path.rglob(".*")]


def test_what_is_written_again_replaces_only_what_was_written_before(tmp_path):
    report, table = tmp_path / "report.html", tmp_path / "table.csv"
    report.write_text("my own")
    for number in range(3):
        storage.write_again({report: b"%d" % number, table: b"same"})
    assert report.read_text() == "2" and (tmp_path / "report.html.replaced-1").read_text() == "my own"
    table.write_text("edited")
    storage.write_again({table: b"new"})
    assert table.read_text() == "new" and (tmp_path / "table.csv.replaced-1").read_text() == "edited"
    (tmp_path / ".written").write_text("damaged")
    storage.write_again({report: b"3"})
    assert (tmp_path / "report.html.replaced-2").read_text() == "2", "it is not known whose that is"
    assert len([*tmp_path.iterdir()]) == 6


class Code:
    """Unpickling this runs code, if the reader lets it."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def _flipped(content):
    at = content.index(result_of("residual_erasure", 8)["erasure_effect"].numpy().tobytes()) + 5
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


BROKEN = {
    "empty": lambda content, code: b"",
    "half": lambda content, code: content[: len(content) // 2],
    "a bit": lambda content, code: _flipped(content),
    "noise": lambda content, code: bytes(range(256)) * 8,
    "code": lambda content, code: pickle.dumps(code, protocol=2),
}


@pytest.mark.parametrize("how", [*BROKEN, "torch file with code", "foreign keys", "foreign shape", "complex", "meta"])
def test_what_is_no_result_is_named_left_out_of_a_study_and_neither_run_nor_touched(saved, tmp_path, how):
    trace = tmp_path / "code was run"
    if how in BROKEN:
        saved.write_bytes(BROKEN[how](saved.read_bytes(), Code(trace)))
    else:
        keys = {"torch file with code": result_of("residual_erasure", 8) | {"note": Code(trace)}}
        keys |= {"foreign keys": {"weights": torch.ones(3)}, "foreign shape": {"erasure_effect": torch.ones(3)}}
        own = result_of("residual_erasure", 8)
        keys |= {"complex": own | {"erasure_effect": own["erasure_effect"].to(torch.complex64)}}
        keys |= {"meta": own | {"erasure_effect": own["erasure_effect"].to("meta")}}
        torch.save(keys[how], saved)
    before = {file.name: file.read_bytes() for file in saved.parent.iterdir()}
    line = " is not a depth_lib artifact, or is damaged: .*; remove it, and run: depth-lib sweep --models toy-8l .*"
    with pytest.raises(ArtifactError) as error:
        load_artifact(saved)
    assert re.fullmatch(re.escape(str(saved)) + line, str(error.value))
    with pytest.raises(MissingArtifact, match=f"{saved.name} is not a depth_lib artifact"):
        Study(tmp_path)
    assert {file.name: file.read_bytes() for file in saved.parent.iterdir()} == before and not trace.exists()


@pytest.mark.parametrize("probe", ARTIFACTS)
@pytest.mark.parametrize("form", ["float32", "bfloat16", "parameter"])
def test_the_papers_files_are_read_as_float32_with_a_warning_and_no_meta(tmp_path, probe, form):
    path, result = artifact_path(tmp_path, "gsm8k", "toy", probe, 10), result_of(probe, 8)
    to = {"float32": torch.clone, "bfloat16": torch.Tensor.bfloat16, "parameter": torch.nn.Parameter}[form]
    result = {
        key: to(value) if torch.is_tensor(value) and value.is_floating_point() else value
        for key, value in result.items()
    }
    write_as_the_papers(path, probe, result)
    with pytest.warns(UserWarning, match=f"{path.name} has no meta"):
        loaded = load_artifact(path)
    for key in ARTIFACTS[probe].required:
        assert type(loaded[key]) is torch.Tensor and not loaded[key].requires_grad
        assert torch.equal(loaded[key].double(), result[key].detach().double())
    assert (loaded["meta"], loaded.get("tokens")) == ({}, result.get("tokens"))
    for text in path.parent.glob("*.txt"):
        text.write_text("too few\n")
        with pytest.warns(UserWarning):
            assert load_artifact(path)["tokens"] is None


@pytest.mark.parametrize("broken", ["builtins.open", "fsync", "replace", "interrupted"])
def test_a_write_that_fails_leaves_the_old_files_and_no_temporary_one(saved, monkeypatch, broken):
    before = {file.name: file.read_bytes() for file in saved.parent.iterdir()}

    def fail(*arguments, **options):
        raise KeyboardInterrupt if broken == "interrupted" else OSError(28, "No space left on device")

    if broken == "builtins.open":
        monkeypatch.setattr(broken, fail)
    else:
        monkeypatch.setattr(storage.os, "fsync" if broken == "interrupted" else broken, fail)
    says = "was not written: No space left on device; free up space|^$"
    with pytest.raises((ArtifactError, KeyboardInterrupt), match=says):
        save_artifact(saved, result_of("residual_erasure", 4), META)
    monkeypatch.undo()
    after = {file.name: file.read_bytes() for file in saved.parent.iterdir()}
    assert sorted(after.values()) == sorted(before.values())
    assert after == before or broken == "replace", "it may be renamed by then"


def test_tokens_are_one_visible_line_each_and_come_back_exactly(tmp_path):
    tokens = [" 5", "\n", "\\n", "", "␣", "a\u2028b", "\t", "é", "\udc80", "中", "\\", "\x00", " "]
    path = artifact_path(tmp_path, "gsm8k", "toy", "residual_erasure", 10)
    save_artifact(path, result_of("residual_erasure", 4, tokens=tokens), {})
    text = path.with_name("logit_erasure_tokens_10exps.txt").read_text()
    assert text.startswith("␣5\n\\n\n\\\\n\n\n\\u2423\na\\u2028b\n")
    assert [escape_token(token) for token in "\t\r\n \x00"] == ["\\t", "\\r", "\\n", "␣", "\\u0000"]
    assert text.splitlines() == [escape_token(token) for token in tokens]
    assert len(set(map(escape_token, tokens))) == len(tokens) and load_artifact(path)["tokens"] == tokens


def test_meta_and_arrays_are_stored_plain_and_a_view_without_its_base(tmp_path):
    path, large = artifact_path(tmp_path, "gsm8k", "toy", "logit_lens", 5), torch.rand(8, 100_000)
    meta = {"dtype": torch.bfloat16, "source": tmp_path, "seed": np.int64(3), "range": (1, 2)}
    save_artifact(path, {"res_kl_divs": large[:, 0], "res_overlaps": np.full(8, 0.5, np.float32)}, meta)
    plain = {"dtype": "bfloat16", "source": str(tmp_path), "seed": 3, "range": [1, 2]}
    assert load_artifact(path)["meta"].items() >= plain.items() and path.stat().st_size < 20_000


@pytest.mark.parametrize("probe", ARTIFACTS)
def test_a_name_is_read_as_it_was_made(probe):
    for pair, changed in (("", ""), ("spouse", ""), ("", "part=mlp"), ("a-b", "lens=x-1234")):
        name = parse_name(artifact_path("outputs", "gsm8k", "toy", probe, 7, pair=pair, changed=changed))
        assert (name.probe, name.changed) == (probe, changed)
        assert name.pair == (pair if ARTIFACTS[probe].of_pair else "")


def test_a_missing_result_names_the_command_that_makes_it(tmp_path):
    path = artifact_path(tmp_path, "gsm8k", "Qwen2.5-7B", "logit_lens", 10)
    said = f"no such file: {path}; run: depth-lib sweep --models Qwen2.5-7B --datasets gsm8k --out {tmp_path}"
    with pytest.raises(MissingArtifact) as error:
        dl.load_artifact(path)
    assert str(error.value) == said


def test_values_of_each_number_of_removed_blocks_have_it_in_their_key_and_token_ids_are_left_out():
    removal, answer = result_of("block_removal", 6), result_of("answer_lens", 6)
    values = frame_of("block_removal", removal)
    for size, losses in zip(removal["removal_sizes"].int().tolist(), removal["removal_loss"], strict=True):
        of_size = values[values.key == f"removal_loss:{size}"]
        assert of_size.layer.tolist() == list(range(6)) and of_size.column.isna().all()
        assert torch.equal(torch.tensor(of_size.value.to_numpy()), losses.double())
    answers = frame_of("answer_lens", answer)
    assert "answer_top" in answer and {*answers.key} == {"answer_log_probs", "answer_ranks", "answer_kl"}
    assert answers.column.max() < answer["answer_log_probs"].shape[1]


def test_the_version_is_that_of_the_package_and_the_commit_of_its_clone():
    assert re.fullmatch(re.escape(dl.__version__) + "( [0-9a-f]{12}(-dirty)?)?", versions()["depth_lib"])
