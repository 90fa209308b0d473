"""Plausible input of another form than usual: it gives the right number, or one line that says what to give."""

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
from tests.probes.comparing import TOLERANCE

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


def test_a_lens_that_gives_no_number_is_an_error_of_the_answer_too(toy):
    broken = {"A": torch.full((4, 128, 128), torch.nan), "b": torch.zeros(4, 128)}
    with pytest.raises(ValueError, match="answer_kl is not finite"):
        dl.answer_lens(toy, "5 + 7 = ", "12", lens=broken)


def test_a_series_or_an_array_of_texts_is_a_list_of_them(toy):
    texts = [TEXT, "Another text"]
    assert tokenize(toy, pd.Series(texts)) == tokenize(toy, np.array(texts)) == tokenize(toy, texts)


def test_a_prompt_of_one_token_works_where_it_can_and_is_refused_where_it_cannot(toy):
    assert dl.relative_contribution(toy, ["5"])["n_tokens"].tolist() == [1]
    assert dl.logit_lens(toy, ["5"])["res_kl_divs"].isfinite().all()
    assert dl.layer_effects(toy, ["5"], mode="all")["max_all_out"].max() <= TOLERANCE  # token 0 is never skipped
    with pytest.warns(UserWarning, match=r"too short for future mode \(13 tokens\), left out: prompt 1 \(1 tokens\)"):
        assert len(dl.layer_effects(toy, [TEXT, "5"])["max_future_out_by_prompt"]) == 1


def test_memory_that_is_full_while_measuring_is_named(toy):
    ids = toy.tokenizer("5 + 7")["input_ids"]

    def needs_too_much(llm):
        with llm.trace(ids):
            llm.blocks[0].output.new_empty(2**45)

    with pytest.raises(dl.ModelError, match="^layer effects: the memory is full; give shorter prompts, a smaller bud"):
        run(needs_too_much, toy, label="layer effects")


def test_a_probe_that_is_interrupted_ends_with_its_name_and_without_the_engines_frames(toy):
    def interrupted(llm):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="^layer effects was interrupted; call it again") as stopped:
        run(interrupted, toy, label="layer effects")
    assert len(stopped.traceback) == 2 and stopped.value.__suppress_context__
