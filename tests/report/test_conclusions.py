"""What the page concludes from the numbers."""

import pandas as pd
import pytest

from depth_lib.report.conclusions import conclusions, mean_changes
from depth_lib.results.study import facts_of

NO_PAPER = pd.DataFrame({"verdict": []})
# base and instruct models of the registry, with their billions of parameters
SMALL, SMALL_BASE, LARGE, LARGE_BASE = (
    "Qwen2.5-1.5B-Instruct",
    "Qwen2.5-Math-1.5B",
    "Qwen2.5-32B-Instruct",
    "Qwen2.5-32B",
)


def depth(model, dataset, metric, ed, low=None, high=None, layers=10, prompts=10):
    ends = [None if end is None else (end + 1) / layers for end in (ed, low, high)]
    names = ["model", "dataset", "metric", "layers", "prompts", "ed", "low", "high", "ratio", "ratio_low", "ratio_high"]
    return dict(zip(names, [model, dataset, metric, layers, prompts, ed, low, high, *ends], strict=True))


def concluded(*rows):
    frame = pd.DataFrame(rows)
    whole = frame.astype(dict.fromkeys(("layers", "prompts", "ed", "low", "high"), "Int64"))
    return conclusions(whole.astype(dict.fromkeys(("ratio", "ratio_low", "ratio_high"), "Float64")), NO_PAPER)


def test_sizes_are_compared_on_the_datasets_and_training_that_both_have():
    """The large models' easy dataset would make them look deeper."""
    sentences = concluded(
        depth(SMALL, "gsm8k", "kl", 4, 4, 4),
        depth(LARGE, "gsm8k", "kl", 5, 4, 6),
        depth(LARGE, "aime24", "kl", 9, 9, 9),
        depth(LARGE_BASE, "gsm8k", "kl", 9, 9, 9),
    )
    assert (
        "Size: from 1.5 to 32 billion parameters, the mean ratio changes by +0.10 [+0.00, +0.20] by kl (gsm8k)."
        in sentences
    )
    nothing = concluded(depth(SMALL, "gsm8k", "kl", 4, 4, 4), depth(LARGE, "aime24", "kl", 9, 9, 9))
    assert "Size: from 1.5 to 32 billion parameters, nothing can be said: no dataset and training in common." in nothing


def test_trainings_are_compared_on_the_same_datasets_and_sizes_and_tasks_on_the_same_models():
    sentences = concluded(
        depth(SMALL_BASE, "gsm8k", "kl", 4, 4, 4),
        depth(SMALL, "gsm8k", "kl", 2, 2, 2),
        depth(LARGE_BASE, "hellaswag", "kl", 9, 9, 9),
        depth(SMALL, "hellaswag", "kl", 5, 5, None),
    )
    assert "Training: from base to instruct, the mean ratio changes by -0.20 [-0.20, -0.20] by kl (gsm8k)." in sentences
    assert f"Task: from gsm8k to hellaswag, the mean ratio changes by +0.30 (no interval) by kl ({SMALL})." in sentences


def test_the_interval_of_a_change_is_that_of_independent_runs_and_many_names_are_counted():
    rows = [depth("a", d, "kl", 4, 2, 5) for d in ("x", "y")] + [depth("b", d, "kl", 6, 5, 8) for d in ("x", "y")]
    # two datasets: sqrt(2 · (0.1² + 0.1²)) / 2 down, sqrt(2 · (0.2² + 0.2²)) / 2 up
    (change,) = mean_changes(pd.DataFrame(rows), "model", ("a", "b"), ["dataset"])
    assert change == {"metric": "kl", "change": pytest.approx(0.2), "low": pytest.approx(0.1)} | {
        "high": pytest.approx(0.4),
        "where": "x, y",
    }
    four = [depth(model, d, "kl", 4, 4, 4) for model in "ab" for d in "uvwx"]
    assert mean_changes(pd.DataFrame(four), "model", ("a", "b"), ["dataset"])[0]["where"] == "4 datasets"


@pytest.mark.parametrize("model", ["gemma-2-9b-it", "Mixtral-8x7B", "mine"])
def test_training_and_size_are_unknown_where_no_params_file_says_them(model):
    assert (facts_of(model).training, facts_of(model).billions) == ("unknown", None)
    assert (facts_of(SMALL_BASE).training, facts_of(SMALL_BASE).billions) == ("base", 1.5)


def test_how_much_depth_is_used_and_how_sure_that_is():
    sentences = concluded(
        depth("mine", "gsm8k", "cosine", 4, 4, 5),
        depth("mine", "gsm8k", "kl", 5, 3, 8),
        depth("mine", "gsm8k", "overlap", None),
    )
    assert sentences == [
        "The share of its depth after which a model only refines its answer: 50% by cosine, 60% by kl.",
        "Of 3 depths: 1 known to within a layer, 1 known less well, 1 without a closed interval "
        "(1 without an effective depth).",
    ]
    assert concluded(depth("mine", "gsm8k", "kl", None)) == ["No model has an effective depth here."]
