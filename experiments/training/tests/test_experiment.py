"""What the experiment measures is right, its intervals say what they hold, and its conclusion follows from numbers."""

import math
import random

import numpy as np
import pandas as pd
import pytest
from transformers import GenerationConfig

from depth_lib import load_model
from depth_lib.data.examples import Example
from depth_lib.effective_depth.intervals import Estimate
from experiments.training import experiment, measure, summary
from experiments.training.tasks import LARGEST, TASKS, held_out_examples, is_held_out

# ---- what is asked


def test_held_out_examples_are_different_held_out_problems_of_their_level_and_the_same_for_everybody():
    for task, spec in TASKS.items():
        found = held_out_examples(task, [*spec.seen, *spec.unseen], 30)
        assert found == held_out_examples(task, [*spec.seen, *spec.unseen], 30)
        assert len({one.question for one in found}) == len(found) and all(is_held_out(one.question) for one in found)
        for one in found:
            assert sum(one.question.count(op) for op in "+-*") == one.level - (task == "sums")
            expression = one.question.removeprefix("Q: What is ").removesuffix("= ").removesuffix("? A: ")
            assert eval(expression) == int(one.answer) and abs(int(one.answer)) <= LARGEST
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
    problems = held_out_examples("sums", [3, 6, 7], 8)
    problems += [Example(one.level, one.question, one.answer + "0") for one in problems[:3]]
    said = []
    for problem in problems:
        ids = tokenizer(problem.question, return_tensors="pt")
        out = model.generate(**ids, generation_config=GenerationConfig(max_new_tokens=4, eos_token_id=256))
        said.append(tokenizer.decode(out[0, ids.input_ids.shape[1] :]))
    right = [text == one.answer + measure.END for text, one in zip(said, problems, strict=True)]
    assert measure.exact_matches(model, tokenizer, problems) == right and {*right} == {True, False}


@pytest.mark.slow
def test_the_erasure_depth_of_a_level_is_the_mean_over_its_problems(monkeypatch):
    llm = load_model("toy-4l")
    monkeypatch.setattr(measure, "READ", 4)
    monkeypatch.setattr(measure, "ERASED", 3)
    rows = {quantity: (estimate, n) for quantity, _, estimate, n in measure._depths(llm, "sums", 3)}
    assert {*rows} == {"cosine", "kl", "overlap", "erasure"} and rows["kl"][1] == 4
    baseline = [one.question + one.answer for one in held_out_examples("sums", range(2, 7), 2, seed=1)]
    depths = []
    for _, question, answer, _ in held_out_examples("sums", [3], 3):
        effect = measure.dl.residual_erasure(llm, question, answer, baseline)["erasure_effect"]
        depths.append(measure.erasure_depth(effect, len(answer)))
    assert rows["erasure"][0].value == pytest.approx(np.mean(depths)) and rows["erasure"][1] == 3


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
    """Measurements with value(kind, loss) of the slope and of the accuracy on unseen lengths."""
    rows = []
    for (kind, loss), (slope, unseen) in values.items():
        for seed in range(seeds):
            for quantity, level, mean in (("slope layer", "seen", slope), ("accuracy", "unseen", unseen)):
                value = mean + spread * (seed - 1)
                rows.append((kind, loss, seed, "sums", quantity, level, value, value - spread, value + spread, 100))
    return pd.DataFrame(rows, columns=["kind", "loss", "seed", *measure.COLUMNS])


AS_PUBLISHED = {
    ("ordinary", "all"): (0.01, 0.41),
    ("ordinary", "answers"): (0.02, 0.48),
    ("shared", "all"): (0.03, 0.36),
    ("shared", "answers"): (0.20, 0.63),
}


def test_the_contrasts_are_differences_of_the_four_toys():
    slope, steeper, gain, more, sharing, answers = summary.contrasts(toys(AS_PUBLISHED)).value
    assert (slope, steeper) == pytest.approx((0.20, 0.20 - 0.01))
    assert (gain, more) == pytest.approx((0.63 - 0.36, (0.63 - 0.36) - (0.48 - 0.41)))
    assert (sharing, answers) == pytest.approx(((0.02 + 0.18) / 2, (0.01 + 0.17) / 2))


