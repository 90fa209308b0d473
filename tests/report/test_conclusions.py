"""What the page concludes from the numbers: an answer in a sentence, and none where there is none."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from depth_lib.effective_depth.across import trends
from depth_lib.effective_depth.published import beside_the_paper, published_depths
from depth_lib.params import facts_of
from depth_lib.report.conclusions import conclusions, headline
from tests.effective_depth.coverage import changes_covered

COSINES = ("att_cos", "mlp_cos", "layer_cos")
SIZES = {"1.5B": 1.5, "7B": 7, "14B": 14, "32B": 32}
BASE = {"1.5B": "Qwen2.5-Math-1.5B", "7B": "Qwen2.5-Math-7B", "14B": "Qwen2.5-14B", "32B": "Qwen2.5-32B"}
L = 100


def depths_of(ratios, metric="kl", notes=()):
    """Depths from (model, dataset) -> ratio."""
    rows = [(*run, metric, L, None if ratio is None else round(ratio * L) - 1, ratio) for run, ratio in ratios.items()]
    frame = pd.DataFrame(rows, columns=["model", "dataset", "metric", "layers", "ed", "ratio"])
    frame["note"] = [dict(notes).get(model, "") for model in frame.model]
    return frame.astype({"ed": "Int64", "ratio": "Float64"})


def of(question, found):
    return [one for one in found if one.question == question]


def test_size_is_a_slope_per_doubling_within_each_training_as_least_squares_has_it():
    ratios = {"1.5B": 0.61, "7B": 0.7, "14B": 0.72, "32B": 0.83}
    depths = depths_of({(BASE[size], "gsm8k"): ratio for size, ratio in ratios.items()})
    (found,) = trends(depths)
    truth = stats.linregress(np.log2(list(SIZES.values())), list(ratios.values()))
    half = stats.t.ppf(0.975, 2) * truth.stderr
    assert (found.change, found.low, found.high) == pytest.approx((truth.slope, truth.slope - half, truth.slope + half))
    (sentence,) = conclusions({}, depths, pd.DataFrame())
    said = "With each doubling of their size models use a larger share of their depth"
    assert sentence == f"{said}: KL {found}; 4 sizes."
    two_trainings = {(f"Qwen2.5-{size}-Instruct", "gsm8k"): 0.3 + ratio for size, ratio in ratios.items()}
    both = pd.concat([depths, depths_of(two_trainings)])
    (slope,) = of("size", trends(both))
    assert slope.change == pytest.approx(found.change) and slope.high - slope.low < found.high - found.low


def test_tasks_are_compared_on_the_same_models_and_trainings_at_the_same_sizes():
    tasks = {(model, task): 0.5 + shift for model, shift in zip("abc", (0.0, 0.1, 0.2), strict=True) for task in "xy"}
    for model, more in zip("abc", (0.1, 0.12, 0.17), strict=True):
        tasks[model, "y"] += more
    tasks["d", "y"] = 0.1  # has no x
    (found,) = of("task", trends(depths_of(tasks)))
    truth = stats.ttest_1samp([0.1, 0.12, 0.17], 0).confidence_interval(0.95)
    assert (found.change, found.low, found.high, found.n) == pytest.approx((0.13, truth.low, truth.high, 3))
    sizes = {"1.5B": 0.02, "7B": -0.01, "14B": 0.0}
    runs = {(model, "gsm8k"): 0.7 for model in BASE.values()}
    runs |= {(f"Qwen2.5-{size}-Instruct", "gsm8k"): 0.7 + more for size, more in sizes.items()}
    (found,) = of("training", trends(depths_of(runs)))
    truth = stats.ttest_1samp(list(sizes.values()), 0).confidence_interval(0.95)
    assert (found.before, found.after, found.n) == ("base", "instruct", 3)
    assert (found.low, found.high) == pytest.approx((truth.low, truth.high))
    said = " ".join(conclusions({}, depths_of(runs), pd.DataFrame()))
    assert f"Compared with base models, instruct models use the same share of their depth: KL {found}; 3 sizes." in said


def test_fewer_than_three_units_are_no_sentence_and_a_wide_interval_around_nothing_is_not_called_the_same():
    two = {(model, dataset): 0.5 for model in ("Qwen2.5-14B", "Qwen2.5-32B") for dataset in ("gsm8k", "aime24")}
    assert trends(depths_of(two)) == [] and conclusions({}, depths_of(two), pd.DataFrame()) == []
    ratios = {(model, task): value for model, value in zip("abc", (0.2, 0.5, 0.9), strict=True) for task in "xy"}
    for model, more in zip("abc", (-0.1, 0.0, 0.1), strict=True):
        ratios[model, "y"] += more
    said = " ".join(conclusions({}, depths_of(ratios), pd.DataFrame()))
    assert "Compared with x, models use no clearly different share of their depth on y" in said


def test_the_published_table_gives_at_most_six_sentences_each_an_answer():
    published = published_depths().assign(note="", low=pd.NA, high=pd.NA, prompts=10)
    published["ratio"] = (published.ed + 1) / published.layers
    published = published.astype(dict.fromkeys(("ed", "low", "high"), "Int64"))
    found = conclusions({}, published, beside_the_paper(published))
    assert len(found) == 4 and all(sentence.endswith(".") for sentence in found)
    assert found[0].startswith("With each doubling of their size models use") and "4 sizes" in found[0]
    assert found[3] == "Of 108 depths that the papers have too: 108 same."
    assert "share of their depth: cosine" in found[1] and "4 sizes" in found[1]


@pytest.mark.parametrize(("n", "least"), [(3, 0.88), (6, 0.88)])
def test_intervals_of_changes_cover_the_truth_and_are_not_endless(n, least):
    found = changes_covered("overlap", n, 120)
    assert all(least <= share <= 0.995 and width < 0.6 for share, width in found.values()), found


def test_the_card_places_models_among_the_papers_and_names_a_curve_without_signal():
    one = depths_of({("mine", "gsm8k"): 0.6, ("mine", "aime24"): 0.7, ("mine", "hellaswag"): 0.9})
    twelve = "; the papers' twelve: 75 to 94 %."
    assert headline(one) == f"The prediction of mine forms at 70 % of its depth{twelve}"
    two = pd.concat([one, depths_of({("small", "gsm8k"): 0.2})])
    assert headline(two) == f"Predictions form at 20 % (small) to 70 % (mine) of the depth{twelve}"
    silent = depths_of({("raw", "gsm8k"): None}, notes={"raw": "no signal: largest KL 0.05 nats"})
    assert headline(silent) == f"raw: – (no signal: largest KL 0.05 nats){twelve}"
    few = depths_of({("few", "gsm8k"): None}, notes={"few": "no interval: too few prompts to resample"})
    assert headline(few) == f"few: – (no layer satisfies the rule){twelve}"
    many = depths_of({(f"m{k}", "gsm8k"): None for k in range(5)})
    assert headline(many).count("no layer satisfies the rule") == 3 and "; 2 more have none;" in headline(many)


def test_how_often_the_mean_cosine_crosses_zero_is_said_beside_the_rule_that_takes_the_last():
    curves = {"once": [-0.1, -0.1, 0.1, 0.1], "thrice": [-0.1, 0.1, -0.1, 0.1, -0.1, 0.1, 0.1], "never": [0.1, 0.2]}
    study = {("x", name, "relative_contribution"): dict.fromkeys(COSINES, curve) for name, curve in curves.items()}
    said = conclusions(study, depths_of({}), pd.DataFrame())
    assert said == ["The mean cosine crosses zero upwards up to 3 times; the rule uses the last one, so it is fragile."]


@pytest.mark.parametrize("model", ["gemma-2-9b-it", "Mixtral-8x7B", "mine"])
def test_training_and_size_are_unknown_where_no_params_file_says_them(model):
    assert (facts_of(model).training, facts_of(model).billions) == ("unknown", None)
    assert (facts_of(BASE["1.5B"]).training, facts_of(BASE["1.5B"]).billions) == ("base", 1.5)
