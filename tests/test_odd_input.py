"""Plausible input of another form than usual: it gives the right number, or one line that says what to give."""

import copy
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.effective_depth.rules import RULES
from depth_lib.session import run

TEXT = "5 + 7 = 12 and 3 + 4 = 7"


@pytest.fixture(scope="module")
def lens(toy):
    return dl.logit_lens(toy, [TEXT, TEXT[:12], TEXT[3:]])


def test_one_text_is_one_prompt_and_a_generator_is_read_by_every_probe(toy):
    expected = dl.effective_depths(toy, [TEXT])
    for prompts in (TEXT, (text for text in [TEXT]), np.array([TEXT])):
        assert dl.effective_depths(toy, prompts).equals(expected)


def test_prompts_of_one_token_which_nothing_predicts_do_not_make_a_model_one_without_signal(lens):
    values = {key: lens[key] for key in ("res_kl_divs", "loss", "shuffled_loss", "n_tokens")}
    assert not RULES["kl"].no_signal(values)
    zeros = {key: torch.cat([values[key], torch.zeros(60)]) for key in ("loss", "shuffled_loss")}
    assert not RULES["kl"].no_signal(values | zeros | {"n_tokens": torch.cat([values["n_tokens"], torch.ones(60)])})


def test_orders_sizes_and_lenses_may_be_arrays_and_paths(toy, lens, tmp_path):
    orders = torch.tensor([[0, 2, 1, 3], [1, 0, 2, 3]])
    assert torch.equal(
        dl.block_orders(toy, [TEXT], orders)["order_loss"], dl.block_orders(toy, [TEXT], orders.tolist())["order_loss"]
    )
    by_list, by_number = ([kind(l) for l in (0, 2, 1, 3)] for kind in (int, np.int64))
    assert torch.equal(dl.block_orders(toy, [TEXT], [by_number])["orders"], torch.tensor([by_list]).float())
    for sizes in (np.array([2, 1]), torch.tensor([1, 2]), (np.int64(1), 2), range(1, 3)):
        assert dl.block_removal(toy, [TEXT], sizes=sizes)["removal_sizes"].tolist() == [1, 2]
    assert len(dl.remove_blocks(toy, np.int64(1), torch.tensor(2)).blocks) == 2
    removable = dl.removable(dl.block_removal(toy, [TEXT, TEXT[3:]]), at_most=100)
    choice = [("5 + 7 = ", ["12", "13"], 0)]
    removed = dl.choice_accuracy(toy, choice, removed=removable)["log_probs"]
    assert torch.equal(removed, dl.choice_accuracy(toy, choice, removed=(removable.s, removable.n))["log_probs"])
    identity = {"A": torch.eye(128).expand(4, -1, -1), "b": torch.zeros(4, 128)}
    torch.save({"J": dict(enumerate(identity["A"][1:])), "A_0": torch.eye(128)}, tmp_path / "lens.pt")
    read = dl.logit_lens(toy, [TEXT, TEXT[:12], TEXT[3:]], lens=Path(tmp_path / "lens.pt"))
    assert torch.equal(read["res_kl_divs"], lens["res_kl_divs"])


def test_a_path_may_begin_at_home(toy, lens, tmp_path, monkeypatch):
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here / "params/datasets"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    for model in ("a", "b"):
        path = lens.save(f"~/out/gsm8k/{model}")
    assert path.is_relative_to(home)
    assert torch.equal(dl.load_artifact(f"~/out/gsm8k/b/{path.name}")["loss"], lens["loss"])
    assert dl.load_results("~/out").model.unique().tolist() == ["a", "b"]
    dl.paper("4a", "~/out")
    dl.compare({model: f"~/out/gsm8k/{model}" for model in ("a", "b")}).save("~/both")
    dl.save_artifact("~/again/logitlens_3exps.pt", lens, {})
    dl.save_model(toy, "~/model")
    assert len(dl.load_model("~/model").blocks) == 4
    dl.fit_lens(toy, [TEXT, TEXT], "ridge", path="~/lens.pt").save("~/same.pt")
    assert dl.load_lens("~/same.pt")["kind"] == dl.load_lens("~/lens.pt")["kind"] == "ridge"
    assert dl.DepthLog([TEXT], toy.tokenizer, path="~/log/depths.csv").path == home / "log/depths.csv"
    (home / "rows.jsonl").write_text('{"text": "one"}\n')
    (here / "params/datasets/rows.yaml").write_text('FILE: ~/rows.jsonl\nTEMPLATE: "{{ text }}"\n')
    assert dl.load_prompts("rows", 1) == dl.load_prompts("~/rows.jsonl", 1, column="text") == ["one"]
    assert [path.name for path in here.iterdir()] == ["params"]


