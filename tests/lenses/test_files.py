"""load_lens: which matrix is which layer's, in published files and ours; and what is refused, in one line."""

import hashlib
import json
import re

import huggingface_hub
import numpy as np
import pytest
import torch

import depth_lib as dl
from depth_lib.lenses.files import LensError, unembedding_hash
from tests.families import D, L
from tests.probes.comparing import SIXTY, load

DRAW = torch.Generator().manual_seed(0)
J = {l: torch.randn(D, D, generator=DRAW).half() for l in range(L - 1)}
ARTIFACT = {"J": J, "n_prompts": 3, "source_layers": [0, 1, 2], "d_model": D}
UNDER_EMBEDDINGS = "ignore:.*has no matrix for the embeddings"


@pytest.fixture(scope="module")
def llama():
    return load("llama")


def saved(folder, value, name="lens.pt"):
    torch.save(value, folder / name)
    return folder / name


def tuned(folder, **config):
    """A folder as tuned-lens writes it, of translators W_l = l + 1 everywhere and c_l = −l."""
    stored = {f"{l}.weight": torch.full((D, D), l + 1.0) for l in range(L)}
    stored |= {f"{l}.bias": torch.full((D,), -float(l)) for l in range(L)}
    saved(folder, stored, "params.pt")
    config = {"base_model_name_or_path": "x", "d_model": D, "num_hidden_layers": L, "bias": True} | config
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_published_jacobian_of_the_output_of_block_l_reads_what_enters_block_l_plus_1(tmp_path):
    with pytest.warns(UserWarning, match="no matrix for the embeddings; layer 0 uses the logit lens"):
        lens = dl.load_lens(saved(tmp_path, ARTIFACT))
    assert torch.equal(lens["A"][0], torch.eye(D))
    for l in J:
        assert torch.equal(lens["A"][l + 1], J[l].float())
    assert lens["A"].shape == (L, D, D) and not lens["b"].any()


def test_the_hash_of_the_unembedding_is_that_of_tuned_lens(llama):
    """hashlib.sha256(str.encode(numpy.array_str(weight, precision=1))), its own line (tuned_lens/utils.py)."""
    weight = llama[0].lm_head.weight.detach().numpy()
    theirs = hashlib.sha256(str.encode(np.array_str(weight, precision=1))).hexdigest()
    with np.printoptions(precision=3, threshold=5, linewidth=200):  # somebody's notebook
        assert unembedding_hash(llama[0]) == theirs


def test_what_fit_lens_writes_is_a_published_artifact_and_reads_back_whole(llama, tmp_path):
    llm, _ = llama
    lens = dl.fit_lens(llm, [SIXTY, SIXTY[::-1]], "ridge", tmp_path / "lens.pt")
    stored = torch.load(tmp_path / "lens.pt", weights_only=True)
    assert stored.keys() >= {"J", "n_prompts", "source_layers", "d_model", "A_0", "b", "unembedding", "texts"}
    assert stored["source_layers"] == [0, 1, 2] and stored["n_prompts"] == 2 and stored["d_model"] == D
    assert all(torch.equal(stored["J"][l], lens["A"][l + 1]) for l in range(L - 1))
    again = dl.load_lens(tmp_path / "lens.pt")
    assert all(torch.equal(again[key], lens[key]) for key in ("A", "b"))
    assert str(again) == f"ridge lens of {L} layers, width {D}"
    saved = torch.load(again.save(tmp_path / "new/again.pt"), weights_only=True)
    assert saved.keys() == stored.keys() - {"n_prompts", "texts"} and torch.equal(saved["A_0"], stored["A_0"])
    assert dl.load_lens(tmp_path / "new/again.pt")["unembedding"] == lens["unembedding"]
    (tmp_path / "result.pt").write_text("of days")
    lens.save(tmp_path / "result.pt")
    assert (tmp_path / "result.pt.replaced-1").read_text() == "of days"
    with pytest.raises(LensError, match="the path of a lens must end in .pt, got .*lens"):
        lens.save(tmp_path / "lens")
    with pytest.raises(LensError, match="is not on the Hub, so revision='v1' does not apply; leave it out"):
        dl.load_lens(tmp_path / "lens.pt", revision="v1")
    assert again["kind"] == "ridge" and again["unembedding"] == unembedding_hash(llm)


