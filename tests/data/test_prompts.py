"""Prompts, letter by letter, from each kind of source; and what is said when there are none."""

import json
import re
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

import depth_lib as dl
from depth_lib.data.choices import load_choices
from depth_lib.data.datasets import dataset_named
from depth_lib.data.examples import load_examples
from depth_lib.data.prompts import PromptError, load_prompts
from depth_lib.data.tokens import fitting, tokenize
from depth_lib.params import ParamsError

GSM8K = {"question": "Ann has 2 pens and buys 3. How many?", "answer": "She has 2+3=<<2+3=5>>5 pens.\n#### 5"}
GSM8K_PROMPT = (
    "Given the following problem, reason and give a final answer to the problem.\n"
    "Problem: Ann has 2 pens and buys 3. How many?\n"
    'Your response should end with "The final answer is [answer]" where [answer] is the response to the problem.\n'
    "\n"
    "She has 2+3=<<2+3=5>>5 pens.\n"
    "The final answer is 5"
)
HELLASWAG = [
    {"ctx": "A man opens a door. He", "endings": ["flies.", "walks in."], "label": "1"},
    {"ctx": "A dog sits", "endings": [", then barks.", "sings."], "label": "0"},
]
HELLASWAG_PROMPTS = ["A man opens a door. He walks in.", "A dog sits, then barks."]
AIME24 = {"Problem": "Find $1+1$.", "Solution": "It is \\boxed{2}."}
AIME24_PROMPT = (
    "Given the following problem, reason and give a final answer to the problem.\n"
    "Problem: Find $1+1$.\n"
    'Your response should end with "\\boxed{[answer]}" where [answer] is the response to the problem.\n'
    "\n"
    "It is \\boxed{2}."
)


