"""What is written is what was given, complete or not at all; what is read is checked and never run."""

import os
import pickle
import re
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from depth_lib.results import files as storage
from depth_lib.results.artifacts import differences, load_artifact, save_artifact
from depth_lib.results.commands import sweep_command
from depth_lib.results.files import escape_token, unescape_token
from depth_lib.results.meta import prompts_hash, ran_otherwise, read_meta
from depth_lib.results.schemas import ARTIFACTS, ArtifactError, MissingArtifact, artifact_path
from depth_lib.results.study import Study
from tests.synthetic import TOKENS, result_of, write_as_the_papers

META = {"model_id": "nobody/toy", "revision": "abc", "n_examples": 10, "settings": {"mode": "future", "seed": 1}}


@pytest.fixture
def lens_path(tmp_path):
    return artifact_path(tmp_path, "gsm8k", "toy-8l", "logit_lens", 10)


@pytest.fixture
def saved(lens_path):
    return save_artifact(lens_path, result_of("logit_lens", 8), META)


class Code:
    """Unpickling this runs code, if the reader lets it."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return (os.mkdir, (str(self.trace),))


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
    assert [unescape_token(line) for line in text.split("\n")[:-1]] == tokens == load_artifact(path)["tokens"]


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


def test_a_missing_result_names_the_command_that_makes_it():
    with pytest.raises(MissingArtifact) as error:
        load_artifact("outputs/gsm8k/Qwen2.5-7B/logitlens_10exps.pt")
    assert str(error.value) == (
        "no artifact for gsm8k × Qwen2.5-7B (logitlens_10exps.pt); run: make sweep MODELS=Qwen2.5-7B DATASETS=gsm8k"
    )
    assert sweep_command("outputs/demo/gsm8k/toy-8l").endswith("DATASETS=gsm8k OUT=outputs/demo")
    assert sweep_command("/data/outputs/gsm8k/toy-8l").endswith("DATASETS=gsm8k OUT=/data/outputs")
    assert "make" not in sweep_command("theirs/addition_6/toy-8l").split(), "no sweep makes a dataset it does not know"


def damaged(path, kind, trace):
    content = path.read_bytes()
    return {
        "empty": b"",
        "first half": content[: len(content) // 2],
        "without its last byte": content[:-1],
        "text": b"404: not found",
        "plain pickle with code": pickle.dumps(Code(trace), protocol=2),
        "noise": bytes(range(256)) * 8,
    }[kind]


@pytest.mark.parametrize(
    "kind", ["empty", "first half", "without its last byte", "text", "plain pickle with code", "noise"]
)
def test_a_damaged_file_is_named_and_moved_aside(saved, tmp_path, kind):
    trace = tmp_path / "code was run"
    saved.write_bytes(content := damaged(saved, kind, trace))
    with pytest.raises(ArtifactError) as error:
        load_artifact(saved)
    assert re.fullmatch(
        f"{re.escape(str(saved))} is no logit_lens artifact: .*; moved to "
        r"logitlens_10exps\.pt\.unreadable-1; run: make sweep MODELS=toy-8l DATASETS=gsm8k OUT=.*",
        str(error.value),
    )
    assert not saved.exists() and not trace.exists()
    assert saved.with_name("logitlens_10exps.pt.unreadable-1").read_bytes() == content


def test_code_inside_a_torch_file_is_never_run(lens_path, tmp_path):
    trace = tmp_path / "code was run"
    lens_path.parent.mkdir(parents=True)
    torch.save(result_of("logit_lens", 8) | {"meta": {"note": Code(trace)}}, lens_path)
    with pytest.raises(ArtifactError, match="it asks to load posix.mkdir, which is not a plain tensor"):
        load_artifact(lens_path)
    assert not trace.exists()
    torch.load(lens_path.with_name(lens_path.name + ".unreadable-1"), weights_only=False)
    assert trace.exists()  # the file does carry live code: it was the reader that did not run it


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "it holds a list"),
        ({"weights": torch.zeros(3)}, r"it has no key res_kl_divs \(it has weights\)"),
        ({"res_kl_divs": torch.rand(8), "res_overlaps": torch.rand(9)}, r"res_overlaps has shape \[9\]"),
        ({"res_kl_divs": torch.rand(8), "res_overlaps": torch.rand(8), "meta": "mine"}, "its meta is not a dict"),
        ({"res_kl_divs": torch.rand(0), "res_overlaps": torch.rand(0)}, r"res_kl_divs has shape \[0\]"),
    ],
)
def test_a_foreign_file_under_our_name_is_moved_aside(lens_path, content, message):
    lens_path.parent.mkdir(parents=True)
    torch.save(content, lens_path)
    with pytest.raises(ArtifactError, match=message):
        load_artifact(lens_path)
    assert os.listdir(lens_path.parent) == ["logitlens_10exps.pt.unreadable-1"]


def test_files_moved_aside_never_overwrite_each_other(lens_path):
    lens_path.parent.mkdir(parents=True)
    for i in (1, 2, 3):
        lens_path.write_bytes(bytes([i]))
        with pytest.raises(ArtifactError, match=f"moved to logitlens_10exps.pt.unreadable-{i}"):
            load_artifact(lens_path)
    aside = sorted(lens_path.parent.iterdir())
    assert [file.read_bytes() for file in aside] == [b"\1", b"\2", b"\3"]


def test_a_file_that_cannot_be_opened_now_stays_where_it_is(saved, monkeypatch):
    def too_many_files(self):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", too_many_files)
    with pytest.raises(ArtifactError, match="could not be opened: Too many open files"):
        load_artifact(saved)
    monkeypatch.undo()
    assert os.listdir(saved.parent) == [saved.name]


def test_a_file_with_another_name_is_no_artifact(tmp_path):
    with pytest.raises(ArtifactError, match="notes.pt is not the name of an artifact; the names are"):
        load_artifact(tmp_path / "notes.pt")


@pytest.mark.parametrize("probe", ARTIFACTS)
def test_the_papers_files_are_read_with_a_warning_and_no_meta(tmp_path, probe):
    path, result = artifact_path(tmp_path, "gsm8k", "toy", probe, 10), result_of(probe, 8)
    write_as_the_papers(path, probe, result)
    with pytest.warns(UserWarning, match=f"{path.name} has no meta"):
        loaded = load_artifact(path)
    assert loaded["meta"] == {}
    assert all(torch.equal(loaded[key], result[key]) for key in ARTIFACTS[probe].required)
    assert loaded.get("tokens") == result.get("tokens")


@pytest.mark.parametrize("text", [None, "one\nline too few\n", "\udce9"])
def test_the_papers_tokens_are_unknown_where_their_text_is_missing_or_does_not_fit(tmp_path, text):
    path = artifact_path(tmp_path, "gsm8k", "toy", "residual_erasure", 10)
    write_as_the_papers(path, "residual_erasure", result_of("residual_erasure", 8))
    tokens_file = path.with_name("logit_erasure_tokens_10exps.txt")
    tokens_file.unlink()
    if text:
        tokens_file.write_text(text, errors="surrogateescape")
    with pytest.warns(UserWarning, match="has no meta"):
        assert load_artifact(path)["tokens"] is None


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
    with pytest.warns(UserWarning, match="moved to logitlens_10exps.pt.unreadable-1"):
        save_artifact(lens_path, result_of("logit_lens", 8), META)
    assert lens_path.with_name("logitlens_10exps.pt.unreadable-1").read_bytes() == b"half a file"


def test_a_stored_result_that_matches_has_no_differences(saved):
    assert differences(saved, META) == []
    assert differences(saved, {}) == []
    assert differences(saved, {"settings": {"seed": 1}}) == []


def test_differences_say_what_was_stored_and_what_is_asked(saved):
    wanted = {"revision": "def", "dtype": torch.bfloat16, "settings": {"mode": "all", "seed": 1}, "n_examples": 10}
    assert differences(saved, wanted) == [
        "revision: stored abc, asked def",
        "dtype: stored nothing, asked bfloat16",
        "settings.mode: stored future, asked all",
    ]


def test_a_result_of_a_tighter_tolerance_is_the_one_asked_for_and_one_of_a_looser_is_not(saved):
    path = saved.with_name("igrads_igrads_3exps.pt")
    meta = {"settings": {"quadrature": "gauss", "tolerance": 1e-3}}
    save_artifact(path, result_of("integrated_gradients", 8), meta)
    assert differences(path, {"settings": {"tolerance": 0.01}}) == []
    assert differences(path, {"settings": {"tolerance": 1e-4}}) == ["settings.tolerance: stored 0.001, asked 0.0001"]
    assert differences(path, {"settings": {"quadrature": "riemann"}})


def test_nothing_stored_is_not_the_same_as_none_asked(saved):
    assert differences(saved, {"quantization": None}) == ["quantization: stored nothing, asked None"]


def test_a_missing_or_unreadable_file_differs_by_one_reason(saved):
    saved.write_bytes(b"")
    assert ["unreadable-1" in reason for reason in differences(saved, META)] == [True]
    assert ["no artifact for gsm8k × toy-8l" in reason for reason in differences(saved, META)] == [True]


def test_a_prompts_hash_depends_on_every_character_order_and_boundary():
    prompts = ["a b", "c"]
    others = [["a b", "c "], ["c", "a b"], ["a b" + "c"], ["a", " bc"], ["a b"], ["a b", "c", ""], []]
    hashes = [prompts_hash(prompts), *map(prompts_hash, others)]
    assert len(set(hashes)) == len(hashes)
    assert prompts_hash(iter(prompts)) == prompts_hash(tuple(prompts)) == prompts_hash(prompts)
    assert prompts_hash(["é中\udc80"]) and re.fullmatch("[0-9a-f]{16}", prompts_hash(prompts))


def as_cuda(path):
    """The file as a machine with a GPU would have written it."""
    with zipfile.ZipFile(path) as stored:
        contents = {name: stored.read(name) for name in stored.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as stored:
        for name, content in contents.items():
            if name.endswith("/data.pkl"):
                content = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            stored.writestr(name, content)


@pytest.mark.parametrize("form", ["bfloat16", "with a gradient", "parameter", "cuda"])
@pytest.mark.parametrize("probe", ARTIFACTS)
def test_results_are_float32_on_the_cpu_without_a_gradient_whatever_they_were_stored_as(tmp_path, probe, form):
    change = {
        "bfloat16": lambda tensor: tensor.bfloat16(),
        "with a gradient": lambda tensor: tensor.clone().requires_grad_(),
        "parameter": torch.nn.Parameter,
        "cuda": lambda tensor: tensor,
    }[form]
    result = result_of(probe, 8)
    path = artifact_path(tmp_path, "gsm8k", "toy", probe, 10)
    stored = {key: change(result[key]) for key in ARTIFACTS[probe].required}
    write_as_the_papers(path, probe, result | stored)
    if form == "cuda":
        as_cuda(path)
        with pytest.raises(RuntimeError, match="deserialize object on a CUDA device"):
            torch.load(path, weights_only=True)
    with pytest.warns(UserWarning, match="has no meta"):
        loaded = load_artifact(path)
    for key, tensor in stored.items():
        assert type(loaded[key]) is torch.Tensor and not loaded[key].requires_grad
        assert (loaded[key].dtype, loaded[key].device) == (torch.float32, torch.device("cpu"))
        assert torch.equal(loaded[key], tensor.detach().float())
    assert read_meta(path) == ({}, "it has no meta: not written by depth_lib")


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_result_that_is_not_finite_is_none_and_is_said_without_torch_too(saved, kind, value):
    stored = torch.load(saved, weights_only=True)
    stored["res_overlaps"] = stored["res_overlaps"].to(kind)
    torch.save(stored, saved)
    assert read_meta(saved)[0]["revision"] == "abc" and differences(saved, META) == []
    stored["res_overlaps"][3] = value
    torch.save(stored, saved)
    assert read_meta(saved) == ({}, "it holds values that are not finite")
    assert differences(saved, META) == [f"res_overlaps is {value} at index [3]"]


HERE = {"remote": False, "runs": {"dtype": "float32", "quantized": False, "attention": "sdpa", "torch": "2.13.0"}}


@pytest.mark.parametrize(
    "there, said",
    [
        (HERE["runs"], ""),
        (HERE["runs"] | {"dtype": "bfloat16"}, "dtype bfloat16 (here float32)"),
        (
            HERE["runs"] | {"quantized": True, "attention": "eager"},
            "quantized True (here False), attention eager (here",
        ),
        ({"dtype": "float32", "quantized": False}, ""),  # what is not known differs from nothing
    ],
)
def test_a_table_of_local_and_remote_results_says_what_ran_otherwise(there, said):
    metas = [HERE, {}, HERE | {"remote": True, "runs": there}]
    assert ran_otherwise(metas).startswith(said) and bool(ran_otherwise(metas)) == bool(said)
    assert ran_otherwise([HERE, HERE | {"runs": there}]) == ""  # a table of one place is the user's own


def test_reading_a_study_of_both_places_warns_once_of_what_ran_otherwise(tmp_path):
    there = {"remote": "http://there", "runs": HERE["runs"] | {"dtype": "bfloat16"}}
    for model, meta in (("Here", HERE), ("There", there)):
        result = result_of("logit_lens", 4)
        save_artifact(tmp_path / "gsm8k" / model / "logitlens_10exps.pt", result, meta)
    study = Study(tmp_path)
    with pytest.warns(UserWarning, match="ran with dtype bfloat16 .here float32. there"):
        study.of("logit_lens")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study.of("logit_lens")
