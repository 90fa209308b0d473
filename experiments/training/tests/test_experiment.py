"""What the experiment measures is right, its intervals say what they hold, and its conclusion follows from numbers."""

import math
import random

import numpy as np
import pandas as pd
import pytest
from transformers import GenerationConfig

from depth_lib import load_model
from depth_lib.effective_depth.intervals import Estimate
from depth_lib.effective_depth.rules import effective_depth_erasure
from experiments.training import experiment, measure, summary
from experiments.training.tasks import TASKS, held_out_examples, is_held_out

# ---- what is asked


def test_held_out_examples_are_different_held_out_problems_of_their_level_and_the_same_for_everybody():
    for task, spec in TASKS.items():
        found = held_out_examples(task, [*spec.seen, *spec.unseen], 30)
        assert found == held_out_examples(task, [*spec.seen, *spec.unseen], 30)
        assert len({one.question for one in found}) == len(found) and all(is_held_out(one.question) for one in found)
        for one in found:
            assert sum(one.question.count(op) for op in "+-*") == one.level - (task == "sums")
            assert eval(one.question.removeprefix("Q: What is ").removesuffix("= ").removesuffix("? A: ")) == int(
                one.answer
            )
    assert held_out_examples("sums", [4], 9, seed=1) != held_out_examples("sums", [4], 9)


def test_two_digits_have_only_the_held_out_sums_that_there_are():
    there = {f"{a} + {b} = " for a in range(10) for b in range(10) if is_held_out(f"{a} + {b} = ")}
    assert {one.question for one in held_out_examples("sums", [2], 300)} == there


def test_training_reads_seen_levels_and_nothing_that_is_held_out():
    rng = random.Random(0)
    drawn = [experiment.draw(rng)[0] for _ in range(600)]
    assert not any(map(is_held_out, drawn))
    assert {text.count("+") + 1 for text in drawn if text[0] != "Q"} == {*TASKS["sums"].seen}
    steps = {sum(text.count(op) for op in "+-*") for text in drawn if text[0] == "Q"}
    assert steps == {*TASKS["nested"].seen}


# ---- what is measured


def test_an_exact_match_is_what_greedy_generation_answers():
    llm = load_model("toy-4l")
    model, tokenizer = llm._module, llm.tokenizer
    pairs = [(one.question, one.answer) for one in held_out_examples("sums", [3, 6, 7], 8)]
    pairs += [(question, answer + "0") for question, answer in pairs[:3]]
    said = []
    for question, _ in pairs:
        ids = tokenizer(question, return_tensors="pt")
        out = model.generate(**ids, generation_config=GenerationConfig(max_new_tokens=4, eos_token_id=256))
        said.append(tokenizer.decode(out[0, ids.input_ids.shape[1] :]))
    assert measure.exact_matches(model, tokenizer, pairs) == [
        text == answer + measure.END for text, (_, answer) in zip(said, pairs, strict=True)
    ]


def test_the_erasure_depth_of_a_level_is_the_mean_over_its_problems(monkeypatch):
    llm = load_model("toy-4l")
    monkeypatch.setattr(measure, "READ", 4)
    monkeypatch.setattr(measure, "ERASED", 3)
    rows = {row[0]: row[1:] for row in measure._depths(llm, "sums", 3)}
    assert {*rows} == {"cosine", "kl", "overlap", "erasure"} and rows["kl"][-1] == 4
    baseline = [one.question + one.answer for one in held_out_examples("sums", range(2, 7), 2, seed=1)]
    depths = []
    for _, question, answer, _ in held_out_examples("sums", [3], 3):
        effect = measure.api.residual_erasure(llm, question, answer, baseline)["erasure_effect"]
        depths.append(effective_depth_erasure(effect, len(answer), first_token=0))
    assert rows["erasure"][1] == pytest.approx(np.mean(depths)) and rows["erasure"][-1] == 3


def test_wilsons_interval_is_the_one_of_the_textbook():
    found = measure.share(81, 263)  # Newcombe 1998, table I: 0.2553 to 0.3662
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert measure.share(0, 20).low == 0 and measure.share(20, 20).high == 1


def test_a_mean_of_equal_independent_parts_is_surer_by_the_root_of_their_number():
    found = measure.mean_of([Estimate(0.5, 0.4, 0.7)] * 4)
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.45, 0.6))


def test_students_interval_holds_the_mean_in_95_of_100_samples():
    rng = np.random.default_rng(0)
    held = [one.low <= 1 <= one.high for one in map(measure.mean_with_interval, rng.normal(1, 2, (2000, 8)))]
    assert 0.935 < np.mean(held) < 0.965


# ---- what it says together