def test_the_interval_of_a_difference_adds_squared_distances_to_the_ends():
    a, b = Estimate(5.0, 2.0, 5.1), Estimate(1.0, 0.9, 5.0)
    assert summary._minus(a, b) == Estimate(4.0, 4.0 - 5.0, 4.0 + math.hypot(0.1, 0.1))


def test_numbers_like_the_published_ones_confirm_the_claim_unless_seeds_disagree():
    assert summary.conclusion(toys(AS_PUBLISHED)).endswith(" holds here.")
    assert summary.conclusion(toys(AS_PUBLISHED, spread=0.2)).endswith(" is not decided here.")


@pytest.mark.parametrize(
    "changed",
    [
        {("shared", "answers"): (-0.1, 0.63)},
        {("ordinary", "all"): (0.3, 0.41)},
        {("shared", "all"): (0.03, 0.7), ("ordinary", "all"): (0.01, 0.7)},
        {("ordinary", "answers"): (0.02, 0.9)},
    ],
)
def test_any_of_the_four_contrasts_below_zero_refutes_the_claim(changed):
    measured = toys(AS_PUBLISHED | changed)
    assert (summary.contrasts(measured)[:4].high < 0).sum() == 1 + (("shared", "answers") in changed)
    assert summary.conclusion(measured).endswith(" does not hold here.")


def test_an_interval_over_seeds_and_prompts_is_wider_than_either():
    (row,) = summary.over_seeds(toys({("shared", "all"): (0.2, 0.5)}).query("quantity == 'accuracy'")).itertuples()
    student = 4.3027 * 0.001 / math.sqrt(3)  # t of 2 degrees of freedom
    assert row.high - row.value == pytest.approx(math.hypot(student, 0.001), rel=1e-3) and row.seeds == 3
    (row,) = summary.over_seeds(toys({("shared", "all"): (0.2, 0.5)}, seeds=1)[:1]).itertuples()
    assert (row.low, row.high, row.seeds) == pytest.approx((row.value - 0.001, row.value + 0.001, 1))


def test_a_depth_that_no_seed_has_is_missing_and_one_that_some_have_is_theirs():
    measured = toys({("shared", "all"): (2.0, 0.5)}).query("quantity == 'slope layer'").assign(quantity="cosine")
    measured.iloc[0, measured.columns.get_loc("value")] = np.nan
    (row,) = summary.over_seeds(measured).itertuples()
    assert row.seeds == 2 and row.value == pytest.approx(2.0005)
    (row,) = summary.over_seeds(measured.assign(value=np.nan)).itertuples()
    assert row.seeds == 0 and np.isnan(row.value)


def test_a_trained_toy_is_measured_once_and_a_folder_without_one_says_what_to_run(tmp_path, monkeypatch):
    calls = []
    row = dict(zip(measure.COLUMNS, ("sums", "accuracy", "seen", 0.5, 0.4, 0.6, 10), strict=True))
    monkeypatch.setattr(experiment, "load_model", lambda place, dtype: place)
    monkeypatch.setattr(experiment, "measure", lambda llm: calls.append(llm.name) or pd.DataFrame([row]))
    monkeypatch.setattr(experiment, "SEEDS", (0,))
    with pytest.raises(SystemExit, match="ordinary-all-0 has no trained toy; run: python -m experiments.training"):
        experiment.measure_all(tmp_path)
    names = [f"{kind}-{loss}-0" for kind in ("ordinary", "shared") for loss in ("all", "answers")]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
    for _ in range(2):
        found = experiment.measure_all(tmp_path)
        assert found.iloc[2].to_dict() == {"kind": "shared", "loss": "all", "seed": 0} | row and len(found) == 4
    assert calls == names
