"""Plausible input of another form than usual: it gives the right number, or one line that says what to give."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import depth_lib as dl
from depth_lib.data.examples import load_examples
from depth_lib.data.orders import sizes_of
from depth_lib.effective_depth.difficulty import Difficulty, depth_scores
from depth_lib.effective_depth.intervals import Estimate
from depth_lib.effective_depth.rules import METRICS
from depth_lib.models import memory

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
    assert not METRICS["kl"].no_signal(values)
    zeros = {key: torch.cat([values[key], torch.zeros(60)]) for key in ("loss", "shuffled_loss")}
    assert not METRICS["kl"].no_signal(values | zeros | {"n_tokens": torch.cat([values["n_tokens"], torch.ones(60)])})


def test_orders_and_lenses_may_be_arrays_and_paths(toy, lens, tmp_path):
    orders = torch.tensor([[0, 2, 1, 3], [1, 0, 2, 3]])
    assert torch.equal(
        dl.block_orders(toy, [TEXT], orders)["order_loss"], dl.block_orders(toy, [TEXT], orders.tolist())["order_loss"]
    )
    removable = dl.removable(dl.block_removal(toy, [TEXT]), at_most=100)
    choice = [("5 + 7 = ", ["12", "13"], 0)]
    removed = dl.choice_accuracy(toy, choice, removed=removable)["log_probs"]
    assert torch.equal(removed, dl.choice_accuracy(toy, choice, removed=(removable.s, removable.n))["log_probs"])
    identity = {"A": torch.eye(128).expand(4, -1, -1), "b": torch.zeros(4, 128)}
    torch.save({"J": dict(enumerate(identity["A"][1:])), "A_0": torch.eye(128)}, tmp_path / "lens.pt")
    read = dl.logit_lens(toy, [TEXT, TEXT[:12], TEXT[3:]], lens=Path(tmp_path / "lens.pt"))
    assert torch.equal(read["res_kl_divs"], lens["res_kl_divs"])


def test_a_tie_of_intervals_says_what_is_known_of_layer_0_and_no_more():
    up, scores = Estimate(0.5, 0.1, 0.9), {1: Estimate(1, 0, 2), 5: Estimate(2, 1, 3)}
    said = [
        str(Difficulty("layer", scores, up, without))
        for without in (up, None, Estimate(0.4, -0.1, 0.9), Estimate(-0.5, -0.9, -0.1))
    ]
    assert [text.partition(": by")[0] for text in said] == [
        "Harder questions use more depth",
        "What moves with the level is the share of layer 0; the other layers may not move at all",
        "What moves with the level is the share of layer 0; the other layers may not move at all",
        "What moves with the level is the share of layer 0; the other layers move the other way",
    ]


def test_all_hundred_sums_of_two_digits_can_be_drawn():
    assert sum(example.level == 2 for example in load_examples("sums", 100)) == 100


def test_free_memory_is_that_of_the_gpu_that_is_meant(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: ([1, 80][gpu], 80))
    assert [memory._free_bytes(device, 1) for device in (None, "cuda", "cuda:0", "cuda:1")] == [1, 1, 1, 80]


ONE_ORDER = {"correct": torch.ones(1, 8), "unchanged_correct": torch.ones(8)}
WITHOUT_B = {"A": torch.ones(4, 128, 128)}


@pytest.mark.parametrize(
    "ask, message",
    [
        (lambda toy, lens: dl.accuracy({"correct": torch.ones(3, 8)}), "of several: dl.best_order"),
        (lambda toy, lens: dl.accuracy({"correct": []}), "a choice at least"),
        (lambda toy, lens: dl.accuracy_change({"correct": [1.0]}, {"correct": torch.ones(3, 1)}), "dl.best_order"),
        (lambda toy, lens: dl.best_order(ONE_ORDER), "several orders"),
        (lambda toy, lens: dl.early_exit({"generated": [], "res_top1": torch.ones(1)}), "two blocks or more"),
        (lambda toy, lens: dl.depth_interval(lens, "KL"), "did you mean kl"),
        (lambda toy, lens: dl.depth_interval(lens, "cosine"), "give the result of dl.relative_contribution"),
        (lambda toy, lens: dl.effective_depth_cosine(lens), "give the result of dl.relative_contribution"),
        (lambda toy, lens: dl.effective_depth_kl({"att_cos": [0.0]}), "give the result of dl.logit_lens"),
        (lambda toy, lens: depth_scores({}, "outputs"), "did you mean output"),
        (lambda toy, lens: dl.load_choices("hellaswag", -1), "n_examples is -1"),
        (lambda toy, lens: dl.load_prompts("gsm8k", True), "n_examples is True"),
        (lambda toy, lens: dl.reorder_blocks("toy-4l", [0]), "is a name; give the model itself"),
        (lambda toy, lens: dl.save_model("toy-4l", "x"), "is a name; give the model itself"),
        (lambda toy, lens: dl.reorder_blocks(toy, 3), "3 is not an order"),
        (lambda toy, lens: sizes_of(np.array([1, 2]), 4), "give numbers from 1 to 3"),
        (lambda toy, lens: dl.block_orders(toy, [TEXT], [0, 1, 2, 3]), "0 is not an order"),
        (lambda toy, lens: dl.choice_accuracy(toy, [(TEXT, ["1", "2"], 5)]), "choice 0 has endings"),
        (lambda toy, lens: dl.choice_accuracy(toy, [(TEXT, "12", 0)]), "choice 0 has endings"),
        (lambda toy, lens: dl.fit_lens(toy, [TEXT], method="gradient"), "did you mean gradients"),
        (lambda toy, lens: dl.fit_lens(toy, [TEXT], budget=0), "budget 0 is no number"),
        (lambda toy, lens: dl.fit_lens(toy, [TEXT], path="mylens"), "ends in .pt"),
        (lambda toy, lens: dl.load_lens("nowhere.pt"), "give a path, or of the Hub owner/name"),
        (lambda toy, lens: dl.logit_lens(toy, [TEXT], lens=WITHOUT_B), "a lens is a dict with A"),
        (
            lambda toy, lens: dl.logit_lens(toy, [TEXT], lens=WITHOUT_B | {"b": torch.ones(128)}),
            "has b [128], not [4, 128]",
        ),
        (lambda toy, lens: dl.paper("8", lens), "Figure 8 is of two models"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line_that_says_what_to_give(ask, message, toy, lens):
    with pytest.raises(ValueError, match=re.escape(message)):
        ask(toy, lens)


def test_choices_and_examples_need_rows_with_fields(tmp_path):
    (tmp_path / "p.txt").write_text("a text\n")
    for load, name in ((dl.load_choices, "hellaswag"), (load_examples, "math")):
        with pytest.raises(ValueError, match="p.txt"):
            load(name, 3, source=str(tmp_path / "p.txt"))
    with pytest.warns(UserWarning, match="hellaswag has 14 rows, not 1000"):
        assert len(dl.load_choices("hellaswag", 1000, source="embedded")) == 14


def test_a_lens_that_gives_no_number_is_an_error_of_the_answer_too(toy):
    broken = {"A": torch.full((4, 128, 128), torch.nan), "b": torch.zeros(4, 128)}
    with pytest.raises(ValueError, match="answer_kl is not finite"):
        dl.answer_lens(toy, "5 + 7 = ", "12", lens=broken)


def test_a_card_counts_texts_and_not_letters(toy):
    assert dl.prune(toy, TEXT, at_most=100).n_prompts == 1


def test_a_token_that_is_a_dollar_sign_is_written_in_a_legend():
    drawn = dl.plot("answer_ranks", {"answer_ranks": torch.ones(5, 2), "tokens": ["$$", "$a"]}).figure
    drawn.canvas.draw()  # parses the texts
    assert drawn.axes[0].get_legend_handles_labels()[1] == [r"1: \$\$", r"2: \$a"]


def test_a_heat_map_to_explore_may_be_of_one_result(toy):
    from depth_lib.figures import explore

    result = dl.layer_effects(toy, [TEXT])
    assert len(explore("layer_effects", result).data) == len(explore("layer_effects", {"": result}).data)