WIDE, NAN = torch.zeros(D, D + 1), torch.full((D, D), torch.nan)
BAD_FILES = {
    "missing layer": (ARTIFACT | {"J": {0: J[0], 2: J[2]}}, "is not a lens for all layers: it has no 1"),
    "another width": (ARTIFACT | {"J": {0: J[0], 1: WIDE}}, "is not a lens for all layers"),
    "NaN": (ARTIFACT | {"J": J | {1: NAN}}, "has values that are not finite"),
    "no lens": ({"weights": NAN}, "is not a lens for all layers: it has no 'J'"),
    "a list": ([NAN], "is not a lens for all layers"),
    "no tensors": ("Dear reader", "is not a lens for all layers"),
    "nowhere": (None, "does not exist; use a lens's .pt file or folder"),
}


@pytest.mark.filterwarnings(UNDER_EMBEDDINGS)
@pytest.mark.parametrize("what", BAD_FILES)
def test_bad_files_are_refused_in_one_line(what, tmp_path):
    value, says = BAD_FILES[what]
    path = tmp_path / "lens.pt"
    if isinstance(value, str):
        path.write_text(value)
    elif value is not None:
        torch.save(value, path)
    with pytest.raises(LensError, match=f"^{re.escape(str(path))} ?{re.escape(says)}") as caught:
        dl.load_lens(path)
    assert "\n" not in str(caught.value)


def test_of_a_tuned_lens_translators_number_inputs_and_are_added_to_them_and_none_may_lack(tmp_path):
    lens = dl.load_lens(tuned(tmp_path))
    for l in range(L):
        assert torch.equal(lens["A"][l], torch.eye(D) + l + 1)
        assert torch.equal(lens["b"][l], torch.full((D,), -float(l)))
    with pytest.raises(LensError, match=f"is not a lens for all layers: it has no '{L}.weight'"):
        dl.load_lens(tuned(tmp_path, num_hidden_layers=L + 1))


def test_a_file_that_would_run_code_is_refused(tmp_path):
    class Runs:
        def __reduce__(self):
            return print, ("ran",)

    with pytest.raises(LensError, match="is not a lens for all layers"):
        dl.load_lens(saved(tmp_path, {"J": Runs()}))


@pytest.mark.parametrize(
    "change, says",
    [
        (
            {"A": torch.zeros(L + 1, D, D), "b": torch.zeros(L + 1, D)},
            f"has A {[L + 1, D, D]} and b {[L + 1, D]}, but the model has {L} layers",
        ),
        (
            {"A": torch.zeros(L, D - 1, D - 1)},
            f"{[L, D - 1, D - 1]} and b {[L, D]}, but the model has {L} layers of width {D}",
        ),
        ({"unembedding": "0" * 64}, "was fitted with a different unembedding"),
    ],
)
def test_a_lens_of_another_model_is_refused_in_one_line(change, says, llama):
    lens = {"A": torch.zeros(L, D, D), "b": torch.zeros(L, D), "kind": "jacobian", "unembedding": None} | change
    for call in (
        lambda: dl.logit_lens(llama[0], ["8"], lens=lens),
        lambda: dl.answer_lens(llama[0], "5 + 7 = ", "12", lens),
    ):
        with pytest.raises(LensError, match=re.escape(says)) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_lens_is_asked_of_the_hub_by_repository_and_path(monkeypatch, tmp_path):
    asked = []

    def download(*place, **how):
        asked.append((*place, how))
        return saved(tmp_path, ARTIFACT | {"A_0": torch.eye(D)})

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    dl.load_lens("neuronpedia/jacobian-lens/gpt2-small/jlens/x.pt", revision="abc")
    with pytest.raises((LensError, ValueError)):
        dl.load_lens("spaces/AlignmentResearch/tuned-lens/lens/gpt2")
    assert asked == [
        ("neuronpedia/jacobian-lens", "gpt2-small/jlens/x.pt", {"repo_type": None, "revision": "abc"}),
        ("AlignmentResearch/tuned-lens", "lens/gpt2/config.json", {"repo_type": "space", "revision": None}),
    ]