def test_a_lens_that_gives_no_number_is_an_error_of_the_answer_too(toy):
    broken = {"A": torch.full((4, 128, 128), 1e38), "b": torch.zeros(4, 128)}  # its products overflow
    with pytest.raises(ValueError, match="answer_kl is not finite"):
        dl.answer_lens(toy, "5 + 7 = ", "12", lens=broken)
    kinds: tuple = np.asarray, lambda tensor: tensor.to(torch.complex64)
    for kind in kinds:
        with pytest.raises(ValueError, match="a lens must be .*, float tensors"):
            dl.answer_lens(toy, "5 + 7 = ", "12", lens={key: kind(value) for key, value in broken.items()})


def test_a_series_or_an_array_of_texts_is_a_list_of_them(toy):
    texts = [TEXT, "Another text"]
    assert tokenize(toy, pd.Series(texts)) == tokenize(toy, np.array(texts)) == tokenize(toy, texts)


def test_a_prompt_of_one_token_works_where_it_can_and_is_refused_where_it_cannot(toy):
    assert dl.relative_contribution(toy, ["5"])["n_tokens"].tolist() == [1]
    lens = dl.logit_lens(toy, ["5"])
    assert lens["res_kl_divs"].isfinite().all() and "more than one token" in RULES["kl"].no_signal(lens)
    assert dl.layer_effects(toy, ["5"], mode="remove")["max_remove_out"].max() > 0
    for key, probe, *how in (
        ("all_kl", dl.layer_effects, "all"),
        ("max_all_local", dl.local_effects, "all"),
        ("removal_loss", dl.block_removal, [1]),
        ("order_loss", dl.block_orders, [[0, 2, 1, 3]]),
    ):
        with pytest.warns(
            UserWarning, match=r"left out, too short for .* \(at least 2 tokens\): prompt 1 \(1 tokens\)"
        ):
            mixed = probe(toy, [TEXT, "5"], *how)
        torch.testing.assert_close(mixed[key], probe(toy, [TEXT], *how)[key], equal_nan=True)
    with pytest.warns(
        UserWarning, match=r'left out, too short for mode "future" \(at least 13 tokens\): prompt 1 \(1 tokens\)'
    ):
        assert len(dl.layer_effects(toy, [TEXT, "5"])["max_future_out_by_prompt"]) == 1


def test_a_prompt_of_one_token_has_no_loss_and_its_result_is_saved_and_read(toy, tmp_path):
    """Nothing predicts its token."""
    for number, result in enumerate((dl.logit_lens(toy, ["5", TEXT]), dl.block_removal(toy, ["5", TEXT], sizes=[1]))):
        for key in ("loss", "shuffled_loss"):
            assert result[key].isnan().tolist() == [True, False]
        assert dl.load_artifact(result.save(tmp_path / str(number)))["loss"].isnan().tolist() == [True, False]
    parts = dl.block_removal(toy, ["5", TEXT], part="mlp")
    assert dl.load_artifact(parts.save(tmp_path))["removal_loss_by_prompt"].isnan().all(1).tolist() == [True, False]


def test_answers_to_choices_and_a_copied_lens_are_saved_and_read_like_other_results(toy, tmp_path):
    choices = [("5 + 7 = ", ["12", "13"], 0)]
    for order in (None, [0, 2, 1, 3]):
        found = dl.choice_accuracy(toy, choices, order=order)
        read = dl.load_artifact(found.save(tmp_path / "answers.pt"))
        assert read.probe == "choice_accuracy" and read["meta"]["n_prompts"] == 1
        assert all(torch.equal(read[key], found[key]) for key in found.keys() - {"meta"})
    assert repr(found).endswith("\n.to_frame()  .save(path)"), "it has no figure and no depths"
    with pytest.raises(ValueError, match="no standard file name; use one such as mine.pt"):
        found.save(tmp_path)
    fitted = copy.copy(dl.fit_lens(toy, [TEXT, TEXT], "ridge"))
    assert torch.equal(dl.load_lens(fitted.save(tmp_path / "lens.pt"))["A"], fitted["A"])


