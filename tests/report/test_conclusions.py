"""What the page concludes from the numbers."""

import numpy as np
import pandas as pd
import pytest

from depth_lib.effective_depth.intervals import depth_interval
from depth_lib.report.conclusions import changes, conclusions
from depth_lib.results.study import facts_of
from tests.effective_depth.coverage import CURVES, changes_covered, depths_of, result_of

COSINES = ("att_cos", "mlp_cos", "layer_cos")
NO_PAPER = pd.DataFrame({"verdict": []})
# base and instruct models of the registry, with their billions of parameters
SMALL, SMALL_BASE, MIDDLE, LARGE, LARGE_BASE = (
    "Qwen2.5-1.5B-Instruct",
    "Qwen2.5-Math-1.5B",
    "Qwen2.5-7B-Instruct",
    "Qwen2.5-32B-Instruct",
    "Qwen2.5-32B",
)
L = 10


def study_of(crossings, metric="overlap"):
    """A study and its intervals, from (model, dataset) -> the layer where the overlap of each prompt rises; L: none."""
    study, rows = {}, []
    for (model, dataset), layers in crossings.items():
        curves = np.where(np.arange(L) < np.reshape(layers, (-1, 1)), 0.1, 0.9)
        result = study[dataset, model, "logit_lens"] = result_of(metric, curves)
        found, ed = depth_interval(result, metric), depths_of(metric, np.float32(curves).mean(0)[None])[0]
        ed = None if ed == L - 1 else ed
        rows.append((model, dataset, metric, L, ed, found.low, found.high, None if ed is None else (ed + 1) / L))
    frame = pd.DataFrame(rows, columns=["model", "dataset", "metric", "layers", "ed", "low", "high", "ratio"])
    return study, frame.astype(dict.fromkeys(("layers", "ed", "low", "high"), "Int64") | {"ratio": "Float64"})


def concluded(crossings):
    return conclusions(*study_of(crossings), NO_PAPER)


def test_size_is_a_slope_over_all_models_that_have_dataset_and_training_in_common():
    """The large models' easy dataset would make them look deeper."""
    sentences = concluded(
        {
            (SMALL, "gsm8k"): [4] * 5,
            (MIDDLE, "gsm8k"): [7] * 5,
            (LARGE, "gsm8k"): [6] * 5,
            (LARGE, "aime24"): [8] * 5,
            (LARGE_BASE, "gsm8k"): [8] * 5,
        }
    )
    slope = np.polyfit(np.log2([1.5, 7, 32]), [0.5, 0.8, 0.7], 1)[0]
    assert (
        f"Size, by overlap: from 1.5 to 32 billion parameters, the ratio changes per doubling by {slope:+.2f} "
        "on average (the interval has no other value), compared on gsm8k." in sentences
    )
    nothing = concluded({(SMALL, "gsm8k"): [4] * 5, (LARGE, "aime24"): [8] * 5})
    assert "Size: nothing can be said, no dataset and training in common." in nothing


def test_trainings_are_compared_on_the_same_datasets_and_sizes_and_tasks_on_the_same_models():
    sentences = concluded(
        {
            (SMALL_BASE, "gsm8k"): [4] * 5,
            (SMALL, "gsm8k"): [2] * 5,
            (LARGE_BASE, "hellaswag"): [8] * 5,
            (SMALL, "hellaswag"): [5, 5, L, L, L],
        }
    )
    assert (
        "Training, by overlap: from base to instruct, the mean ratio changes by -0.20 (the interval has no other "
        "value), compared on gsm8k." in sentences
    )
    assert (
        "Task, by overlap: from gsm8k to hellaswag, the mean ratio changes by +0.30 (interval open or not known), "
        f"compared on {SMALL}." in sentences
    )


def test_the_interval_of_a_change_covers_every_combination_of_depths_and_says_what_it_is_over():
    crossings = {
        ("a", "x"): [2, 2, 3, 4, 4],
        ("a", "y"): [3, 3, 4, 4, 4],
        ("b", "x"): [5, 6, 6, 6, 7],
        ("b", "y"): [7, 7, 7, 7, 7],
    }
    study, runs = study_of(crossings)
    intervals = [depth_interval(result, "overlap", n_runs=4) for result in study.values()]
    a, b = np.array([((found.low + 1) / L, (found.high + 1) / L) for found in intervals]).reshape(2, 2, 2).mean(1)
    (change,) = changes(study, runs.assign(ratio=runs.ratio.astype(float)), "model", ("a", "b"), ["dataset"])
    assert (change["low"], change["high"]) == pytest.approx((b[0] - a[1], b[1] - a[0]))
    assert change["low"] < change["change"] < change["high"] and change["where"] == "x, y"
    assert (
        "Brackets: confidence intervals (at least 95 %) over prompts, for these models; how other models differ is in "
        "none of them." in conclusions(study, runs, NO_PAPER)
    )


def test_many_names_are_counted():
    study, runs = study_of({(model, dataset): [4] * 5 for model in "ab" for dataset in "uvwx"})
    runs["ratio"] = runs.ratio.astype(float)
    assert changes(study, runs, "model", ("a", "b"), ["dataset"])[0]["where"] == "4 datasets"


@pytest.mark.slow
def test_intervals_of_changes_cover_the_truth_where_models_share_the_noise_of_their_prompts():
    curve = CURVES["steep"]["cosine"]
    covered = changes_covered("cosine", curve, curve, n_prompts=10, shared=0.9, repeats=15, along=0.9)
    assert min(share for share, _ in covered.values()) >= 0.92


@pytest.mark.parametrize("model", ["gemma-2-9b-it", "Mixtral-8x7B", "mine"])
def test_training_and_size_are_unknown_where_no_params_file_says_them(model):
    assert (facts_of(model).training, facts_of(model).billions) == ("unknown", None)
    assert (facts_of(SMALL_BASE).training, facts_of(SMALL_BASE).billions) == ("base", 1.5)


def test_how_often_the_mean_cosine_crosses_zero_is_said_beside_the_rule_that_takes_the_last():
    curves = {"once": [-0.1, -0.1, 0.1, 0.1], "thrice": [-0.1, 0.1, -0.1, 0.1, -0.1, 0.1, 0.1], "never": [0.1, 0.2]}
    study = {("x", name, "relative_contribution"): dict.fromkeys(COSINES, curve) for name, curve in curves.items()}
    columns = {"dataset": "x", "metric": "cosine", "high": None, "low": None}
    runs = pd.DataFrame(
        {"model": [*curves], "layers": [4, 7, 2], "ed": [1, 4, None], "ratio": [0.5, 5 / 7, None]}
    ).assign(**columns)
    assert (
        "How often the mean cosine changes from negative to non-negative in a run: 0 or 1 or 3; the cosine rule takes "
        "the last change." in conclusions(study, runs, NO_PAPER)
    )


def test_how_much_depth_is_used_and_how_sure_that_is():
    sentences = concluded({("mine", "gsm8k"): [4] * 5, ("mine", "aime24"): [5] * 5, ("mine", "hellaswag"): [L] * 5})
    assert sentences[0] == "By overlap, the effective depth is 50% to 60% of all layers (median 55%; 2 of 3 runs)."
    assert sentences[-1] == (
        "Of 3 depths, 2 have an interval of one layer or two, 0 a wider one, 1 no closed one (1 no effective depth)."
    )
    assert concluded({("mine", "gsm8k"): [L] * 5}) == ["No model has an effective depth here."]