def toys(values, spread=0.001, seeds=3):
    """Measurements with value(kind, loss) of the slope and of the accuracy on unseen lengths, in points."""
    rows = []
    for (kind, loss), (slope, unseen) in values.items():
        for seed in range(seeds):
            shift = spread * (seed - 1)
            for quantity, level, value in (("slope layer", "seen", slope), ("accuracy", "unseen", unseen / 100)):
                value += shift
                rows.append((kind, loss, seed, "sums", quantity, level, value, value - spread, value + spread, 100))
    return pd.DataFrame(rows, columns=["kind", "loss", "seed", *measure.COLUMNS])


PLAIN = {("ordinary", "all"): (0.01, 41), ("ordinary", "answers"): (0.02, 48), ("shared", "all"): (0.03, 36)}
AS_PUBLISHED = PLAIN | {("shared", "answers"): (0.20, 63)}


def test_numbers_like_the_published_ones_confirm_the_claim():
    said = summary.conclusion(toys(AS_PUBLISHED))
    assert "from 36 to 63 % with shared layers and from 41 to 48 % with ordinary ones" in said
    assert "loss on answers changes that slope by 0.09 [" in said and "sharing layers by 0.10 [" in said
    assert "+27 [" in said and "difference +20 [" in said
    assert said.endswith("holds here.")


def test_swapped_toys_turn_the_conclusion_round():
    swapped = toys(AS_PUBLISHED).replace({"kind": {"ordinary": "shared", "shared": "ordinary"}})
    swapped.loc[:, "loss"] = swapped.loss.map({"all": "answers", "answers": "all"})
    said = summary.conclusion(swapped)
    assert said.endswith("does not hold here.") and "rises less steeply" in said
    assert "from 48 to 41 % with shared layers" in said


@pytest.mark.parametrize("toy", [(-0.1, 63), (0.2, 30)])
def test_a_falling_depth_or_a_lost_accuracy_refutes_the_claim(toy):
    assert summary.conclusion(toys(PLAIN | {("shared", "answers"): toy})).endswith("does not hold here.")


def test_without_one_of_the_four_there_is_no_conclusion():
    assert summary.conclusion(toys(PLAIN)) == "No conclusion: shared answers not measured."


def test_seeds_that_disagree_leave_it_undecided():
    said = summary.conclusion(toys(AS_PUBLISHED, spread=0.2))
    assert said.endswith("is not decided here.") and "may or may not rise" in said


def test_an_interval_over_seeds_and_prompts_is_wider_than_either():
    (row,) = summary.over_seeds(toys({("shared", "all"): (0.2, 50)}).query("quantity == 'accuracy'")).itertuples()
    student = 4.3027 * 0.001 / math.sqrt(3)  # t of 2 degrees of freedom
    assert row.high - row.value == pytest.approx(math.hypot(student, 0.001), rel=1e-3) and row.seeds == 3
    (row,) = summary.over_seeds(toys({("shared", "all"): (0.2, 50)}, seeds=1)[:1]).itertuples()
    assert (row.low, row.high, row.seeds) == pytest.approx((row.value - 0.001, row.value + 0.001, 1))


def test_a_depth_that_no_seed_has_is_missing_and_one_that_some_have_is_theirs():
    measured = toys({("shared", "all"): (2.0, 50)}).query("quantity == 'slope layer'").assign(quantity="cosine")
    measured.iloc[0, measured.columns.get_loc("value")] = np.nan
    (row,) = summary.over_seeds(measured).itertuples()
    assert row.seeds == 2 and row.value == pytest.approx(2.0005)
    (row,) = summary.over_seeds(measured.assign(value=np.nan)).itertuples()
    assert row.seeds == 0 and np.isnan(row.value)


def test_a_trained_toy_is_measured_once_and_a_folder_without_one_says_what_to_run(tmp_path, monkeypatch, capsys):
    calls = []
    row = dict(zip(measure.COLUMNS, ("sums", "accuracy", "seen", 0.5, 0.4, 0.6, 10), strict=True))
    monkeypatch.setattr(experiment, "load_model", lambda place, dtype: place)
    monkeypatch.setattr(experiment, "measure", lambda llm: calls.append(llm.name) or pd.DataFrame([row]))
    (tmp_path / "shared-all-0").mkdir()
    (tmp_path / "shared-all-0/model.safetensors").touch()
    for _ in range(2):
        found = experiment.measure_all(tmp_path, ["shared"], ["all"], [0, 1])
        assert found.iloc[0].to_dict() == {"kind": "shared", "loss": "all", "seed": 0} | row and len(found) == 1
    assert calls == ["shared-all-0"]
    assert "shared-all-1 has no trained toy; run: python -m experiments.training.experiment" in capsys.readouterr().out