# a call with one argument of a wrong kind, and what is said
WRONG_KIND = {
    "choices": (
        lambda llm: dl.choice_accuracy(llm, "abc"),
        "choices must be a list, such as dl.load_choices.*, got str",
    ),
    "a choice": (lambda llm: dl.choice_accuracy(llm, [("a", ["b"])]), "question 0 is .* use .context, endings, index"),
    "no choices": (lambda llm: dl.choice_accuracy(llm, None), r"choices must be a list, .* got NoneType"),
    "a table of examples": (
        lambda llm: dl.depth_by_difficulty(llm, pd.DataFrame({"level": [1]})),
        "example 0 is 'level'; use .level, question, answer., ",
    ),
    "removed": (
        lambda llm: dl.choice_accuracy(llm, [("5 ", ["1", "2"], 0)], removed=2),
        r"removed must be \(s, n\) or dl.removable\(result\), got 2",
    ),
    "answers": (
        lambda llm: dl.logit_lens(llm, [TEXT], answers=[5]),
        "the answer to prompt 0 must be a string or a list of token ids, got int",
    ),
    "a lens": (lambda llm: dl.logit_lens(llm, [TEXT], lens={"A": [1], "b": [2]}), "a lens must be a dict with A"),
    "a cost": (lambda llm: dl.removable({}, at_most="x"), r"removable: at_most must be a number, got 'x' \(str\)"),
    "no cost": (lambda llm: dl.removable({}, at_most=float("nan")), r"at_most must be a number, got nan \(float\)"),
    "a depth": (lambda llm: dl.ratio({}, 4), "ratio: ed must be an integer or None, got dict"),
    "maps": (lambda llm: dl.stretch({}), "stretch needs a result of dl.linear_maps"),
    "accuracy": (lambda llm: dl.accuracy([1, 2]), "accuracy: result must be a probe's result, got list"),
    "a file": (lambda llm: dl.load_artifact(None), "path must be a string or a path, got None"),
    "a study": (lambda llm: dl.load_results(None), "load_results: folder must be a string or a path, got None"),
    "a folder": (lambda llm: dl.save_model(llm, None), "save_model: folder must be a string or a path, got None"),
    "no folder": (lambda llm: dl.save_model(llm, ""), "folder must be the path of a folder, got ''"),
    "examples": (lambda llm: dl.load_examples(5), r"load_examples: dataset must be a string, got 5 \(int\)"),
    "load_choices": (lambda llm: dl.load_choices(None), "load_choices: dataset must be a string, got None"),
    "a source": (
        lambda llm: dl.load_prompts("gsm8k", 1, source=None),
        "load_prompts: source must be a string or a path, got None",
    ),
    "a cell": (lambda llm: dl.Run(None), "Run expects a dict of parameters, got NoneType; use dl.Run"),
    "a run's prompts": (
        lambda llm: dl.Run({"DATASET": "mine"}, prompts=5),
        "prompts must be a list of strings, got int",
    ),
    "a run's table": (lambda llm: dl.Run({"DATASET": "mine"}, prompts=pd.DataFrame({"text": [TEXT]})), r"a\['text'\]"),
    "a tensor": (lambda llm: dl.load_model(torch.ones(2), llm.tokenizer), "expected a name, .*, got a Tensor"),
    "a server": (lambda llm: dl.logit_lens(llm, [TEXT], remote="http://127.0.0.1:9"), "is on this machine; load a"),
}


@pytest.mark.parametrize("name", WRONG_KIND)
def test_an_argument_of_a_wrong_kind_is_one_line_that_says_what_to_give(toy, name):
    call, said = WRONG_KIND[name]
    with pytest.raises((ValueError, dl.ArtifactError, dl.RemoteError), match=said) as refused:
        call(toy)
    assert "\n" not in str(refused.value)


