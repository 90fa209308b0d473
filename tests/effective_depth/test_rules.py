"""The rules of effective depth, on curves made by hand and against the rule's text in plain Python."""

import contextlib
import math
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from depth_lib.effective_depth.rules import effective_depth_cosine, effective_depth_kl, effective_depth_overlap, ratio
from depth_lib.effective_depth.tables import published_depths

FORMS = {
    "list": list,
    "float64 array": np.array,
    "float32 tensor": torch.tensor,
    "float64 tensor": lambda values: torch.tensor(values, dtype=torch.float64),
    "tensor with gradient": lambda values: torch.tensor(values, requires_grad=True),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_value_on_the_threshold_is_not_above_it_in_any_precision(form):
    depth = effective_depth_overlap(FORMS[form]([0.0, 0.3, 0.3, 0.5, 0.9]))
    assert depth == 3 and type(depth) is int
    assert effective_depth_overlap(FORMS[form]([0.3, 0.3, 0.3, 0.9])) is None
    assert effective_depth_overlap(torch.tensor([0.0, 0.25, 0.5, 0.5]).to(torch.bfloat16)) == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_an_error_that_names_metric_curve_and_layer(bad):
    good, broken = [0.5, -0.5, 0.5, 0.5], [0.5, 0.5, bad, 0.5]
    with pytest.raises(ValueError, match="cosine: the curve is not finite at layer 2; run the probe again"):
        effective_depth_cosine(good, broken, good)
    with pytest.raises(ValueError, match="^kl: the curve is not finite at layer 2"):
        effective_depth_kl(torch.tensor(broken))
    with pytest.raises(ValueError, match="^overlap: the curve is not finite at layer 2"):
        effective_depth_overlap(np.array(broken))


@pytest.mark.parametrize(
    "rule, bounds",
    [(effective_depth_overlap, (0, 1)), (effective_depth_kl, (0, None)), (effective_depth_cosine, (-1, 1))],
)
def test_a_value_that_is_impossible_is_refused_beyond_rounding(rule, bounds):
    for bound, sign in zip(bounds, (-1, 1), strict=True):
        for key in range(3 if bound is not None else 0):
            for beyond in (1e-5, 0.01):
                curves = [[0.5, 0.5, 0.5] for _ in range(3)]
                curves[key][1] = bound + sign * beyond
                given = curves if rule is effective_depth_cosine else [curves[key]]
                refused = pytest.raises(ValueError, match=r"at layer 1 \(must be") if beyond > 1e-3 else None
                with refused or contextlib.nullcontext():
                    rule(*given)


def test_the_overlaps_of_a_dict_have_a_depth_without_divergences():
    assert effective_depth_overlap({"res_overlaps": [0.0, 0.2, 0.4, 0.9]}) == 2


def test_a_result_of_another_probe_is_refused_with_the_one_that_is_needed():
    with pytest.raises(ValueError, match="kl needs res_kl_divs, or a result from logit_lens"):
        effective_depth_kl({"att_cos": [0.1, 0.2]})


def test_curves_that_are_not_known_have_no_depth_and_words_are_no_curve():
    assert effective_depth_cosine(*[[math.nan] * 3] * 3) is None
    with pytest.raises(ValueError, match="expected a list, array or tensor of numbers, got"):
        effective_depth_kl(["high", "low"])


@pytest.mark.parametrize("curve", [[], 0.5, [[0.1, 0.2]]])
def test_what_is_not_one_value_a_layer_is_an_error(curve):
    with pytest.raises(ValueError, match=r"overlap needs res_overlaps with one value per layer, got shape \["):
        effective_depth_overlap(curve)


def test_published_curves_give_the_published_depths_but_where_one_is_read_off_on_the_threshold():
    """Curves read off the figures of arXiv 2512.14064 (GSM8K), to half a layer and 0.005 of overlap."""
    curves = pd.read_csv(Path(__file__).parents[2] / "docs/qwen/published_curves.csv")
    published = published_depths().query("dataset == 'gsm8k'").set_index(["model", "rule"]).ed
    rules = {"lens_kl": ("kl", effective_depth_kl), "lens_overlap": ("overlap", effective_depth_overlap)}
    found, values = {}, {}
    for (figure, model), rows in curves.groupby(["figure", "model"]):
        name, rule = rules[figure]
        values[model, name] = rows.sort_values("layer").value.to_numpy()
        found[model, name] = rule(values[model, name])
    differ = {key: (depth, published[key]) for key, depth in found.items() if depth != published[key]}
    on_it = ("Qwen2.5-Math-1.5B", "overlap")
    assert len(found) == 6 and differ == {on_it: (22, 23)}
    assert abs(values[on_it][22] - 0.3) < 0.005


def test_the_ratio_counts_layers_up_to_and_with_the_depth_and_is_missing_where_the_depth_is():
    assert (ratio(17, 28), ratio(7, 8), ratio(None, 28)) == (18 / 28, 1, None)


def test_the_rules_equal_their_text_on_random_curves():
    draw = random.Random(0)
    seen = set()
    for _ in range(500):
        n = draw.randint(1, 9)
        a, m, b = ([draw.choice([-0.5, -0.25, 0.0, 0.25, 0.5]) for _ in range(n)] for _ in range(3))
        c = [(x + y + z) / 3 for x, y, z in zip(a, m, b, strict=True)]
        kl = [draw.choice([0.0, 0.45, 1.0, 2.0, 4.0]) for _ in range(n)]
        overlap = [draw.choice([0.0, 0.2, 0.3, 0.4, 1.0]) for _ in range(n)]
        threshold = draw.choice([0.2, 0.3, 0.5])
        cosine_text = [l for l in range(n - 1) if c[l] < 0 and c[l + 1] >= 0][-1:]
        kl_text = [l for l in range(n - 1) if kl[l] < threshold * max(kl)][:1]
        overlap_text = [l for l in range(n - 1) if overlap[l] > threshold][:1]
        ours = (
            effective_depth_cosine(a, m, b),
            effective_depth_kl(kl, threshold=threshold),
            effective_depth_overlap(overlap, threshold=threshold),
        )
        assert ours == tuple(text[0] if text else None for text in (cosine_text, kl_text, overlap_text))
        assert effective_depth_kl(kl) == effective_depth_kl(kl, 0.5)
        assert effective_depth_overlap(overlap) == effective_depth_overlap(overlap, 0.3)
        assert {type(depth) for depth in ours} <= {int, type(None)}  # which json and torch can store
        seen.add(tuple(depth is None for depth in ours))
    assert len(seen) == 8  # every combination of missing and found was met


@pytest.mark.parametrize("ed", [-1, 28])
def test_a_depth_that_is_no_layer_has_no_ratio(ed):
    with pytest.raises(ValueError, match=f"{ed} is not a layer of a model with 28 layers"):
        ratio(ed, 28)


KL, GAIN = [2.0, 0.9, 0.1], {"loss": [2.0, math.nan], "shuffled_loss": [2.5, math.nan], "n_tokens": [5, 1]}


@pytest.mark.parametrize(
    "rule, result, depth",
    [
        (effective_depth_kl, {"res_kl_divs": [1.0, 0.4, 0.1]}, 1),
        (effective_depth_kl, {"res_kl_divs": [0.99, 0.4, 0.1]}, None),
        (effective_depth_kl, {"res_kl_divs": KL} | GAIN, 1),
        (effective_depth_kl, {"res_kl_divs": KL} | GAIN | {"shuffled_loss": [2.49, math.nan]}, None),
        (effective_depth_kl, {"res_kl_divs": KL} | GAIN | {"n_tokens": [1, 1]}, None),
        (effective_depth_cosine, dict.fromkeys(("att_cos", "mlp_cos", "layer_cos"), [-0.125, 0.125]), 0),
        (effective_depth_cosine, dict.fromkeys(("att_cos", "mlp_cos", "layer_cos"), [-0.124, 0.124]), None),
    ],
)
def test_a_result_that_is_just_reliable_has_a_depth_and_one_below_is_warned_of(rule, result, depth):
    if "att_cos" in result:
        result = result | {"chance_cos": 0.1}  # 1.25 of these are needed
    with pytest.warns(UserWarning, match="^no reliable depth: ") if depth is None else contextlib.nullcontext():
        assert rule(result) == depth