class Words:
    """A tokenizer whose tokens are words."""

    decode = " ".join

    @staticmethod
    def encode(text):
        return text.split()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The datasets library takes a folder of that name before it asks the Hub: serve rows from one."""
    import datasets

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def serve(repo, split, items, config=None):
        folder = tmp_path / repo
        folder.mkdir(parents=True)
        name = f"config_name: {config or 'default'}"
        files = f"data_files:\n  - split: {split}\n    path: right.parquet\n  - split: decoy\n    path: decoy.parquet"
        (folder / "README.md").write_text(f"---\nconfigs:\n- {name}\n  " + files.replace("\n", "\n  ") + "\n---\n")
        pd.DataFrame(items).to_parquet(folder / "right.parquet")
        pd.DataFrame(items[::-1]).to_parquet(folder / "decoy.parquet")

    return serve


@pytest.mark.parametrize(
    ("dataset", "items", "prompts"),
    [
        ("gsm8k", [GSM8K], [GSM8K_PROMPT]),
        ("hellaswag", HELLASWAG, HELLASWAG_PROMPTS),  # a space before the ending, unless it starts with a comma
        ("aime24", [AIME24], [AIME24_PROMPT]),
    ],
)
def test_rows_are_written_letter_by_letter(rows, dataset, items, prompts):
    path = rows(*items)
    pd.DataFrame(items).to_parquet(parquet := path.with_suffix(".parquet"))
    assert load_prompts(dataset, len(items), path) == load_prompts(dataset, len(items), parquet) == prompts


def test_the_first_rows_are_taken_in_order_and_the_rest_is_not_read(rows):
    items = [{"question": f"q{i}", "answer": f"#### {i}"} for i in range(3)]
    path = rows(*items, "", "this is not JSON")
    assert [prompt[-1] for prompt in load_prompts("gsm8k", 3, path)] == ["0", "1", "2"]


def test_aime24_keeps_prompts_of_up_to_400_tokens_of_the_given_tokenizer(rows):
    words = len(AIME24_PROMPT.split())
    fits, too_long = ({**AIME24, "Solution": " ".join(["x"] * (n - words + 3))} for n in (400, 401))
    path = rows(too_long, fits, too_long, AIME24)
    prompts = load_prompts("aime24", 2, path, tokenizer=Words())
    assert [len(prompt.split()) for prompt in prompts] == [400, words]
    assert len(load_prompts("aime24", 4, path)) == 4, "a local file is not filtered without a tokenizer"
    with pytest.warns(UserWarning, match=r"has only 2 prompts \(2 more are longer than 400 tokens\), not 5"):
        load_prompts("aime24", source=path, tokenizer=Words())
    with pytest.raises(PromptError, match="could not load Qwen/Qwen2.5-1.5B-Instruct for aime24 from the Hub"):
        load_prompts("aime24")


FIRST = {"addition": "154907 + 380679 = 535586", "multiplication": "154907 * 380679 = 58969841853"}


@pytest.mark.parametrize(("dataset", "sign"), [("addition", "+"), ("multiplication", "*")])
def test_drawn_sums_and_products_are_right_seeded_and_of_the_asked_length(dataset, sign):
    prompts = load_prompts(dataset)
    assert len(set(prompts)) == 10 and prompts[0] == f"Give the answer directly: {FIRST[dataset]}"
    for prompt in prompts:
        pattern = rf"Give the answer directly: ([1-9]\d{{5}}) \{sign} ([1-9]\d{{5}}) = (\d+)"
        a, b, c = map(int, re.fullmatch(pattern, prompt).groups())
        assert c == {"+": a + b, "*": a * b}[sign]
    assert load_prompts(dataset, 3) == prompts[:3]
    assert load_prompts(dataset, seed=1) != prompts


def test_drawn_sums_have_two_to_six_digits():
    prompts = load_prompts("sums", 60)
    assert prompts[:3] == ["4 + 1 = 5", "4 + 1 + 0 + 6 + 8 = 19", "5 + 5 + 0 + 2 + 2 + 5 = 19"]
    terms = [prompt.partition(" = ")[0].split(" + ") for prompt in prompts]
    assert {*map(len, terms)} == {2, 3, 4, 5, 6} and {*sum(terms, [])} == {*"0123456789"}


def test_hub_rows_come_from_the_papers_repository_configuration_and_split(hub):
    hub("openai/gsm8k", "test", [GSM8K, {"question": "q", "answer": "#### 1"}], config="main")
    hub("Rowan/hellaswag", "validation", HELLASWAG)
    assert load_prompts("gsm8k", 1) == [GSM8K_PROMPT]
    assert load_prompts("hellaswag", 2, source="hub") == HELLASWAG_PROMPTS


def test_fewer_rows_than_asked_for_are_used_with_a_warning(rows):
    path = rows(GSM8K, GSM8K)
    with pytest.warns(UserWarning, match=r"^gsm8k from .*rows\.jsonl has only 2 prompts, not 10; using all of them"):
        assert len(load_prompts("gsm8k", source=path)) == 2
    with pytest.raises(PromptError, match=r"rows\.jsonl has no prompts; use a source with at least one"):
        load_prompts("gsm8k", source=rows())


@pytest.mark.parametrize(
    ("items", "message"),
    [  # rows are counted as an editor counts lines
        (
            ["", GSM8K, " ", {"question": "q"}],
            "row 4 does not fit the template of gsm8k ('answer' is missing or null; it has question: str); correct",
        ),
        ([{"question": "q", "answer": 5}], "argument of type 'int' is not iterable; it has question: str, answer: int"),
        (
            [{"question": None, "answer": "#### 5"}],
            "'question' is missing or null; it has question: null, answer: str); cor",
        ),
        ([{"question": "q", "answer": "5"}], '(the answer has no "####" before its final number; '),
        ([[1, 2]], "row 1 (it is not an object); expected one JSON object per line"),
        ([GSM8K, "", "{oops"], "row 3 (Expecting property name enclosed in double quotes: line 1 "),
    ],
)
def test_a_row_that_does_not_fit_is_named(rows, items, message):
    with pytest.raises(PromptError, match=re.escape(message)) as raised:
        load_prompts("gsm8k", 2, rows(*items))
    assert "rows.jsonl row" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "asked, message",
    [
        (dict(dataset="HellaSwag"), 'unknown data set "HellaSwag"; did you mean "hellaswag"? Use "addition", "aime24"'),
        (dict(dataset="rows.jsonl"), "no such file: rows.jsonl"),
        (dict(dataset="mine", source="qa.csv"), "no template for the rows of qa.csv; write params/datasets/mine.yaml"),
        (dict(dataset="gsm8k", n_examples=0), "n_examples must be at least 1, got 0"),
        (dict(dataset="gsm8k", source="no/such.jsonl"), f"no such file: {Path('no/such.jsonl').absolute()}"),
    ],
)
def test_a_wrong_argument_is_named_with_what_to_use_instead(asked, message):
    with pytest.raises(PromptError, match=re.escape(message)) as raised:
        load_prompts(**asked)
    assert "\n" not in str(raised.value)


def test_without_the_hub_the_error_says_what_to_use_instead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PromptError) as raised:
        load_prompts("gsm8k")
    assert re.fullmatch(
        r"could not load openai/gsm8k for gsm8k from the Hub: .+; check the network and the name, "
        r'or use "sample" \(--source sample\) or a \.jsonl, \.csv or \.parquet file as the source',
        str(raised.value),
    )


def test_the_lines_of_a_text_file_are_prompts_of_any_dataset_and_all_by_its_name_alone(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("one prompt\n\n  two ####\n" + 10 * "three\n", encoding="utf-8")
    assert load_prompts("gsm8k", 2, path) == load_prompts(path, 2) == ["one prompt", "  two ####"]
    assert load_prompts(str(path)) == load_prompts(path) == ["one prompt", "  two ####", *10 * ["three"]]
    path.write_bytes(b"of Windows\r\nmade \r\n")
    assert load_prompts(path) == ["of Windows", "made "]
    path.write_bytes("café\n".encode("latin-1"))
    with pytest.raises(PromptError, match=r"^cannot read .*mine.txt row 1 \('utf-8' codec can't decode"):
        load_prompts("gsm8k", 2, path)
    path.write_bytes("5 + 7\n".encode("utf-16-le"))
    with pytest.raises(PromptError, match=r"row 1 \(it contains NUL characters, .*; expected .* in UTF-8"):
        load_prompts(path)


def test_a_dataset_of_ones_own_is_one_yaml_with_a_file_and_a_template(own, rows):
    rows({"q": "2 + 2", "a": 4}, {"q": "3 + 3", "a": 6})
    own(FILE="rows.jsonl", TEMPLATE="{{ q }} is {{ a }}", N_EXAMPLES=2)
    assert load_prompts("mine") == ["2 + 2 is 4", "3 + 3 is 6"]
    with pytest.warns(UserWarning, match="^mine from rows.jsonl has only 2 prompts, not 3; using all of them"):
        load_prompts("mine", 3)
    with pytest.raises(PromptError, match="the package has no sample of mine, only of"):
        load_prompts("mine", source="embedded")


def test_a_dataset_of_ones_own_can_have_levels(own, rows):
    rows({"q": "2 + 2 =", "a": " 4", "hops": [1, 2]}, {"q": "3 =", "a": " 3", "hops": [1]})
    own(FILE="rows.jsonl", LEVEL="hops", QUESTION_TEMPLATE="{{ q }}", ANSWER_TEMPLATE="{{ a }}")
    with pytest.warns(UserWarning, match="^mine has only 1 of level 1, 1 of level 2, not 2; using all of them"):
        load_examples("mine", 2)
    assert load_examples("mine", 1) == [(1, "3 =", " 3", False), (2, "2 + 2 =", " 4", False)]
    assert load_prompts("mine", 1) == ["2 + 2 = 4"]


def test_a_cell_may_be_longer_than_the_csv_modules_limit(tmp_path):
    (tmp_path / "long.csv").write_text(f"text\n{140_000 * 'a'}\n")
    assert load_prompts(str(tmp_path / "long.csv"), column="text") == [140_000 * "a"]


@pytest.mark.parametrize(
    "table, message",
    [
        ("text\nHello, my name is Ann\n", "row 1 (it has more cells than the table has columns"),
        ("text,text\na,b\n", "row 1 (two columns have the same name)"),
        ("text\na\0b\0\n", "row 1 (it contains NUL characters, as UTF-16 does)"),
    ],
)
def test_a_table_whose_cells_have_no_one_column_is_refused(tmp_path, table, message):
    (tmp_path / "mine.csv").write_text(table)
    with pytest.raises(PromptError, match=re.escape(message)):
        load_prompts(str(tmp_path / "mine.csv"), column="text")


@pytest.mark.parametrize(
    "keys, message",
    [
        (
            {"FILE": "rows.jsonl"},
            'mine.yaml has no TEMPLATE; add a template that turns a row into text: TEMPLATE: "{{ question }}"',
        ),
        (
            {"FILE": "rows.jsonl", "QUESTION_TEMPLATE": "{{ q }}"},
            'mine.yaml has no ANSWER_TEMPLATE; add a template that turns a row into text: ANSWER_TEMPLATE: "{{ ans',
        ),
        ({"FILE": "rows.jsonl", "REPOSITORY": "a/b"}, "mine.yaml: FILE and REPOSITORY are both set; delete one"),
        ({"TEMPLATE": "{{ q }}"}, "params/datasets/mine.yaml sets neither REPOSITORY nor FILE; add one, or use"),
        ({"FILE": "rows.jsonl", "TEMPLATE": "{q}"}, "mine.yaml: TEMPLATE has no field of a row; write one in"),
        ({"FILE": "rows.jsonl", "TEMPLATE": "{{ q.x }}"}, "row 1 does not fit the template of mine ('str object' has"),
        ({"FILE": "rows.jsonl", "TEMPLATE": "{{ q"}, "row 1 does not fit the template of mine (unexpected end"),
        (
            {"FILE": "rows.jsonl", "TEMPLATE": "{{ q }}", "MAX_TOKENS": 9},
            "params/datasets/mine.yaml sets MAX_TOKENS without LENGTH_TOKENIZER; set both, or pass tokenizer=",
        ),
    ],
)
def test_what_a_yaml_of_ones_own_lacks_is_named(own, rows, keys, message):
    rows({"q": "2 + 2"})
    own(**keys)
    with pytest.raises(ParamsError, match=re.escape(message)):
        load_prompts("mine", 1)


def test_by_default_there_are_as_many_prompts_as_the_params_file_says_with_and_without_levels(own, rows):
    rows(*({"q": f"{n} + 1", "level": 1 + n % 2} for n in range(12)))
    for more in ({}, {"LEVEL": "level"}):
        own(FILE="rows.jsonl", TEMPLATE="{{ q }}", N_EXAMPLES=3, **more)
        assert load_prompts("mine") == ["0 + 1", "1 + 1", "2 + 1"]


def test_rows_that_ship_are_read_by_a_template_of_ones_own_but_none_are_fetched_from_nowhere(own, tmp_path):
    own(TEMPLATE="Q: {{ question }}")
    (tmp_path / "params/datasets/mine.yaml").rename(tmp_path / "params/datasets/gsm8k.yaml")
    for source in ("sample", "embedded"):
        assert all(prompt.startswith("Q: ") for prompt in load_prompts("gsm8k", 2, source=source))
    with pytest.raises(ParamsError, match="gsm8k.yaml sets neither REPOSITORY nor FILE; add one, or use a file as the"):
        load_prompts("gsm8k", 2, source="hub")


@pytest.mark.parametrize(
    "row, template, message",
    [
        ({"q": {"items": "x"}}, "{{ q.items }}", "m.items is a method; write m['items'] for the item; it has q: dict"),
        ({"q": {"text": "2 + 2"}}, "{{ q }}", "a dict is not text; it has q: dict"),
        ({"q": ["2 + 2"]}, "{{ q }}", "a list is not text; it has q: list"),
        ({"q": "2 + 2", "of": ["a", "b"]}, "{{ q }} {{ of }}", "a list is not text; it has q: str, of: list"),
        (
            {"q": "['2 + 2', '3']"},
            "{{ q[0] }}",
            "the template takes an item of a list, but finds a string, as in every .csv; it has q: str",
        ),
    ],
)
def test_what_is_no_text_is_never_written_as_python_would(own, rows, row, template, message):
    rows(row)
    for keys in ({"TEMPLATE": template}, {"QUESTION_TEMPLATE": template, "ANSWER_TEMPLATE": " 4", "LEVEL": "q"}):
        own(FILE="rows.jsonl", **keys)
        with pytest.raises(PromptError, match=re.escape(f"row 1 does not fit the template of mine ({message})")):
            load_prompts("mine", 1)


def test_bytes_are_no_text_and_numbers_parts_of_texts_and_items_are(own, tmp_path):
    pd.DataFrame([{"q": b"2 + 2"}]).to_parquet(tmp_path / "rows.parquet")
    own(FILE="rows.parquet", TEMPLATE="{{ q }}")
    with pytest.raises(PromptError, match="a bytes is not text; it has q: bytes"):
        load_prompts("mine", 1)
    pd.DataFrame([{"q": "2 + 2", "n": 4, "x": 1.5, "of": ["a", "b"]}]).to_parquet(tmp_path / "rows.parquet")
    own(FILE="rows.parquet", TEMPLATE="{{ q[:1] }} {{ n }} {{ x }} {{ of[1] }} {{ q | length }}")
    assert load_prompts("mine", 1) == ["2 4 1.5 b 5"]


def test_endings_that_a_csv_made_a_text_are_refused(rows):
    path = rows({"ctx": "A man sits.", "endings": "['He reads.', 'He sings.']", "label": "0"})
    with pytest.raises(PromptError, match=r"row 1 .*\(the template takes an item of a list"):
        load_prompts("hellaswag", 1, path)
    with pytest.raises(PromptError, match=r"row 1: endings must be a list of strings, got \"\['He .*; use a .jsonl or"):
        load_choices("hellaswag", 1, path)


@pytest.mark.parametrize("label", ["7", 2, "", "-1", None, True])
def test_a_label_that_is_no_ending_is_refused(rows, label):
    path = rows(HELLASWAG[0] | {"label": label})
    with pytest.raises(PromptError, match=re.escape(f"row 1: label {label!r} is not an index of its 2 endings")):
        load_choices("hellaswag", 1, path)


@pytest.mark.parametrize("dataset", ["addition", "multiplication", "sums"])
def test_a_file_is_read_for_what_is_drawn_otherwise(dataset, rows):
    with pytest.raises(PromptError, match="no such file: .*nonexistent.jsonl$"):
        load_prompts(dataset, 2, source="nonexistent.jsonl")
    with pytest.raises(PromptError, match="elsewhere is not a .jsonl"):
        load_prompts(dataset, 2, source="elsewhere")
    if dataset == "sums":
        with pytest.raises(PromptError, match="no such file: .*nonexistent.jsonl$"):
            load_examples(dataset, 2, source="nonexistent.jsonl")
    else:
        assert load_prompts(dataset, 1, rows({"a": 2, "b": 3}))[0].startswith("Give the answer directly: 2 ")


def test_a_mistake_in_a_yaml_with_levels_is_not_said_to_be_a_lack_of_levels(own):
    own(FILE="rows.jsonl", LEVELS="hops")
    with pytest.raises(ParamsError, match="mine.yaml.*LEVELS"):
        load_examples("mine")


def test_a_revision_of_a_dataset_is_asked_of_the_hub_and_part_of_its_definition(own, monkeypatch):
    import datasets

    asked, definitions = [], []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **how: asked.append(how) or [{"q": "a"}])
    for revision in (None, "abc"):
        own(REPOSITORY="owner/name", TEMPLATE="{{ q }}", DATASET_REVISION=revision)
        assert load_prompts("mine", 1) == ["a"]
        definitions.append(dataset_named("mine").definition)
    assert [how["revision"] for how in asked] == [None, "abc"] and len({*definitions}) == 2


@pytest.mark.parametrize("dataset", ["gsm8k", "hellaswag", "aime24", "math", "mquake", "sums"])
def test_a_question_and_its_answer_are_the_prompt(dataset):
    whole, *parts = (dl.load_prompts(dataset, 3, source="sample", part=part) for part in ("all", "question", "answer"))
    assert [question + answer for question, answer in zip(*parts, strict=True)] == whole


def test_a_questions_row_needs_no_answer_and_stored_responses_have_a_field(own, tmp_path):
    rows = [{"q": "5 + 7 =", "response": " 12, I think"}, {"q": "2 + 2 ="}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    own(FILE="rows.jsonl", QUESTION_TEMPLATE="{{ q }}", ANSWERS="response")
    assert dl.load_prompts("mine", 2, part="question") == ["5 + 7 =", "2 + 2 ="]
    assert dl.load_prompts("mine", 1, part="answer") == [" 12, I think"]
    with pytest.raises(PromptError, match="row 2 has no text in 'response'; write the response there"):
        dl.load_prompts("mine", 2, part="answer")
    with pytest.raises(PromptError, match='unknown part "answers"; did you mean "answer"'):
        dl.load_prompts("mine", 2, part="answers")


def test_a_text_file_has_no_columns_and_json_of_endless_depth_is_damaged(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(PromptError, match="^a .txt file has no columns; leave column= out$"):
        dl.load_prompts(tmp_path / "a.txt", column="text")
    (tmp_path / "a.jsonl").write_text("[" * 100_000)
    with pytest.raises(PromptError, match="cannot read .*a.jsonl row 1"):
        dl.load_prompts(tmp_path / "a.jsonl", column="text")


@pytest.mark.parametrize("name", ["rows.JSONL", "rows.jsonl", "rows.csv", "rows.CSV", "rows.parquet"])
def test_a_column_of_any_table_is_prompts(tmp_path, name):
    table, path = pd.DataFrame({"id": [1, 2], "my text": ["One, two", 'A "third"']}), tmp_path / name
    if path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix.lower() == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_json(path, orient="records", lines=True)
    assert dl.load_prompts(str(path), column="my text") == table["my text"].tolist()
    assert dl.load_prompts(path, 1, column="my text") == ["One, two"]
    with pytest.raises(PromptError, match="row 1 has no text in the column 'text'; columns with text: .*my text"):
        dl.load_prompts(path, column="text")
    table.loc[1, "my text"] = ""
    table.to_csv(tmp_path / "gap.csv", index=False)
    with pytest.raises(PromptError, match="row 2 has no text in the column 'my text'; columns with text: id$"):
        dl.load_prompts(tmp_path / "gap.csv", column="my text")
    with pytest.raises(PromptError, match=r'DATASET to the one whose fields its rows have, .*column="text"'):
        dl.load_prompts(str(path))


def test_a_csv_with_the_fields_of_a_dataset_is_a_source(tmp_path):
    pd.DataFrame({"question": ["2 + 2?"], "answer": ["4 #### 4"]}).to_csv(tmp_path / "q.CSV", index=False)
    (tmp_path / "q.jsonl").write_text('{"question": "2 + 2?", "answer": "4 #### 4"}')
    read = [dl.load_prompts("gsm8k", 1, source=tmp_path / name) for name in ("q.CSV", "q.jsonl")]
    assert read[0] == read[1] and "2 + 2?" in read[0][0]


def test_of_texts_with_room_for_what_is_generated_only_the_longer_ones_are_left_out(toy):
    """The last token that is generated takes no position."""
    with patched(toy.config, max_position_embeddings=10):
        for generate, longest in ((0, 10), (1, 10), (4, 7)):
            texts = ["x" * n for n in (longest, longest + 1)]
            with pytest.warns(UserWarning, match="^1 of 2 prompts are longer than the model's 10 positions and are"):
                assert fitting(toy, texts, generate=generate) == texts[:1]
            assert tokenize(toy, texts[:1], generate) and fitting(toy, texts[:1], generate=generate) == texts[:1]
            with pytest.raises(ValueError, match="10 positions"):
                tokenize(toy, texts[1:], generate)


def test_our_own_prompts_that_are_too_long_for_a_model_are_left_out_and_counted(toy):
    whole = dl.load_prompts("gsm8k", 12, source="sample")
    n_tokens = [len(toy.tokenizer(prompt)["input_ids"]) for prompt in whole]
    limit = sorted(n_tokens)[5]
    with patched(toy.config, max_position_embeddings=limit):
        with pytest.warns(UserWarning, match="^6 of 12 prompts are longer than the model's .* and are left out"):
            few = dl.load_prompts("gsm8k", 12, source="sample", llm=toy)
        assert few == [prompt for prompt, n in zip(whole, n_tokens, strict=True) if n <= limit]
        with pytest.raises(ValueError, match="positions; use a shorter text"):
            dl.logit_lens(toy, whole)
        with pytest.warns(UserWarning, match="are left out"):
            dl.paper("4a", toy)
        with pytest.raises(ValueError, match="positions; use a shorter text"):
            dl.paper("4a", toy, whole)


@contextmanager
def patched(thing, **values):
    before = {name: getattr(thing, name) for name in values}
    vars(thing).update(values)
    yield
    vars(thing).update(before)


def test_the_shipped_choices_are_sixty_whose_right_ending_is_the_longest_in_about_one_of_four():
    choices = dl.load_choices("hellaswag", 60, source="embedded")
    assert len({choice.context for choice in choices}) == 60 and all(len(one.endings) == 4 for one in choices)
    assert all(len(set(choice.endings)) == 4 for choice in choices)
    lengths = [[len(ending) for ending in choice.endings] for choice in choices]
    longest = [max(n) == n[choice.right] and n.count(max(n)) == 1 for n, choice in zip(lengths, choices, strict=True)]
    assert sum(longest) == 15
    assert all(0.7 <= one / n[choice.right] <= 1.3 for n, choice in zip(lengths, choices, strict=True) for one in n)
    assert min(Counter(choice.right for choice in choices).values()) >= 12
    prompts = dl.load_prompts("hellaswag", 14, source="embedded")
    assert prompts == [choice.context + choice.endings[choice.right] for choice in choices[:14]]


def test_questions_become_what_a_chat_model_reads(toy):
    template = (
        "{{ bos_token }}{% if messages[0].role == 'system' and not sys %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
    )
    for unset in (None, [{"name": "default", "template": template}]):  # as tokenizer_config.json may hold it
        with (
            patched(toy.tokenizer, chat_template=unset),
            pytest.raises(
                ValueError, match="has no chat template; use plain prompts, or set tokenizer.chat_template, a s"
            ),
        ):
            dl.chat_prompts(toy, ["5 + 7?"])
    with patched(toy.tokenizer, chat_template=template):
        bos = toy.tokenizer.bos_token or ""
        assert dl.chat_prompts(toy, "5 + 7?") == [f"{bos}<user>5 + 7?<bot>"]
        assert (
            dl.chat_prompts(toy, ["a", "b"], system="Be brief.", sys=True)[1] == f"{bos}<system>Be brief.<user>b<bot>"
        )
        with pytest.raises(ValueError, match="the chat template rejects these messages: no system"):
            dl.chat_prompts(toy, ["a"], system="Be brief.")
        for broken in ("{{ messages + 1 }}", "{{ 1 // 0 }}", "{{ messages[0].role.missing.more }}", "{% if %}"):
            with (
                patched(toy.tokenizer, chat_template=broken),
                pytest.raises(ValueError, match="the chat template rejects these messages: "),
            ):
                dl.chat_prompts(toy, ["a"])
        with pytest.raises(ValueError, match="expected a list of strings"):
            dl.chat_prompts(toy, {"question": ["a"]})
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        with pytest.raises(
            ValueError, match="a list of chat messages; pass each chat to the probe .*, add_generation_prompt=T"
        ):
            dl.chat_prompts(toy, [turns])
        for option, said in (
            ("message", "the chat template has no option message; did you mean messages?"),
            ("thinking", "the chat template has no option thinking; leave it out"),
            ("tokenize", "chat_prompts sets tokenize itself; leave it out"),
            ("add_generation_prompt", "chat_prompts sets add_generation_prompt itself; leave it out"),
        ):
            with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
                dl.chat_prompts(toy, ["a"], **{option: True})
    with patched(toy.tokenizer, chat_template="{{ messages[-1].content.replace('\n\n', '\n') }}"):
        assert dl.chat_prompts(toy, ["a\n\nb"]) == ["a\nb"], "as Falcon's template does"
        with pytest.raises(ValueError, match="^the chat template drops system 'Be brief.'; leave it out, or correct"):
            dl.chat_prompts(toy, ["a"], system="Be brief.")
    marked = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}<|assistant|>\n"  # not special tokens
    with patched(toy.tokenizer, chat_template=marked):
        for system in (None, "Be brief."):
            said = r"question 1 already has the chat template's <\|assistant\|>; pass the bare question"
            with pytest.raises(ValueError, match=f"^{said}$"):
                dl.chat_prompts(toy, ["b", *dl.chat_prompts(toy, ["a"])], system)
    eos = toy.tokenizer.eos_token
    with patched(toy.tokenizer, chat_template="{{ messages[0].content + eos_token }}"):
        once = dl.chat_prompts(toy, ["a"])
        assert once == [f"a{eos}"]
        said = f"question 1 already has the chat template's {eos}; pass the bare question"
        with pytest.raises(ValueError, match=re.escape(said)):
            dl.chat_prompts(toy, ["b", *once])


def test_a_line_of_text_has_no_parts(tmp_path):
    (tmp_path / "mine.txt").write_text("5 + 7 = 12\n")
    for part in ("question", "answer"):
        with pytest.raises(PromptError, match=rf"mine.txt row 1 is plain text and has no {part}; use a .jsonl file"):
            dl.load_prompts(tmp_path / "mine.txt", part=part)