def test_memory_that_is_full_while_measuring_is_named(toy):
    ids = toy.tokenizer("5 + 7")["input_ids"]

    def needs_too_much(llm):
        with llm.trace(ids):
            llm.blocks[0].output.new_empty(2**45)

    with pytest.raises(dl.ModelError, match="^layer effects: out of memory; use shorter prompts or a smaller bud"):
        run(needs_too_much, toy, label="layer effects")


def test_a_probe_that_is_interrupted_ends_with_its_name_and_without_the_engines_frames(toy):
    def interrupted(llm):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="^layer effects was interrupted; call it again") as stopped:
        run(interrupted, toy, label="layer effects")
    assert len(stopped.traceback) == 2 and stopped.value.__suppress_context__


def test_lists_of_texts_as_answers_messages_as_prompts_and_typos_of_remote_are_named(toy):
    for answers in (
        [["12"], ["13"]],
        [[1.9, 2], [2]],
        [[True], [1]],
        [b"1", b"2"],
        {"a": "7", "b": "8"},
        {"7", "8"},
        5,
    ):
        with pytest.raises(ValueError, match="pass a string|must be a list of strings"):
            dl.logit_lens(toy, ["5 + 7 = ", "3 + 4 = "], answers=answers)
    for ids in (torch.tensor([[3, 4]]), np.array([[3, 4]]), [[np.int64(3), 4]], [[torch.tensor(3), torch.tensor(4)]]):
        same = dl.logit_lens(toy, ["5 + 7 = "], answers=ids)["res_kl_divs"]
        assert torch.equal(same, dl.logit_lens(toy, ["5 + 7 = "], answers=[[3, 4]])["res_kl_divs"])
    with pytest.raises(ValueError, match="prompt 0 is a single chat message; pass each chat as one string"):
        dl.relative_contribution(toy, [{"role": "user", "content": "hi"}])
    with pytest.raises(dl.RemoteError, match="remote='locl' is not valid"):
        dl.relative_contribution(toy, ["5 + 7"], remote="locl")
    with pytest.raises(dl.ModelError, match="a model in memory takes no revision, dtype"):
        dl.load_model(toy._module, toy.tokenizer, dtype="bfloat16")


def test_models_by_name_are_named_and_a_lens_that_cannot_be_written_is_not_fitted(toy, monkeypatch):
    for call in (lambda: dl.linear_maps("toy-4l", toy, ["a b"]), lambda: dl.fit_lens("toy-4l", ["a b"])):
        with pytest.raises(dl.ModelError, match="'toy-4l' is a name; pass the model itself"):
            call()
    monkeypatch.setattr("depth_lib.lenses.fit.run", None)
    with pytest.raises(dl.ParamsError, match="/proc/x cannot be written"):
        dl.fit_lens(toy, ["5 + 7 + 5 + 3 + 1 + 7 = 28"], path="/proc/x/y.pt")


def test_answers_may_be_a_column_of_a_table_or_an_array_of_texts(toy):
    prompts, answers = ["5 + 7 = ", "3 + 4 = "], ["12", "7"]
    truth = dl.logit_lens(toy, prompts, answers=answers)
    for column in (pd.Series(answers, index=[3, 4]), np.array(answers), np.array(answers, dtype=object)):
        found = dl.logit_lens(toy, prompts, answers=column)
        assert torch.equal(found["res_kl_divs"], truth["res_kl_divs"])
        assert found["meta"]["settings"]["answers"] == answers


def test_a_figure_of_one_of_the_three_cosines_has_its_curve_and_no_depth():
    ax = dl.plot("cosine", {"att_cos": [-0.5, -0.1, 0.2]})
    assert [part.get_data().values.tolist() for part in ax.patches] == [[-0.5, -0.1, 0.2]]
    assert not any("effective depth" in str(line.get_label()) for line in ax.lines)


def test_a_probe_inside_a_trace_or_session_of_the_users_is_refused(toy):
    with pytest.raises(ValueError, match=r"^probes open their own session; call them outside llm.trace\(\) and llm"):
        with toy.trace("5 + 7"):
            dl.logit_lens(toy, ["5 + 7"])
    with pytest.raises(ValueError, match="^probes open their own session"):
        with toy.session():
            dl.logit_lens(toy, ["5 + 7"])
    dl.logit_lens(toy, ["5 + 7"])
