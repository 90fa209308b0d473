"""The Jacobian lens against TransformerLens' own fit, file by file and number by number, and what each reads of the
other's files."""

import warnings

import pytest
import torch

import depth_lib as dl
from tests.marks import slow
from tests.third_party.conftest import apart, assert_near, folder_of

bridge = pytest.importorskip("transformer_lens.model_bridge", reason="pip install transformer-lens: make test-oracles")
analysis = pytest.importorskip("transformer_lens.tools.analysis")

QUICK, OTHERS = ("llama", "gpt2"), ("gpt_neox", "gemma2", "phi", "olmo2", "toy-4l")
FAMILIES = [*QUICK, *map(slow, OTHERS)]
TEXTS = ["The quick brown fox jumps over 13 lazy dogs", "Pack my box with five dozen liquor jugs", "back again"]


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory):
    """(our model, their model) of one checkpoint."""
    folder = folder_of(request.param, tmp_path_factory.mktemp(request.param))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = bridge.TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)
    ours = dl.load_model(str(folder), dtype="float32")
    # they begin some texts with a <bos> that their tokenizers do not
    theirs.to_tokens = lambda text: torch.tensor([ours.tokenizer(text)["input_ids"]])
    return ours, theirs


@pytest.fixture(scope="module")
def fitted(both, tmp_path_factory):
    """Our lens, its file, and their lens of the same texts, of which the last is too short for both."""
    path = tmp_path_factory.mktemp("lens") / "lens.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = analysis.JacobianLens.fit(both[1], TEXTS, corpus="three", show_progress=False)
        return dl.fit_lens(both[0], TEXTS, path=path), path, theirs


def test_every_layers_matrix_is_theirs_one_layer_later(fitted):
    ours, _, theirs = fitted
    assert theirs.source_layers == list(range(len(ours["A"]) - 1))
    for l, matrix in theirs.jacobians.items():
        assert_near(ours["A"][l + 1], matrix, 1e-5)
        assert apart(ours["A"][l], matrix) > 1e-3, "layers differ"


def test_they_read_our_file_and_say_the_same_tokens(both, fitted):
    llm, model = both
    _, path, theirs = fitted
    read = analysis.JacobianLens.load(str(path)).validate_model(model)
    assert read.n_prompts == theirs.n_prompts == 2
    for l, matrix in theirs.jacobians.items():
        assert_near(read.jacobians[l], matrix, 1e-5)


def test_we_read_their_file_and_the_lens_says_what_theirs_does(both, fitted, tmp_path):
    llm, model = both
    *_, theirs = fitted
    theirs.save(str(tmp_path / "theirs.pt"), dtype=torch.float32)
    with pytest.warns(UserWarning, match="layer 0 is read by the logit lens"):
        lens = dl.load_lens(tmp_path / "theirs.pt")
    question, answer = "The quick brown fox jum", "ps"
    ours = dl.answer_lens(llm, question, answer, lens=lens)
    readout = theirs.readout(model, model.to_tokens(question + answer), top_k=5)
    predicting = slice(-1 - len(ours["tokens"]), -1)
    for l in theirs.source_layers:
        assert torch.equal(readout.lens_topk_indices[l][predicting], ours["answer_top"][l + 1].long())
