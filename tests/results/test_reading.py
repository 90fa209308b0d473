"""What is read is checked, never run and never touched; what is no result is named."""

import os
import pickle
import re
import zipfile
from pathlib import Path

import pytest
import torch

from depth_lib.params import command
from depth_lib.results.artifacts import load_artifact, save_artifact
from depth_lib.results.provenance import judge, read_meta
from depth_lib.results.schemas import ARTIFACTS, ArtifactError, MissingArtifact, artifact_path
from depth_lib.results.study import Study
from tests.synthetic import result_of, write_as_the_papers


class Code:
    """Unpickling this runs code, if the reader lets it."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return (os.mkdir, (str(self.trace),))


def test_a_missing_result_names_the_command_that_makes_it(tmp_path, monkeypatch):
    with pytest.raises(MissingArtifact) as error:
        load_artifact("outputs/gsm8k/Qwen2.5-7B/logitlens_10exps.pt")
    assert str(error.value) == (
        "no artifact for gsm8k × Qwen2.5-7B (logitlens_10exps.pt); "
        f"run: {command('sweep', MODELS='Qwen2.5-7B', DATASETS='gsm8k')}"
    )
    with pytest.raises(MissingArtifact, match="--datasets=gsm8k --out=outputs/demo --pair=spouse"):
        load_artifact("outputs/demo/gsm8k/toy-8l/logit_erasure_10exps_spouse.pt")
    with pytest.raises(MissingArtifact, match="--datasets=gsm8k --probes=local_effects"):
        load_artifact("outputs/gsm8k/toy-8l/local_effects_10exps.pt")
    (tmp_path / "gsm8k" / "toy-8l").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "gsm8k" / "toy-8l")
    with pytest.raises(MissingArtifact, match=f"gsm8k × toy-8l .* --datasets=gsm8k --out={tmp_path}"):
        load_artifact("logitlens_10exps.pt")
    with pytest.raises(MissingArtifact, match="run: .*depth-lib maps"):
        load_artifact("outputs/linear_maps/linear_map_a_to_b.pt")


@pytest.mark.parametrize("kind", ["empty", "first half", "plain pickle with code", "noise"])
def test_a_damaged_file_is_named_and_stays_where_it_is(saved, tmp_path, kind):
    trace, content = tmp_path / "code was run", saved.read_bytes()
    content = {
        "empty": b"",
        "first half": content[: len(content) // 2],
        "plain pickle with code": pickle.dumps(Code(trace), protocol=2),
        "noise": bytes(range(256)) * 8,
    }[kind]
    saved.write_bytes(content)
    assert len(judge(saved, {}).reasons) == 1 and not trace.exists()
    with pytest.raises(ArtifactError) as error:
        load_artifact(saved)
    line = r" is no logit_lens artifact: .*; run: .*depth-lib sweep --models=toy-8l --datasets=gsm8k --out=.*"
    assert re.fullmatch(re.escape(str(saved)) + line, str(error.value))
    assert saved.read_bytes() == content and os.listdir(saved.parent) == [saved.name] and not trace.exists()


def test_code_inside_a_torch_file_is_never_run(lens_path, tmp_path):
    trace = tmp_path / "code was run"
    lens_path.parent.mkdir(parents=True)
    torch.save(result_of("logit_lens", 8) | {"meta": {"note": Code(trace)}}, lens_path)
    with pytest.raises(ArtifactError, match="it asks to load posix.mkdir, which is not a plain tensor"):
        load_artifact(lens_path)
    assert "it asks to load posix.mkdir, which is not a plain tensor" in judge(lens_path, {}).reasons[0]
    assert not trace.exists()
    torch.load(lens_path, weights_only=False)
    assert trace.exists()  # the file does carry live code: it was the reader that did not run it


def test_the_papers_files_are_read_with_a_warning_and_no_meta(tmp_path):
    for probe in ARTIFACTS:
        path, result = artifact_path(tmp_path, "gsm8k", "toy", probe, 10), result_of(probe, 8)
        write_as_the_papers(path, probe, result)
        with pytest.warns(UserWarning, match=f"{path.name} has no meta"):
            loaded = load_artifact(path)
        assert loaded["meta"] == {}
        assert all(torch.equal(loaded[key], result[key]) for key in ARTIFACTS[probe].required), probe
        assert loaded.get("tokens") == result.get("tokens"), probe


def test_a_foreign_file_under_our_name_is_named_left_out_of_a_study_and_stays_where_it_is(lens_path):
    lens_path.parent.mkdir(parents=True)
    for content, message in (
        ({"weights": torch.zeros(3)}, r"it has no key res_kl_divs \(it has weights\)"),
        ({"res_kl_divs": torch.rand(8), "res_overlaps": torch.rand(9)}, r"res_overlaps has shape \[9\]"),
        ({"res_kl_divs": torch.rand(8), "res_overlaps": torch.rand(8), "meta": "mine"}, "with a dict `meta`"),
    ):
        torch.save(content, lens_path)
        with pytest.raises(ArtifactError, match=message):
            load_artifact(lens_path)
        with pytest.warns(UserWarning, match=message):
            assert not Study(lens_path.parents[2])
        assert judge(lens_path, {}).word == "stale"
    assert os.listdir(lens_path.parent) == [lens_path.name]
    lens_path.unlink()
    lens_path.mkdir()  # for root, whom no permission keeps out
    for read in (load_artifact, read_meta):
        with pytest.raises(IsADirectoryError, match=lens_path.name):
            read(lens_path)
    with pytest.raises(ArtifactError, match=f"{lens_path.name} was not written: Is a directory"):
        save_artifact(lens_path, result_of("logit_lens", 8), {})
    assert "Is a directory" in str(judge(lens_path, {}))
    contribution = lens_path.with_name("relative_contribution.pt")
    save_artifact(contribution, result_of("relative_contribution", 8), {"source": "hub"})
    with pytest.warns(UserWarning, match=f"Is a directory: .*{lens_path.name}"):
        assert list(Study(lens_path.parents[2]).paths.values()) == [contribution]


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


def rewrite(path, changed):
    """Write the records of a .pt file again, each as `changed(name, content)`, without those that this makes None."""
    with zipfile.ZipFile(path) as stored:
        contents = {name: changed(name, stored.read(name)) for name in stored.namelist()}
    with zipfile.ZipFile(path, "w") as stored:
        for name, content in contents.items():
            if content is not None:
                stored.writestr(name, content)


@pytest.mark.parametrize("form", ["bfloat16", "with a gradient", "parameter", "cuda", "legacy"])
def test_results_are_float32_on_the_cpu_without_a_gradient_whatever_they_were_stored_as(lens_path, form):
    changes = {
        "bfloat16": torch.Tensor.bfloat16,
        "with a gradient": lambda tensor: tensor.clone().requires_grad_(),
        "parameter": torch.nn.Parameter,
    }
    stored = {key: changes.get(form, torch.clone)(value) for key, value in result_of("logit_lens", 8).items()}
    lens_path.parent.mkdir(parents=True)
    torch.save(stored, lens_path, _use_new_zipfile_serialization=form != "legacy")
    if form == "cuda":
        cpu, cuda = b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"
        rewrite(lens_path, lambda name, content: content.replace(cpu, cuda) if name.endswith("data.pkl") else content)
        with pytest.raises(RuntimeError, match="deserialize object on a CUDA device"):
            torch.load(lens_path, weights_only=True)
    with pytest.warns(UserWarning, match="has no meta"):
        loaded = load_artifact(lens_path)
    for key, tensor in stored.items():
        assert type(loaded[key]) is torch.Tensor and not loaded[key].requires_grad
        assert (loaded[key].dtype, loaded[key].device) == (torch.float32, torch.device("cpu"))
        assert torch.equal(loaded[key], tensor.detach().float())
    assert judge(lens_path, {}).reasons == ["it has no meta: not written by depth_lib"]


def test_a_file_without_its_numbers_is_left_out_of_a_study_with_a_warning(saved):
    rewrite(saved, lambda name, content: None if "/data/" in name else content)
    with pytest.warns(UserWarning, match="is no logit_lens artifact: it is truncated or damaged; run: "):
        assert not Study(saved.parents[2])
