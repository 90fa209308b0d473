"""What linear_maps reads and what it refuses: tokenizers, texts, quantised models, settings."""

import datasets
import pytest
import torch

import depth_lib as dl
from depth_lib.model_maps.texts import TextError, read_texts
from tests.model_maps.models import llama, words, wrapped
from tests.tiny_tokenizers import merging_tokenizer

TEXTS = words(40)


@pytest.fixture(scope="module")
def pair():
    return wrapped(llama()), wrapped(llama(seed=1, n_blocks=5, width=24))


def test_tokenizers_that_give_other_ids_are_refused_with_the_first_text_that_shows_it(pair):
    other = wrapped(llama(), merging_tokenizer(bos=True))
    texts = [*TEXTS, "no more than 28 words"]
    with pytest.raises(TextError, match="the tokenizers differ: text 40 .'no more than 28 words'…. has 22 tokens"):
        dl.linear_maps(pair[0], other, [text.replace("t", "a") for text in TEXTS] + texts[-1:])


@pytest.mark.parametrize(
    ("texts", "more", "said"),
    [
        (words(2, 20), {}, r"\d+ tokens to fit maps of 16 inputs .of 42,.*give at least 64, better 320"),
        (TEXTS, {"holdout": 0.5}, "holdout 0.5 is no share of the text"),
        (TEXTS, {"what": "logits"}, "what 'logits' is not known"),
        (
            "nowhere.txt",
            {},
            "no text 'nowhere.txt'; give as texts= .TEXTS= of make and the notebook. \"embedded\", a text file",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(pair, texts, more, said):
    with pytest.raises(ValueError, match=said) as raised:
        dl.linear_maps(*pair, texts, **more)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_quantised_weights_that_cannot_be_had_here_are_refused_in_one_line(monkeypatch, quantization):
    monkeypatch.setattr("depth_lib.models.memory.is_bitsandbytes_available", lambda: False)
    texts = dl.load_prompts("gsm8k", 10, source="embedded")
    with pytest.raises(ValueError, match=f"{quantization} weights need bitsandbytes.*or quantization=None"):
        dl.linear_maps("toy-4l", "toy-8l", texts, quantization=quantization)


def test_a_model_of_whole_number_weights_is_read():
    """As a quantised model's are: 8-bit weights beside their scales, dequantised where they are used."""
    coarse, exact = llama(), llama()
    for own, like in zip(coarse.model.layers, exact.model.layers, strict=True):
        scale = own.mlp.down_proj.weight.abs().max() / 127
        like.mlp.down_proj.weight.data = (own.mlp.down_proj.weight / scale).round() * scale
        own.mlp.down_proj = Rounded((own.mlp.down_proj.weight / scale).round().to(torch.int8), scale)
    assert dl.linear_maps(wrapped(coarse), wrapped(exact), TEXTS)["relative"].diagonal().max() < 1e-5


class Rounded(torch.nn.Module):
    def __init__(self, weight, scale):
        super().__init__()
        self.weight, self.scale = torch.nn.Parameter(weight, requires_grad=False), scale

    def forward(self, x):
        return x @ (self.weight.to(x.dtype) * self.scale).T


def test_how_to_load_is_refused_for_models_that_are_loaded(pair):
    with pytest.raises(ValueError, match="dtype cannot be given for models that are loaded"):
        dl.linear_maps(*pair, TEXTS, dtype="bfloat16")


def test_few_tokens_are_warned_about(pair):
    with pytest.warns(UserWarning, match="tokens are few for maps of 16 inputs: .*; 320 would do"):
        dl.linear_maps(*pair, words(8))


def test_texts_come_from_a_file_the_package_or_a_streamed_hub_dataset(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\n\n\nthree", encoding="utf-8")
    assert read_texts(tmp_path / "a.txt") == ["one", "two", "\n\nthree"[2:]]
    assert read_texts(tmp_path / "a.txt", 6) == ["one", "t"]
    assert len(read_texts("embedded")) >= 36
    asked, drawn = [], []

    def load_dataset(*name, split, streaming):
        asked.append((*name, split, streaming))
        return ({"text": (drawn.append(n), "word " * 20)[1]} for n in range(10**9))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(read_texts("owner/corpus:en:validation", 1000)) == 10 == len(drawn)
    assert asked == [("owner/corpus", "en", "validation", True)]
    asked.clear()
    assert read_texts("wikimedia/wikipedia:20231101.en", 10) == ["word word "]  # a configuration may have a dot
    assert asked == [("wikimedia/wikipedia", "20231101.en", "train", True)]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: [{"words": "a"}])
    with pytest.raises(TextError, match="has no column of text called text .it has words."):
        read_texts("owner/corpus")
