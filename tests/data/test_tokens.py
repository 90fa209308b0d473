"""Which tokens a text is read as: BOS once, nothing after it; and what is not a list of texts."""

import re
import string

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import depth_lib as dl
from depth_lib.data.tokens import answer_span, text_ids, texts_of, tokenize, without_template
from tests.families import build

TEXTS = ["The quick brown fox jumps, 5 + 7 = 12.", "3 + 4 = 7, and 2 + 2 = 4, he said."]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def tokenizer(around="<bos> $A", template=None):
    """One token a character, and the special tokens that `around` names."""
    words = ["<pad>", "<bos>", "<eos>", "<unk>", *string.ascii_letters, *string.digits, *string.punctuation, "Ġ", "Ċ"]
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(single=around, special_tokens=[("<bos>", 1), ("<eos>", 2)])
    names = {name: f"<{name[:3]}>" for name in ("pad_token", "bos_token", "eos_token", "unk_token")}
    made = tf.PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **names)
    made.chat_template = template
    return made


@pytest.fixture(scope="module")
def module():
    return build("llama")


BARE = [tokenizer("$A")(text)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize("around", ["$A", "<bos> $A", "<bos> $A <eos>", "$A <eos>"])
def test_bos_is_there_once_and_nothing_that_the_tokenizer_appends(around):
    made, before = tokenizer(around), [1] if "<bos>" in around else []
    assert text_ids(made, TEXTS[0])[0] == before + BARE[0]
    assert text_ids(made, "<bos>" + TEXTS[0])[0] == [1] + BARE[0], "the text's own"
    assert text_ids(made, TEXTS[0] + "<eos>")[0] == before + BARE[0] + [2], "the text's own"
    assert text_ids(made, "<bos>")[0] == [1]
    assert text_ids(made, "")[0] == before
    ids, spans = text_ids(made, TEXTS[0], offsets=True)
    assert "".join(TEXTS[0][start:end] for start, end in spans) == TEXTS[0] and len(ids) == len(spans)


def test_a_text_that_the_tokenizer_has_no_token_for_is_named(module):
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    llm = dl.load_model(module, tf.PreTrainedTokenizerFast(tokenizer_object=words))
    assert tokenize(llm, ["a b a"]) == [[0, 1, 0]]
    with pytest.raises(ValueError, match=r"prompt 1 \('zzz'\) cannot be tokenised \(.*\[UNK\].*\); remove characters"):
        tokenize(llm, ["a", "zzz"])


def test_a_chat_text_is_measured_with_one_bos(module):
    made = tokenizer(template=TEMPLATE)
    messages = [{"role": "user", "content": "5 + 7 = 12, and 3 + 4 ="}]
    text = made.apply_chat_template(messages, tokenize=False)
    truth = made.apply_chat_template(messages, tokenize=True, return_dict=False)
    llm = dl.load_model(module, made)
    assert tokenize(llm, [text]) == [truth]
    plain = text.removeprefix("<bos>")
    for call in (
        lambda question: dl.answer_lens(llm, question, "12")["answer_log_probs"],
        lambda question: dl.choice_accuracy(llm, [(question, ["12", "13"], 0)])["log_probs"],
        lambda question: torch.tensor(len(dl.residual_erasure(llm, question, "12", TEXTS)["tokens"])),
    ):
        assert torch.equal(call(text), call(plain))


def test_an_eos_that_the_tokenizer_appends_is_neither_measured_nor_continued(module):
    with_eos, without = (dl.load_model(module, tokenizer(around)) for around in ("<bos> $A <eos>", "<bos> $A"))
    found, truth = (dl.logit_lens(llm, TEXTS, generate=6) for llm in (with_eos, without))
    assert found["generated"] == truth["generated"]
    found, truth = (dl.logit_lens(llm, TEXTS) for llm in (with_eos, without))
    assert torch.equal(found["n_tokens"], truth["n_tokens"]) and torch.equal(found["loss"], truth["loss"])
    assert answer_span(with_eos, "5 + 7 = ", "12")[1] == [9, 10]
    assert dl.residual_erasure(with_eos, "5 + 7 = ", "12", TEXTS)["n_answer"] == 2
    long = [text * 3 for text in TEXTS]
    lenses = [dl.fit_lens(llm, long, "ridge") for llm in (with_eos, without)]
    assert torch.equal(lenses[0]["A"], lenses[1]["A"])


def test_a_text_that_is_the_name_of_a_file_or_a_data_set_is_not_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my notes.md").write_text("5 + 7 = 12")
    for texts, give in (
        ("q.TXT", "load_prompts('q.TXT'"),
        (["5 + 7 = 12", "nowhere/q.csv"], "load_prompts('nowhere/q.csv', column=\"text\")"),
        ("my notes.md", "pass its text, or use a .txt, .jsonl, .csv or .parquet file"),
        ("gsm8k", "load_prompts('gsm8k')"),
        (["math"], "load_prompts('math')"),
    ):
        with pytest.raises(ValueError, match=re.escape(give)):
            texts_of(texts)
    texts = ["sums", "math", "see q.txt", "Node.js", "3.14", "a\0.b", "5" * 300 + ".x"]
    assert texts_of(texts) == texts


@pytest.mark.parametrize(
    ("template", "texts", "without"),
    [
        (None, ["a"], False),
        ("{{ messages[0].content }}", ["a"], False),
        ("{{ bos_token }}{{ messages[0].content }}", ["a"], False),  # the tokenizer puts it there
        ("{{ bos_token }}{{ messages[0].content }}{{ bos_token }}", ["a"], True),
        ("{{ messages[0].content + eos_token }}", ["a"], True),
        ("{{ messages[0].content + eos_token }}", ["a<eos>"], False),
        ("{{ messages[0].content + eos_token }}", ["a<eos>", "a"], True),
        ("{{ messages[0].content }}<|assistant|>", ["a<|assistant|>"], False),
        ("{{ messages[0].content }}<|assistant|>", ["a"], True),
        ("{% if add_generation_prompt %}{{ eos_token }}{% endif %}", ["a"], True),
        ("{{ raise_exception('no') }}", ["a"], False),
    ],
)
def test_prompts_without_the_special_tokens_of_a_chat_template_are_noticed(module, template, texts, without):
    assert without_template(dl.load_model(module, tokenizer(template=template)), texts) is without


def test_a_place_or_a_method_that_is_not_known_is_named(toy):
    with pytest.raises(ValueError, match='at="first" is not valid; use'):
        dl.logit_lens(toy, ["5 + 7 = 12"], at="first")
    with pytest.raises(ValueError, match='unknown method "gradient"; did'):
        dl.integrated_gradients(toy, "5 + 7 = ", "12", method="gradient")
