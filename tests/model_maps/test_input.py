"""What linear_maps reads and what it refuses: tokenizers, texts, quantised models, settings."""

import datasets
import pytest

import depth_lib as dl
from depth_lib.model_maps.texts import SPLITS, TextError, cut, read_texts
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
        (words(12, 4), {}, r"\d+ tokens to fit maps of 16 inputs .of 60,.*give at least 64, better 320"),
        (TEXTS[:9], {}, "9 documents are too few to test on others than are fitted on; give 10 or more"),
        (TEXTS, {"what": "logits"}, 'what "logits" is not known; use "residual", "contribution"'),
        ("nowhere.txt", {}, "no file /.*/nowhere.txt; check the path"),
        (
            "nobody/nowhere",
            {},
            "nobody/nowhere is neither a text file in UTF-8 nor a dataset of the Hub .*give as texts= .*embedded",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(pair, texts, more, said):
    with pytest.raises(ValueError, match=said) as raised:
        dl.linear_maps(*pair, texts, **more)
    assert "\n" not in str(raised.value)


def test_a_document_is_fitted_on_or_tested_on_never_both():
    documents = [[d * 1000 + k for k in range(50 + 7 * d)] for d in range(20)]
    of = {split: {ids // 1000 for e in cut(documents, 16, 4) if e.split == split for ids in e.ids} for split in SPLITS}
    assert all(of.values()) and sum(map(len, of.values())) == 20


def test_texts_come_from_a_file_the_package_or_a_streamed_hub_dataset(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\n\n\nthree", encoding="utf-8")
    assert read_texts(tmp_path / "a.txt") == ["one", "two", "three"]
    assert read_texts(tmp_path / "a.txt", 6) == ["one", "t"]
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(TextError, match="latin.txt is neither .*UnicodeDecodeError: 'utf-8' codec"):
        read_texts(tmp_path / "latin.txt")
    assert len(read_texts("embedded")) >= 36
    asked, drawn = [], []

    def load_dataset(*name, split, streaming):
        asked.append((*name, split, streaming))
        return ({"text": (drawn.append(n), "word " * 20)[1]} for n in range(10**9))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(read_texts("owner/corpus:20231101.en:validation", 1000)) == 10 == len(drawn)
    read_texts("owner/corpus", 10)
    assert asked == [("owner/corpus", "20231101.en", "validation", True), ("owner/corpus", None, "train", True)]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: [{"words": "a"}])
    with pytest.raises(TextError, match="owner/corpus is neither .*with a column text .KeyError: 'text'."):
        read_texts("owner/corpus")
